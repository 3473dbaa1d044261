"""The residual product with warp specialisation: compiled anywhere, run on a Hopper GPU."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.absent import run_without
from tests.ops.problem import distance, normal, poisoned_memory

import repgraph

pytest.importorskip("triton.experimental.gluon")
from repgraph.ops.tf32 import tensor_float_32
from repgraph.ops.triton import hopper, product

DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
needs_hopper = pytest.mark.skipif(not HAS_HOPPER, reason="needs a Hopper GPU")
MAX_SHARED = 227 * 1024  # bytes of shared memory per program
COMPILE = """
import sys
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from repgraph.ops.triton import hopper

feature, bias = sys.argv[1:]
function = hopper._residual_product
constants = hopper._constants(torch.float32 if feature == "fp32" else torch.float16, bias != "none", bias == "fp32")
rows, columns, inner = (constants[name] for name in "MNK")
descriptors = {"a": [rows, inner // constants["PIECES"]], "weight": [columns, inner]}
descriptors |= {"x": [rows, columns], "y": [rows, columns]}
kind = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}[feature]
signature = {}
for name in function.arg_names:
    if name in descriptors:
        layout = gl.NVMMASharedLayout.get_default_for(descriptors[name], kind)
        signature[name] = f"tensordesc<{feature}{descriptors[name]},{layout!r}>"
    elif name == "bias":
        signature[name] = "*" + (feature if bias == "none" else bias)
    else:
        signature[name] = "constexpr" if name in constants else "i32"
source = GluonASTSource(function, signature, constants, {})
kernel = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
print(kernel.metadata.shared)
print(kernel.asm["ptx"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("feature", "bias"), [("bf16", "bf16"), ("fp16", "fp32"), ("bf16", "none"), ("fp32", "fp32")])
def test_compiles(feature: str, bias: str, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(Path(repgraph.__file__).parents[1]), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE, feature, bias]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shared, ptx = done.stdout.split("\n", 1)
    assert int(shared) <= MAX_SHARED
    # of two groups: 16 channels at once and two halves of the columns, or 8 and one
    assert ptx.count("wgmma.mma_async") == 2 * 2 * hopper.INNER // 16
    assert ("cvt.rna.tf32.f32" in ptx) == (feature == "fp32")


def test_a_triton_with_another_gluon() -> None:
    code = """
        from triton.experimental.gluon.language.nvidia.hopper import tma
        for name in ("async_load", "async_copy_global_to_shared"):
            vars(tma).pop(name, None)
        from repgraph.ops.triton import product
        assert product.hopper is None
    """
    done = run_without((), code)
    assert done.returncode == 0, done.stderr


def matrices(rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [normal(*s, dtype=dtype) for s in ((rows, columns), (rows, 256), (columns, 256))]


@needs_hopper
@DTYPES
@pytest.mark.parametrize(
    "rows, columns",
    [(64, 256), (1, 64), (257, 72), (300, 2048), (25600, 136), (9001, 264), (9001, 520), (32761, 2040)],
)
def test_against_float64(dtype: torch.dtype, rows: int, columns: int) -> None:
    x, a, weight = matrices(rows, columns, dtype)
    for bias in (None, normal(columns, dtype=dtype), normal(columns)):
        want, plain = x.double() + a.double() @ weight.double().t(), x + a @ weight.t()
        if bias is None:
            want, plain = want.relu(), plain.relu()
        else:
            want, plain = want + bias.double(), plain + bias.to(dtype)
        for _ in range(3):  # a race does not show every time
            with poisoned_memory():
                got = hopper.residual_product(x, a, weight, bias, bias is None)
            # TF32: the error of two factors rounded to 11 bits is 2.9e-4, truncated 5.8e-4
            allowed = 3.5e-4 if dtype == torch.float32 else distance(plain, want) + 2 * torch.finfo(dtype).eps
            assert distance(got, want) <= allowed


@needs_hopper
@DTYPES
def test_used_where_it_is_faster(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "_is_supported", lambda device: device >= 0)
    x, a, weight = matrices(20000, 2048, dtype)
    calls = []
    used = hopper.residual_product
    monkeypatch.setattr(hopper, "residual_product", lambda *tensors: calls.append(1) or used(*tensors))
    with tensor_float_32():
        product.residual_product(x, a, weight, None)
        product.residual_product(x[:2000], a[:2000], weight, None)
    assert len(calls) == 1
    exact = product.residual_product(x, a, weight, None)
    if dtype == torch.float32:  # not without TF32
        assert len(calls) == 1 and distance(exact, x.double() + a.double() @ weight.double().t()) < 1e-6


@needs_hopper
def test_unaligned_bias() -> None:
    """After an aligned one, for which the kernel was compiled."""
    x, a, weight = matrices(20000, 2048, torch.bfloat16)
    both = normal(2049, dtype=torch.bfloat16)
    for bias in (both[:2048], both[1:]):
        got = product.residual_product(x, a, weight, bias)
        assert distance(got, x.double() + a.double() @ weight.double().t() + bias.double()) < 0.01


def test_when_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    for name in ("_row_programs", "_is_supported"):  # without their caches
        monkeypatch.setattr(hopper, name, getattr(hopper, name).__wrapped__)
    monkeypatch.setattr(hopper.triton, "__version__", "3.6.0+git")

    def is_faster(rows=32768, columns=2048, inner=256, dtype=torch.bfloat16, device=0) -> bool:
        return hopper.is_faster(torch.Size((rows, columns)), inner, dtype, device)

    assert is_faster() and is_faster(32761, 2040, dtype=torch.float16) and is_faster(1 << 18, 512)
    assert not is_faster(rows=2048) and not is_faster(columns=512) and not is_faster(1 << 20, 128)
    assert not is_faster(inner=264) and not is_faster(dtype=torch.float32) and not is_faster(device=-1)
    with tensor_float_32():  # half as many columns per program, so twice as many programs for them and fewer rows each
        assert is_faster(dtype=torch.float32) and not is_faster(dtype=torch.float64)
        assert is_faster(40000, 512, dtype=torch.float32) and not is_faster(40000, 512)
    monkeypatch.setattr(hopper.triton, "__version__", "3.10.0")
    assert not is_faster()
