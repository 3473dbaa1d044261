"""RepGraph layers in every precision, on the CPU and on a GPU: as near to float64 as plain PyTorch; and huge maps."""

import copy
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from tests.layers.equations import build
from tests.layers.mechanics import CHANNELS_LAST, Calls
from torch import Tensor, nn

from repgraph import representative_attention
from repgraph.layers import BottleneckRepGraph, SimpleRepGraph

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = dict(channels=8, mid_channels=4, nodes=3), (2, 8, 9, 7)
CASES = {
    "small": SMALL,
    "wide": (dict(channels=256, mid_channels=64, nodes=9), (2, 256, 33, 47)),
    "odd": (dict(channels=72, mid_channels=40, nodes=5, groups=5), (3, 72, 17, 3)),
    "no kernel": (dict(channels=10, mid_channels=5, nodes=4), (2, 10, 13, 11)),
    "grid": (dict(channels=64, mid_channels=32, nodes=4, grid=4), (1, 64, 30, 41)),
}


@pytest.fixture(autouse=True)
def convolutions_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in TensorFloat-32, which is PyTorch's default for them on a GPU."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def written(layer: nn.Module, x: Tensor) -> Tensor:
    """What one would write in PyTorch: convolutions, normalisations and the reference one after the other."""

    def attend(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor) -> Tensor:
        options = dict(groups=layer.groups, grid=layer.grid, scale=layer.scale)
        return representative_attention(query, key, value, offsets, backend="reference", **options)

    if isinstance(layer, SimpleRepGraph):
        query = layer.theta_norm(torch.conv2d(x, layer.theta.weight))
        key = layer.phi_norm(torch.conv2d(x, layer.phi.weight))
        response = attend(query, key, torch.conv2d(x, layer.g.weight), layer.offset(x))
        return x + torch.conv2d(response, layer.w_y.weight, layer.w_y.bias)
    feature = layer.act(layer.reduce_norm(torch.conv2d(x, layer.reduce.weight)))
    response = attend(feature, feature, feature, layer.offset(feature))
    return layer.final_act(x + layer.expand_norm(torch.conv2d(response, layer.expand.weight)))


def made(kind: type, options: dict, training: bool) -> nn.Module:
    """A layer that is smooth where it works, so that a rounding has no more than its own effect.

    Its nodes stand still, its logits are of order 1, and each channel before a ReLU is far above 0 or, one in four,
    far below.
    """
    own = dict(norm_qk=True) if kind is SimpleRepGraph else dict(final_act=False)
    layer = build(kind, training=training, scale=0.2 / options["mid_channels"], **own, **options)
    with torch.no_grad():
        layer.offset.weight.zero_()
        for name, module in layer.named_modules():
            if isinstance(module, nn.Conv2d) and module is not layer.offset:
                module.weight.div_(module.in_channels**0.5)
            if isinstance(module, nn.BatchNorm2d) and "expand" not in name:
                module.weight.fill_(0.5)
                module.bias.copy_(3 * (1 - 2 * (torch.arange(len(module.bias)) % 4 == 1)))
                module.running_mean.mul_(0.1)
                module.running_var.fill_(1)
    return layer


