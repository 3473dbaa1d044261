"""The residual's product by warps with roles: compiled anywhere, run on a Hopper GPU."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.absent import run_without
from tests.ops.problem import distance, normal
from tests.ops.triton.gluon import MOST_SHARED, compile_for_hopper, has_hopper

pytest.importorskip("triton.experimental.gluon")
from repgraph.ops.tf32 import tensor_float_32
from repgraph.ops.triton import hopper, product, strips, succession

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SETUP = """
from repgraph.ops.triton import strips

function = strips._residual_strips
dtype = torch.float32 if feature == "fp32" else torch.float16
constants = strips._plan(torch.Size((32761, 2040)), 16, dtype, {bias!r}, -1).constants | {{"FOLLOWS": True}}
rows, columns, inner = (constants[name] for name in "MNK")
described = {{"a": [rows, inner // constants["PIECES"]], "weight": [columns, inner]}}
described |= {{"x": [rows, columns], "y": [rows, columns]}}
pointers = {{"bias": {bias!r} or feature}}
"""


@pytest.mark.parametrize(("feature", "bias"), [("bf16", "bf16"), ("fp16", "fp32"), ("bf16", None), ("fp32", "fp32")])
def test_compiles_for_hopper(feature: str, bias: str | None, tmp_path: Path) -> None:
    shared, ptx = compile_for_hopper(SETUP.format(bias=bias), feature, tmp_path)
    assert shared <= MOST_SHARED
    # of both groups: 16 channels at once and two halves of the columns, or 8 and one
    assert ptx.count("wgmma.mma_async") == 2 * 2 * strips.INNER // 16
    assert ("cvt.rna.tf32.f32" in ptx) == (feature == "fp32")
    before, after = ptx.split("griddepcontrol.wait")
    code = before[before.rindex(".entry") :]
    assert not any(access in code for access in ("ld.global", "st.global", "cp.async", "prefetch", "barrier.sync"))
    assert ("ld.global" in after) == (bias is not None) and "cp.async" in after and "barrier.sync" in after


@pytest.mark.parametrize("possible", [False, True])
def test_waits_if_it_is_launched_early(possible: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(succession, "possible", lambda device: possible)
    plan = strips._plan.__wrapped__(torch.Size((32768, 2048)), 16, torch.bfloat16, None, 0)
    assert plan.constants["FOLLOWS"] is plan.options["launch_pdl"] is possible


@pytest.mark.parametrize(
    "spoil",
    [
        "import sys; sys.modules['triton.experimental.gluon'] = None",
        "from triton.experimental.gluon.language.nvidia.hopper import tma as t\n"
        "for name in ('async_load', 'async_copy_global_to_shared'): vars(t).pop(name, None)",
    ],
    ids=["none", "other names"],
)
def test_a_triton_with_another_gluon(spoil: str) -> None:
    done = run_without(
        (), f"{spoil}\nfrom repgraph.ops.triton import product\nassert product.strips is product.regress is None"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "rows, columns",
    [(64, 256), (1, 64), (257, 72), (300, 2048), (25600, 136), (9001, 264), (9001, 520), (32761, 2040)],
)
def test_against_float64(dtype: torch.dtype, rows: int, columns: int) -> None:
    x, a, weight = (normal(*s, dtype=dtype) for s in ((rows, columns), (rows, 256), (columns, 256)))
    for bias in (None, normal(columns, dtype=dtype), normal(columns)):
        want, plain = x.double() + a.double() @ weight.double().t(), x + a @ weight.t()
        if bias is not None:
            want, plain = want + bias.double(), plain + bias.to(dtype)
        for _ in range(3):  # a race would not show every time
            got = strips.residual_strips(x, a, weight, bias)
            # TF32: what two factors rounded to 11 bits give is 2.9e-4, and cut off 5.8e-4
            allowed = 3.5e-4 if dtype == torch.float32 else distance(plain, want) + 2 * torch.finfo(dtype).eps
            assert distance(got, want) <= allowed


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_element_is_written(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(math.nan))
    x, a, weight = (normal(*s, dtype=dtype) for s in ((300, 200), (300, 256), (200, 256)))
    assert strips.residual_strips(x, a, weight, None).isfinite().all()


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_stays_so(dtype: torch.dtype, value: float) -> None:
    x, a, weight = (normal(*s, dtype=dtype) for s in ((300, 200), (300, 256), (200, 256)))
    x[7, 9], a[130, 3], weight[150, 255] = value, value, value
    if dtype == torch.float32 and value != value:
        a.view(torch.int32)[131, 70] = 0x7FFFFFFF  # the NaN that a GPU makes
        weight.view(torch.int32)[3, 5] = 0x7FFFFFFF
    want = (x.double() + a.double() @ weight.double().t()).isfinite()
    assert torch.equal(strips.residual_strips(x, a, weight, None).isfinite(), want)


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_taken_where_it_pays(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "VERSIONS", (hopper.version(hopper.triton.__version__),))
    x, a, weight = (normal(*s, dtype=dtype) for s in ((20000, 2048), (20000, 256), (2048, 256)))
    calls = []
    taken = strips.residual_strips
    monkeypatch.setattr(strips, "residual_strips", lambda *tensors: calls.append(1) or taken(*tensors))
    with tensor_float_32():
        product.residual_product(x, a, weight, None)
        product.residual_product(x[:2000], a[:2000], weight, None)
    assert len(calls) == 1
    exact = product.residual_product(x, a, weight, None)
    if dtype == torch.float32:  # not where PyTorch does not multiply so
        assert len(calls) == 1 and distance(exact, x.double() + a.double() @ weight.double().t()) < 1e-6


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
def test_bias_of_memory_that_is_not_aligned() -> None:
    """After one that is: the kernel is compiled for the first."""
    x, a, weight = (normal(*s, dtype=torch.bfloat16) for s in ((20000, 2048), (20000, 256), (2048, 256)))
    both = normal(2049, dtype=torch.bfloat16)
    for bias in (both[:2048], both[1:]):
        got = product.residual_product(x, a, weight, bias)
        assert distance(got, x.double() + a.double() @ weight.double().t() + bias.double()) < 0.01


def test_when_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(strips, "_places", strips._places.__wrapped__)
    monkeypatch.setattr(hopper.triton, "__version__", "3.6.0+git")
    pay = strips.pay
    usual = (torch.Size((32768, 2048)), 256, torch.bfloat16, 0)
    assert pay(*usual) and pay(torch.Size((32761, 2040)), 256, torch.float16, 0)
    assert pay(torch.Size((1 << 18, 512)), *usual[1:]) and not pay(torch.Size((32768, 512)), *usual[1:])
    assert not pay(torch.Size((2048, 2048)), *usual[1:])  # few rows
    assert not pay(torch.Size((1 << 20, 128)), *usual[1:])  # few columns
    assert not pay(usual[0], 264, *usual[2:])
    assert not pay(*usual[:2], torch.float32, 0) and not pay(*usual[:2], torch.float64, 0)
    with tensor_float_32():
        assert pay(*usual[:2], torch.float32, 0) and not pay(*usual[:2], torch.float64, 0)
        assert pay(torch.Size((1 << 18, 128)), 256, torch.float32, 0)
        assert not pay(torch.Size((1 << 18, 64)), 256, torch.float32, 0)
        # half as many columns to a program, twice as many programs for them: so many rows are enough
        assert pay(torch.Size((40000, 512)), 256, torch.float32, 0)
    assert not pay(torch.Size((40000, 512)), *usual[1:])
    assert not pay(*usual[:3], -1)  # in the interpreter
    monkeypatch.setattr(hopper.triton, "__version__", "3.10.0")
    assert not pay(*usual)
    monkeypatch.setattr(hopper.triton, "__version__", "3.6.1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert not pay(*usual)


@pytest.mark.parametrize(("columns", "places"), [(2048, 16), (2040, 16), (256, 132), (257, 66), (1 << 20, 1)])
def test_a_program_for_each_multiprocessor(monkeypatch: pytest.MonkeyPatch, columns: int, places: int) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    assert strips._places.__wrapped__(columns, torch.bfloat16, 0) == places
    assert strips._places.__wrapped__(-(-columns // 2), torch.float32, 0) == places
