"""RepGraph layers in every precision, on the CPU and on GPUs: as close to float64 as plain PyTorch; huge maps."""

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
from tests.layers.equations import build
from tests.layers.mechanics import CHANNELS_LAST, FORMATS
from torch import Tensor, nn

from repgraph import representative_attention
from repgraph.layers import BottleneckRepGraph, SimpleRepGraph, fuse, pointwise
from repgraph.layers.offset import Offset
from repgraph.ops import product
from repgraph.ops.backends import why_not

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
KINDS = [BottleneckRepGraph, SimpleRepGraph]
CASES = {
    "small": (dict(channels=8, mid_channels=4, nodes=3), (2, 8, 9, 7)),
    "rounds": (dict(channels=8, mid_channels=4, nodes=3, rounds=3), (2, 8, 9, 7)),
    "wide": (dict(channels=256, mid_channels=64, nodes=9), (2, 256, 33, 47)),
    "odd": (dict(channels=72, mid_channels=40, nodes=5, groups=5), (3, 72, 17, 3)),
    "no kernel": (dict(channels=10, mid_channels=5, nodes=4), (2, 10, 13, 11)),
    "grid": (dict(channels=64, mid_channels=32, nodes=4, grid=4), (1, 64, 30, 41)),
}


@pytest.fixture(autouse=True)
def convolutions_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable TF32, PyTorch's default for convolutions on a GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def plain_pytorch(layer: nn.Module, x: Tensor) -> Tensor:
    """Compute the layer from convolutions, normalizations and the reference operator."""

    def attend(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
        options = dict(groups=layer.groups, grid=layer.grid, scale=layer.scale)
        return representative_attention(query, key, value, offsets, backend="reference", **options)

    def further_rounds(*responses: Tensor) -> Tensor:
        for offset in layer.next_offsets:
            responses += (attend(*[responses[-1]] * 3, offset(responses[-1])),)
        return torch.cat(responses, 1)

    if isinstance(layer, SimpleRepGraph):
        query = layer.theta_norm(torch.conv2d(x, layer.theta.weight))
        key = layer.phi_norm(torch.conv2d(x, layer.phi.weight))
        response = further_rounds(attend(query, key, torch.conv2d(x, layer.g.weight), layer.offset(x)))
        return x + torch.conv2d(response, layer.w_y.weight, layer.w_y.bias)
    feature = layer.act(layer.reduce_norm(torch.conv2d(x, layer.reduce.weight)))
    response = further_rounds(attend(feature, feature, feature, layer.offset(feature)))
    return layer.final_act(x + layer.expand_norm(torch.conv2d(response, layer.expand.weight)))


def make_smooth(kind: type, options: dict, training: bool) -> nn.Module:
    """Build a layer that does not amplify rounding: nodes do not move, logits are of order 1, and each channel before a
    ReLU is far above 0 or, one in four, far below."""
    own = dict(norm_qk=True) if kind is SimpleRepGraph else dict(final_act=False)
    layer = build(kind, training=training, scale=0.2 / options["mid_channels"], **own, **options)
    with torch.no_grad():
        for name, module in layer.named_modules():
            if isinstance(module, Offset):
                module.weight.zero_()
            elif isinstance(module, nn.Conv2d):
                module.weight.div_(module.in_channels**0.5)
            if isinstance(module, nn.BatchNorm2d) and "expand" not in name:
                module.weight.fill_(0.5)
                module.bias.copy_(3 * (1 - 2 * (torch.arange(len(module.bias)) % 4 == 1)))
                module.running_mean.mul_(0.1)
                module.running_var.fill_(1)
    return layer


def in_float64(layer: nn.Module) -> nn.Module:
    """Return a copy on the CPU that computes with the reference operator."""
    exact = copy.deepcopy(layer).double().cpu()
    exact.backend = "reference"
    return exact


def gradients(y: Tensor, layer: nn.Module, x: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    names = ["y", "x", *(name for name, _ in layer.named_parameters())]
    grads = torch.autograd.grad(y, (x, *layer.parameters()), cotangent.to(y))
    return dict(zip(names, (y.detach(), *grads), strict=True))


def distance(got: dict[str, Tensor], true: dict[str, Tensor], name: str) -> Tensor:
    """Return the relative error. The gradient of a norm's bias is a difference of larger terms, if another norm follows
    it: the error is relative to the gradient of the norm's weight."""
    size = max(true[name].norm(), true[name.replace("norm.bias", "norm.weight")].norm())
    return (got[name].double().cpu() - true[name]).norm() / size


def cancellation(name: str, kind: type, case: str, step: float, training: bool) -> int:
    """Return how much larger than a gradient its terms are: six times where they cancel, as the features are six
    standard deviations from zero."""
    if "norm." in name and training:
        return 6
    # Gradients of the logits sum to zero, but kernels take their mean from the rounded result. In half precision,
    # without a grid, they correct for it.
    if kind is SimpleRepGraph and name.startswith(("theta", "phi")) and (case == "grid" or step < 1e-6):
        return 6
    return 1


def assert_no_worse(got: dict, theirs: dict, true: dict, kind: type, case: str, step: float, training: bool) -> None:
    """Errors of output and gradients against float64 are at most twice those of others and some roundings."""
    for name, want in true.items():
        assert want.abs().max() > 0, name
        roundings = (2 if step > 1e-6 else 16) * cancellation(name, kind, case, step, training)
        error, allowed = (distance(t, true, name) for t in (got, theirs))
        assert got[name].dtype == theirs[name].dtype, name
        assert error <= 2 * allowed + roundings * step, (name, error, allowed)


ON_CPU = itertools.product(["cpu"], ["small", "rounds"], ["float32", "bfloat16", "autocast bfloat16"])
ON_GPU = itertools.product(["cuda"], CASES, ["float32", *HALF, *(f"autocast {half}" for half in HALF)])


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize(
    ("device", "case", "precision"), [*ON_CPU, *(pytest.param(*each, marks=pytest.mark.gpu) for each in ON_GPU)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_as_exact_as_plain_pytorch(
    kind: type, device: str, case: str, precision: str, training: bool, memory_format
) -> None:
    options, shape = CASES[case]
    layer = make_smooth(kind, options, training)
    autocast = precision.removeprefix("autocast ") if precision.startswith("autocast") else None
    dtype = HALF.get(precision, torch.float32)
    layer = layer.to(device, dtype)
    plain, exact = copy.deepcopy(layer), in_float64(layer)
    torch.manual_seed(1)
    x = torch.randn(shape).to(device, dtype).contiguous(memory_format=memory_format).requires_grad_()
    doubled = x.detach().double().cpu().requires_grad_()
    cotangent = torch.randn(shape)
    context = nullcontext() if autocast is None else torch.autocast(device, HALF[autocast])
    with context:
        got, theirs = layer(x), plain_pytorch(plain, x)
    assert got.dtype == theirs.dtype == dtype and got.is_contiguous(memory_format=memory_format)
    mine = gradients(got, layer, x, cotangent)
    low = gradients(theirs, plain, x, cotangent)
    true = gradients(exact(doubled), exact, doubled, cotangent)
    step = torch.finfo(HALF[autocast] if autocast else dtype).eps
    assert_no_worse(mine, low, true, kind, case, step, training)
    tolerance = 1e-3 if step < 1e-6 else 16 * step
    for name, buffer in layer.named_buffers():
        torch.testing.assert_close(
            buffer.double().cpu(), exact.get_buffer(name).double(), rtol=tolerance, atol=tolerance, msg=name
        )


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_in_float32_under_autocast(kind: type) -> None:
    """Nodes some 20 px away, where half precision has steps of 1/8 px."""
    layer, x = build(kind, nodes=9, radius=20.3), torch.randn(1, 8, 45, 67)
    with torch.no_grad():
        layer.offset.weight.mul_(0.1)
        layer.offset.bias.copy_(torch.tensor(layer.spread.points).flatten())
    _, want, _ = layer(x, return_nodes=True)
    with torch.autocast("cpu", torch.bfloat16):
        y, nodes, weights = layer(x, return_nodes=True)
    assert (y.dtype, nodes.dtype, weights.dtype) == (torch.float32, torch.float32, torch.float32)
    assert (nodes - want).abs().max() < 0.02
    assert (want.bfloat16() - want).abs().max() > 0.1  # the error in half precision


@pytest.mark.parametrize("options", [dict(), dict(grid=3), dict(grid="map"), dict(spread="grid")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_offsets_are_in_float32_in_half_precision_layers(kind: type, options: dict) -> None:
    layer = build(kind, nodes=9, **options).bfloat16()
    y, nodes, _ = layer(torch.randn(2, 8, 45, 67).bfloat16(), return_nodes=True)
    assert (y.dtype, nodes.dtype) == (torch.bfloat16, torch.float32)
    feature = torch.randn(2, layer.offset.in_channels, 45, 67).bfloat16()
    got, want = layer.offset(feature), copy.deepcopy(layer.offset).float()(feature.float())
    tolerance = 1e-5 if layer.grid == 1 else 0.01  # the means of cells are in half precision
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    (layer(torch.randn(1, 8, 5, 7).bfloat16()) ** 2).sum().backward()
    assert {p.grad.dtype for p in layer.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast bfloat16"])
def test_fused_layers(precision: str, memory_format, device: str) -> None:
    options, shape = CASES["odd"]
    dtype = HALF.get(precision, torch.float32)
    layer = make_smooth(BottleneckRepGraph, options, False).to(device, dtype)
    exact = in_float64(layer)
    x = torch.randn(shape).to(device, dtype).contiguous(memory_format=memory_format)
    want, errors = exact(x.double().cpu()), []
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=precision.startswith("autocast")):
        for one in (layer, fuse(copy.deepcopy(layer))):
            y = one(x)
            assert y.dtype == dtype and y.is_contiguous(memory_format=memory_format)
            errors.append((y.double().cpu() - want).norm() / want.norm())
    step = torch.finfo(torch.float32 if precision == "float32" else torch.bfloat16).eps
    assert errors[1] <= 1.5 * errors[0] + 4 * step


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_compiled_on_a_gpu(training: bool, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    layer = make_smooth(BottleneckRepGraph, CASES["wide"][0], training).to("cuda", dtype)
    exact = in_float64(layer)
    x = torch.randn(CASES["wide"][1]).to(dtype)
    last = x.cuda().contiguous(memory_format=CHANNELS_LAST).requires_grad_()
    doubled, cotangent = x.double().requires_grad_(), torch.randn(x.shape)
    want = gradients(exact(doubled), exact, doubled, cotangent)
    eager = gradients(layer(last), layer, last, cotangent)
    compiled = gradients(torch.compile(layer, fullgraph=True)(last), layer, last, cotangent)
    assert_no_worse(compiled, eager, want, BottleneckRepGraph, "wide", torch.finfo(dtype).eps, training)


@pytest.mark.gpu
def test_memory_of_inference() -> None:
    """Besides the output, only one narrow map is allocated: the response."""
    layer = fuse(BottleneckRepGraph(1024, 64, final_act=False, device="cuda", dtype=torch.bfloat16).eval())
    x = torch.randn(1, 1024, 128, 128, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=CHANNELS_LAST)
    with torch.no_grad():
        layer(x)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
        assert torch.cuda.max_memory_allocated() - before - y.nbytes < 1.1 * x.nbytes // 1024 * 64


@pytest.mark.gpu
def test_maps_of_more_than_two_to_the_31_elements() -> None:
    """64 x 6144 x 6144 is 2.4e9: windows of the output equal those of crops."""
    layer = build(BottleneckRepGraph, 64, mid_channels=16, nodes=2, radius=4.0, scale=0.05)
    with torch.no_grad():
        layer.offset.weight.mul_(0.05)
        layer.offset.bias.copy_(torch.tensor(layer.spread.points).flatten() + 0.3)
        layer.reduce.weight.div_(8)
        layer.expand.weight.div_(4)
        layer = fuse(layer.to("cuda", torch.bfloat16))
        side, window, margin = 6144, 96, 24
        x = torch.empty((1, 64, side, side), device="cuda", dtype=torch.bfloat16, memory_format=CHANNELS_LAST).normal_()
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
        assert y.shape == x.shape and x.numel() > 2**31 and y.is_contiguous(memory_format=CHANNELS_LAST)
        assert torch.cuda.max_memory_allocated() < 40 * 2**30
        inner, last = slice(margin, window - margin), side - window
        for top, left in [(0, 0), (0, last), (2777, 3333), (side // 2 + 7, 11), (last, last)]:
            rows, columns = slice(top, top + window), slice(left, left + window)
            crop = x[:, :, rows, columns].contiguous(memory_format=CHANNELS_LAST)
            assert layer.regressed(crop)[1].abs().max() < margin - 1  # nodes are inside the crop
            want = layer(crop)[:, :, inner, inner].float()
            got = y[:, :, rows, columns][:, :, inner, inner].float()
            assert want.std() > 0.1
            torch.testing.assert_close(got, want, rtol=2**-5, atol=2**-5)


@pytest.mark.skipif(why_not("triton", DEVICE) is not None, reason="no Triton")
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
def test_training_kernels_together(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training step through all kernels that CUDA uses, against float64."""
    if DEVICE.type == "cpu":  # in the interpreter, whose kernels take maps on the CPU
        for module in (product, pointwise):
            monkeypatch.setattr(module, "fits", lambda *maps: all(map(_dense, maps)))
    torch.manual_seed(0)
    options = dict(nodes=5, radius=2.0, groups=2, rounds=rounds, final_act=False, backend="triton")
    layer = BottleneckRepGraph(32, 16, **options)
    with torch.no_grad():
        for offset in layer.offsets():
            offset.weight.normal_(0, 0.1)
        layer.expand_norm.weight.uniform_(0.5, 1.5)
        layer.expand_norm.bias.normal_()
    half = layer.to(DEVICE, torch.float16)
    exact = in_float64(half)
    x, cotangent = (torch.randn(2, 32, 3, 4, dtype=torch.float16).to(memory_format=CHANNELS_LAST) for _ in range(2))
    ours, doubled = x.to(DEVICE).requires_grad_(), x.double().requires_grad_()
    got = gradients(half(ours), half, ours, cotangent)
    want = gradients(exact(doubled), exact, doubled, cotangent)
    for name, true in want.items():
        assert got[name].dtype == torch.float16, name
        assert (got[name].double().cpu() - true).norm() < 3e-3 * true.norm(), name
    for name, buffer in half.named_buffers():
        true = exact.get_buffer(name).double()
        torch.testing.assert_close(buffer.double().cpu(), true, rtol=5e-3, atol=5e-3, msg=name)


def _dense(t: Tensor) -> bool:
    return t.dtype != torch.float64 and t.is_contiguous(memory_format=CHANNELS_LAST if t.dim() == 4 else FORMATS[0])