def gradients(y: Tensor, layer: nn.Module, x: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    names = ["y", "x", *(name for name, _ in layer.named_parameters())]
    grads = torch.autograd.grad(y, (x, *layer.parameters()), cotangent.to(y))
    return dict(zip(names, (y.detach(), *grads), strict=True))


def distance(got: dict[str, Tensor], true: dict[str, Tensor], name: str) -> Tensor:
    """Relative error. What normalisations add is taken out by the next one, so that their gradients are what is left
    of larger terms: of the size of the scale's gradient."""
    size = max(true[name].norm(), true[name.replace("norm.bias", "norm.weight")].norm())
    return (got[name].double().cpu() - true[name]).norm() / size


def terms(name: str, kind: type, case: str, step: float, training: bool) -> int:
    """How much larger than the gradient its terms are: six times where they cancel, since that is how far the features
    are from zero in deviations."""
    if "norm." in name and training:
        return 6
    # Logits' gradients sum to zero, so that what keys have in common does not count; but the kernels take the mean of
    # these gradients from the result, and its rounding does. In half precision, without a grid, they take it out again.
    if kind is SimpleRepGraph and name.startswith(("theta", "phi")) and (case == "grid" or step < 1e-6):
        return 6
    return 1


def assert_near_plain(kind: type, case: str, precision: str, training: bool, memory_format, device: str) -> None:
    """Result and all gradients err no more, against float64 on the CPU, than plain PyTorch, and some roundings."""
    options, shape = CASES[case]
    layer = made(kind, options, training)
    autocast = precision.removeprefix("autocast ") if precision.startswith("autocast") else None
    dtype = HALF.get(precision, torch.float32)
    layer = layer.to(device, dtype)
    plain, exact = copy.deepcopy(layer), copy.deepcopy(layer).double().cpu()
    torch.manual_seed(1)
    x = torch.randn(shape).to(device, dtype).contiguous(memory_format=memory_format).requires_grad_()
    doubled = x.detach().double().cpu().requires_grad_()
    cotangent = torch.randn(shape)
    context = nullcontext() if autocast is None else torch.autocast(device, HALF[autocast])
    with context:
        got, theirs = layer(x), written(plain, x)
    assert got.dtype == theirs.dtype == dtype and got.is_contiguous(memory_format=memory_format)
    mine = gradients(got, layer, x, cotangent)
    low = gradients(theirs, plain, x, cotangent)
    true = gradients(exact(doubled), exact, doubled, cotangent)
    step = torch.finfo(HALF[autocast] if autocast else dtype).eps
    for name, want in true.items():
        assert want.abs().max() > 0, name
        roundings = (2 if step > 1e-6 else 16) * terms(name, kind, case, step, training)
        error, plain_error = (distance(t, true, name) for t in (mine, low))
        assert mine[name].dtype == low[name].dtype, name
        assert error <= 2 * plain_error + roundings * step, (name, error, plain_error)
    tolerance = 1e-3 if step < 1e-6 else 16 * step
    for name, buffer in layer.named_buffers():
        torch.testing.assert_close(
            buffer.double().cpu(), exact.get_buffer(name).double(), rtol=tolerance, atol=tolerance, msg=name
        )


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast bfloat16"])
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_as_near_as_plain_pytorch(kind: type, precision: str, training: bool, memory_format) -> None:
    assert_near_plain(kind, "small", precision, training, memory_format, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16", "autocast bfloat16", "autocast float16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_as_near_as_plain_pytorch_on_a_gpu(
    kind: type, case: str, precision: str, training: bool, memory_format
) -> None:
    assert_near_plain(kind, case, precision, training, memory_format, "cuda")


FUSED = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", FUSED)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, CHANNELS_LAST], ids=str)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast bfloat16"])
def test_fused_layers(precision: str, memory_format, device: str) -> None:
    options, shape = CASES["odd"]
    dtype = HALF.get(precision, torch.float32)
    layer = made(BottleneckRepGraph, options, False).to(device, dtype)
    exact = copy.deepcopy(layer).double().cpu()
    x = torch.randn(shape).to(device, dtype).contiguous(memory_format=memory_format)
    want = exact(x.double().cpu())
    errors = []
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=precision.startswith("autocast")):
        for one in (layer, copy.deepcopy(layer).fuse()):
            y = one(x)
            assert y.dtype == dtype and y.is_contiguous(memory_format=memory_format)
            errors.append((y.double().cpu() - want).norm() / want.norm())
    step = torch.finfo(torch.float32 if precision == "float32" else torch.bfloat16).eps
    assert errors[1] <= 1.5 * errors[0] + 4 * step


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("form", "dtype", "kernels"),
    [
        ("eval", torch.bfloat16, {"residual_product", "wide_product"}),
        ("train", torch.bfloat16, {"residual_product", "wide_product"}),
        ("fused", torch.bfloat16, {"residual_product", "relu_products"}),
        ("fused", torch.float32, {"residual_product", "wide_product"}),
    ],
)
def test_channels_last_maps_take_the_kernels(form: str, dtype: torch.dtype, kernels: set[str]) -> None:
    layer = made(BottleneckRepGraph, CASES["wide"][0], form == "train").to("cuda", dtype)
    if form == "fused":
        layer.fuse()
    x = torch.randn(CASES["wide"][1], device="cuda", dtype=dtype)
    seen = []
    for memory_format in (CHANNELS_LAST, torch.contiguous_format):
        with torch.no_grad(), Calls() as calls:
            layer(x.contiguous(memory_format=memory_format))
        seen.append({"residual_product", "wide_product", "relu_products"} & set(calls.seen))
    assert seen == [kernels, set()]


