"""A feature and the offsets from it in one pass: compiled anywhere, run on a Hopper GPU."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.ops.problem import distance, normal
from tests.ops.triton.gluon import MOST_SHARED, compile_for_hopper, has_hopper

pytest.importorskip("triton.experimental.gluon")
from repgraph.layers import BottleneckRepGraph
from repgraph.ops.triton import hopper, product, regress

HALF = [torch.float16, torch.bfloat16]
SETUP = """
from repgraph.ops.triton import regress

function = regress._feature_and_offsets
constants = regress._plan(torch.Size((32761, 2040)), 18, 32761, torch.float16, {bias!r}, {bias!r}, -1).constants
rows, width, channels, outputs = (constants[name] for name in ("M", "N", "K", "OUT"))
described = {{
    "x": [2 * rows, channels], "weight": [width, channels], "regress": [outputs, width], "y": [rows, width // 4]
}}
pointers = {{"bias": {bias!r}, "last_bias": {bias!r}, "offsets": "fp32"}}
"""


@pytest.mark.parametrize(("feature", "bias"), [("bf16", "bf16"), ("fp16", "fp32")])
def test_compiles_for_hopper(feature: str, bias: str, tmp_path: Path) -> None:
    shared, ptx = compile_for_hopper(SETUP.format(bias=bias), feature, tmp_path)
    assert shared <= MOST_SHARED
    products = 2 * (regress._CHANNELS + regress.WIDTH) // 16  # of both groups: a step, and the offsets
    assert ptx.count("wgmma.mma_async") == products


def inputs(rows: int, channels: int, outputs: int, dtype: torch.dtype, bias: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, weight = normal(rows, channels, dtype=dtype), normal(regress.WIDTH, channels, dtype=dtype) * channels**-0.5
    regression = normal(outputs, regress.WIDTH, dtype=dtype)
    return x, weight, normal(regress.WIDTH, dtype=bias), regression, 9 * normal(outputs, dtype=bias)


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(
    ("batch", "positions", "channels", "outputs"),
    [
        (1, 128, 64, 18), (1, 1, 8, 2), (3, 7, 72, 18), (1, 257, 200, 32), (5, 1000, 2048, 18), (1, 32761, 2040, 24),
        (2, 16384, 512, 2), (70, 331, 256, 10),
    ],
)  # fmt: skip
def test_against_float64(dtype: torch.dtype, batch: int, positions: int, channels: int, outputs: int) -> None:
    for bias in (dtype, torch.float32):
        x, weight, shift, last, last_shift = inputs(batch * positions, channels, outputs, dtype, bias)
        want = (x.double() @ weight.double().t() + shift.double()).relu()
        plain = torch._addmm_activation(shift.to(dtype), x, weight.t())
        for _ in range(3):  # a race would not show every time
            feature, offsets = regress.feature_and_offsets(x, weight, shift, last, last_shift, positions)
            assert feature.dtype == dtype and offsets.shape == (batch, outputs, positions)
            assert distance(feature, want) <= distance(plain, want) + torch.finfo(dtype).eps
            exact = feature.double() @ last.double().t() + last_shift.double()  # of the feature as it is rounded
            exact = exact.view(batch, positions, outputs).transpose(1, 2)
            assert offsets.dtype == torch.float32 and distance(offsets, exact) < 1e-5


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
def test_every_element_is_written_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = inputs(3 * 331, 136, 18, torch.bfloat16, torch.bfloat16)
    empty, made = torch.empty, []

    def poisoned(shape, **options):
        made.append(empty((math.prod(shape) + 4096,), **options).fill_(math.nan))
        return made[-1][2048 : 2048 + math.prod(shape)].view(shape)

    monkeypatch.setattr(torch, "empty", poisoned)
    for result in regress.feature_and_offsets(*tensors, 331):
        assert result.isfinite().all()
    assert len(made) == 2
    for memory in made:
        assert memory[:2048].isnan().all() and memory[-2048:].isnan().all()


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
def test_what_is_not_finite_stays_so() -> None:
    x, weight, shift, last, last_shift = inputs(300, 128, 18, torch.bfloat16, torch.bfloat16)
    x[7, 3], x[200, 5] = math.nan, math.inf
    feature, offsets = regress.feature_and_offsets(x, weight, shift, last, last_shift, 300)
    want = torch.relu(x.float() @ weight.float().t() + shift.float())
    assert torch.equal(feature.isnan(), want.isnan()) and torch.equal(feature.isinf(), want.isinf())
    assert offsets[0, :, 7].isnan().all() and offsets[0, :, 8].isfinite().all()


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
def test_taken_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    taken = regress.feature_and_offsets
    monkeypatch.setattr(hopper, "VERSIONS", (hopper.version(hopper.triton.__version__),))
    monkeypatch.setattr(regress, "feature_and_offsets", lambda *tensors: calls.append(1) or taken(*tensors))
    rows = 2 * regress._ROWS * hopper.processors(0)  # one for each multiprocessor
    x, *others = inputs(2 * rows, 1024, 18, torch.bfloat16, torch.bfloat16)
    map_ = x.view(2, rows // 16, 16, 1024).permute(0, 3, 1, 2)
    feature, offsets = product.relu_products(map_, *others)
    assert len(calls) == 1 and feature.is_contiguous(memory_format=torch.channels_last)
    monkeypatch.setattr(hopper, "VERSIONS", ())
    want, want_offsets = product.relu_products(map_, *others)
    assert len(calls) == 1 and distance(feature, want) < 0.01 and distance(offsets, want_offsets) < 0.01


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
def test_memory_that_is_not_aligned() -> None:
    """After some that is: the kernel is compiled for the first."""
    height = 2 * regress._ROWS * hopper.processors(0) // 16
    tensors = inputs(16 * height, 256, 18, torch.bfloat16, torch.bfloat16)
    for shift in (0, 1):
        moved = []
        for t in tensors:
            memory = torch.empty(t.numel() + 8, dtype=t.dtype, device=t.device)
            moved.append(memory[shift : shift + t.numel()].view(t.shape).copy_(t))
        moved[0] = moved[0].view(1, height, 16, 256).permute(0, 3, 1, 2)
        feature, offsets = product.relu_products(*moved)
        if shift == 0:
            want = feature, offsets
    assert torch.equal(feature, want[0]) and torch.equal(offsets, want[1])


@pytest.mark.skipif(not has_hopper(), reason="needs a Hopper GPU")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_bottleneck_layer_has_it(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    taken = regress.feature_and_offsets
    monkeypatch.setattr(regress, "feature_and_offsets", lambda *tensors: calls.append(1) or taken(*tensors))
    layer = BottleneckRepGraph(512, 256, final_act=False, device="cuda", dtype=torch.bfloat16).eval()
    torch.nn.init.normal_(layer.offset.weight, std=0.1)
    layer.fuse()
    x = normal(2, 512, hopper.processors(0), 64, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    call = torch.compile(layer, fullgraph=True) if compiled else layer
    with torch.no_grad():
        y, nodes, weights = call(x, return_nodes=True)
        assert len(calls) == 1
        monkeypatch.setattr(hopper, "VERSIONS", ())
        want, want_nodes, want_weights = layer(x, return_nodes=True)
    assert len(calls) == 1
    # The feature is rounded differently here and there, which moves nodes a little.
    assert distance(nodes, want_nodes) < 0.05 and distance(weights, want_weights) < 0.05 and distance(y, want) < 0.02
    if not compiled:
        assert layer.offset.seen is not None and layer.offset.seen[1:] == (hopper.processors(0), 64)


def test_when_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(hopper.triton, "__version__", "3.6.0+git")

    def pays(rows=32768, channels=2048, width=256, outputs=18, dtype=torch.bfloat16, other=None, device=0) -> bool:
        def made(*shape, kind=dtype):
            t = torch.empty(shape, dtype=kind, device="meta")
            return SimpleNamespace(shape=t.shape, dtype=kind, element_size=t.element_size, get_device=lambda: device)

        return regress.pays(made(rows, channels), made(width, channels), made(outputs, width, kind=other or dtype))

    assert pays() and pays(channels=2040, dtype=torch.float16, outputs=32)
    assert not pays(rows=4225)  # few rows
    for rows, channels in ((16384, 2048), (65536, 2048), (40960, 1024), (24576, 512), (131072, 256)):
        assert pays(rows=rows, channels=channels)
    for rows, channels in ((18432, 2048), (24576, 2048), (40960, 2048), (18432, 1024), (8448, 1024), (18432, 512)):
        assert not pays(rows=rows, channels=channels)  # the last of the rounds has few rows
    assert not pays(width=512) and not pays(outputs=34) and not pays(channels=2044)
    assert not pays(dtype=torch.float32) and not pays(other=torch.float32)
    assert not pays(device=-1)  # in the interpreter
    assert not pays(rows=0)
    monkeypatch.setattr(torch.version, "hip", "7.0")  # an AMD GPU
    assert not pays()
    monkeypatch.setattr(torch.version, "hip", None)
    assert pays()
    monkeypatch.setattr(hopper.triton, "__version__", "3.7.0")
    assert not pays()