@pytest.mark.gpu
def test_a_float32_layer_with_nodes_that_move() -> None:
    options, shape = CASES["wide"]
    for training in (False, True):
        layer = made(BottleneckRepGraph, options, training)
        nn.init.normal_(layer.offset.weight, std=0.2)
        exact, x = copy.deepcopy(layer).double(), torch.randn(shape)
        last = x.cuda().contiguous(memory_format=CHANNELS_LAST)
        got, want = layer.cuda()(last), exact(x.double())
        assert (got.double().cpu() - want).norm() < 1e-4 * want.norm()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_compiled_on_a_gpu(training: bool) -> None:
    torch._dynamo.reset()
    layer = made(BottleneckRepGraph, CASES["wide"][0], training).to("cuda", torch.bfloat16)
    exact = copy.deepcopy(layer).double().cpu()
    x = torch.randn(CASES["wide"][1]).bfloat16()
    last = x.cuda().contiguous(memory_format=CHANNELS_LAST).requires_grad_()
    doubled = x.double().requires_grad_()
    cotangent = torch.randn(x.shape)
    want = gradients(exact(doubled), exact, doubled, cotangent)
    eager = gradients(layer(last), layer, last, cotangent)
    compiled = gradients(torch.compile(layer, fullgraph=True)(last), layer, last, cotangent)
    for name, true in want.items():
        assert true.abs().max() > 0, name
        error, allowed = (distance(t, want, name) for t in (compiled, eager))
        roundings = 2 * terms(name, BottleneckRepGraph, "wide", 2**-7, training)
        assert error <= 2 * allowed + roundings * 2**-7, (name, error, allowed)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_in_float32_on_a_gpu() -> None:
    torch._dynamo.reset()
    layer = made(BottleneckRepGraph, CASES["wide"][0], False).cuda().fuse()
    nn.init.normal_(layer.offset.weight, std=0.2)
    x = torch.randn(CASES["wide"][1], device="cuda").contiguous(memory_format=CHANNELS_LAST)
    with torch.no_grad():
        eager, compiled = layer(x), torch.compile(layer, fullgraph=True)(x)
    assert (compiled - eager).norm() < 1e-5 * eager.norm()


@pytest.mark.gpu
def test_threads_share_a_layer_on_a_gpu() -> None:
    layer = made(BottleneckRepGraph, CASES["wide"][0], False).to("cuda", torch.bfloat16)
    inputs = [
        torch.randn(1, 256, 20 + i, 30, device="cuda").bfloat16().contiguous(memory_format=CHANNELS_LAST)
        for i in range(8)
    ]

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return layer(x)

    want = [run(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for got, expected in zip(pool.map(run, inputs), want, strict=True):
                torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_memory_of_inference(kind: type) -> None:
    """While the result is made there is one narrow map beside it: the response."""
    options = {} if kind is SimpleRepGraph else {"final_act": False}
    layer = kind(1024, 64, **options, device="cuda", dtype=torch.bfloat16).eval().fuse()
    x = torch.randn(1, 1024, 128, 128, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=CHANNELS_LAST)
    with torch.no_grad():
        layer(x)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
        response = x.numel() // 1024 * 64 * 2
        assert torch.cuda.max_memory_allocated() - before - y.numel() * 2 < 1.1 * response


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_maps_of_more_than_two_to_the_31_elements(dtype: torch.dtype) -> None:
    """64 x 6144 x 6144 is 2.4e9: windows of the result are those of the same computed on crops."""
    layer = build(BottleneckRepGraph, 64, mid_channels=16, nodes=2, radius=4.0, scale=0.05)
    with torch.no_grad():
        layer.offset.weight.mul_(0.05)
        layer.offset.bias.copy_(torch.tensor(layer.spread.points).flatten() + 0.3)
        layer.reduce.weight.div_(8)
        layer.expand.weight.div_(4)
        layer = layer.to("cuda", dtype).fuse()
        side, window, margin = 6144, 96, 24
        x = torch.empty((1, 64, side, side), device="cuda", dtype=dtype, memory_format=CHANNELS_LAST).normal_()
        assert x.numel() > 2**31
        torch.cuda.reset_peak_memory_stats()
        y = layer(x)
        assert y.shape == x.shape and y.is_contiguous(memory_format=CHANNELS_LAST)
        assert torch.cuda.max_memory_allocated() < 40 * 2**30
        inner = slice(margin, window - margin)
        for top, left in [
            (0, 0),
            (0, side - window),
            (2777, 3333),
            (side // 2 + 7, 11),
            (side - window, side - window),
        ]:
            rows, columns = slice(top, top + window), slice(left, left + window)
            crop = x[:, :, rows, columns].contiguous(memory_format=CHANNELS_LAST)
            assert layer.offset(layer.reduced(crop)[0]).abs().max() < margin - 1  # what is compared sees the crop alone
            want = layer(crop)[:, :, inner, inner].float()
            got = y[:, :, rows, columns][:, :, inner, inner].float()
            assert want.std() > 0.1
            torch.testing.assert_close(got, want, rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)
