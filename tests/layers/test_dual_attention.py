"""DANet's attentions and head against their equations, and their manners in PyTorch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.layers import mechanics
from tests.layers.mechanics import CHANNELS_LAST, Calls
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from repgraph.layers.danet import DANetHead
from repgraph.layers.dual_attention import ChannelAttention, DualAttention, PositionAttention


def fill(module: nn.Module, seed: int = 0) -> nn.Module:
    """In evaluation mode, with parameters (the gammas too) and statistics of some size."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if "var" in name:
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                fan_in = tensor[0].numel() if tensor.dim() > 1 else 1
                tensor.normal_().div_(fan_in**0.5)
    return module.eval()


def build(channels: int = 8, seed: int = 0, **options) -> DualAttention:
    layer = fill(DualAttention(channels, **options), seed)
    assert isinstance(layer, DualAttention)
    return layer


def head(seed: int = 0, **options) -> DANetHead:
    made = fill(DANetHead(10, 8, num_classes=3, **options), seed)
    assert isinstance(made, DANetHead)
    return made


def position_by_position(module: PositionAttention, x: Tensor) -> Tensor:
    def project(convolution: nn.Conv2d) -> Tensor:
        assert convolution.bias is not None
        return torch.einsum("oc,bcn->bon", convolution.weight[:, :, 0, 0], x.flatten(2)) + convolution.bias[:, None]

    query, key, value = project(module.query), project(module.key), project(module.value)
    columns = []
    for b in range(x.shape[0]):
        for p in range(query.shape[2]):
            powers = torch.stack([query[b, :, p] @ k for k in key[b].T]).exp()
            columns.append(value[b] @ (powers / powers.sum()))
    return torch.stack(columns).view(x.shape[0], -1, x.shape[1]).mT.reshape(x.shape)


def channel_by_channel(x: Tensor) -> Tensor:
    result = []
    for own in x:
        energy = torch.stack([torch.stack([(a * b).sum() for b in own]) for a in own])
        for row in energy:
            powers = (row.max() - row - (row.max() - row.min())).exp()
            result.append(sum(w * other for w, other in zip(powers / powers.sum(), own, strict=True)))
    return torch.stack(result).view(x.shape)


def equations(layer: DualAttention, x: Tensor) -> Tensor:
    return x + layer.gamma_p * position_by_position(layer.position, x) + layer.gamma_c * channel_by_channel(x)


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
@pytest.mark.parametrize("mid_channels", [None, 3, 8])
def test_follows_the_equations(mid_channels: int | None, attention: str) -> None:
    layer = build(mid_channels=mid_channels, attention=attention)
    assert layer.position.query.out_channels == (mid_channels or 1)
    exact = copy.deepcopy(layer).double()
    for shape in [(2, 8, 3, 5), (1, 8, 1, 1), (1, 8, 7, 1)]:
        for memory_format in (torch.contiguous_format, CHANNELS_LAST):
            x = torch.randn(shape).contiguous(memory_format=memory_format)
            want = equations(exact, x.double())
            torch.testing.assert_close(exact(x.double()), want, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer(x).double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_gradients_are_those_of_the_equations(attention: str) -> None:
    layer = build(mid_channels=3, attention=attention).double()
    x = torch.randn(2, 8, 3, 2, dtype=torch.float64).contiguous(memory_format=CHANNELS_LAST).requires_grad_()
    inputs = (x, *layer.parameters())
    names = ("x", *(name for name, _ in layer.named_parameters()))
    got, want = (torch.autograd.grad(y.pow(3).sum(), inputs) for y in (layer(x), equations(layer, x)))
    for name, a, b in zip(names, got, want, strict=True):
        if name == "position.key.bias":  # one number for all keys: no softmax sees it
            assert b.abs().max() < 1e-10
        else:
            assert b.abs().max() > 1e-6, name
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, CHANNELS_LAST], ids=str)
def test_energies_of_half_precision_maps_are_in_float32(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    """Over 2145 positions channels that are alike have energies of 8e4 +- 5e2: what counts is the difference, while
    float16 ends at 65504, and bfloat16 has steps of 512 there."""
    torch.manual_seed(0)
    x = 6 * torch.randn(2, 1, 33, 65) + 2 * torch.randn(2, 4, 33, 65)
    x = x.to(dtype).contiguous(memory_format=memory_format)
    flat = x.double().flatten(2)
    energy = flat @ flat.mT
    want = (torch.softmax(energy.amax(-1, keepdim=True) - energy, -1) @ flat).view(x.shape)
    rough = x.flatten(2) @ x.flatten(2).mT
    rough = (torch.softmax(rough.amax(-1, keepdim=True) - rough, -1) @ x.flatten(2)).view(x.shape)
    module = ChannelAttention(dtype=dtype)
    nn.init.ones_(module.gamma)
    got = module(x)
    assert got.dtype == dtype and got.is_contiguous(memory_format=memory_format)
    steps = torch.finfo(dtype).eps * want.abs().max()
    assert (got.double() - want).abs().max() < 2 * steps
    assert not (rough.double() - want).abs().max() < 8 * steps  # what the sum in half precision gives


def size(t: Tensor) -> float:
    return float(t.square().mean().sqrt())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_is_no_worse_than_pytorch_written_out(dtype: torch.dtype) -> None:
    layer = build(16)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(2, 16, 33, 21).to(dtype)
    half = x.bfloat16().flatten(2)
    with torch.autocast("cpu", torch.bfloat16):
        y, position, channel = layer(x), layer.position.respond(x), layer.channel.respond(x)
        convolutions = layer.position.query, layer.position.key, layer.position.value
        query, key, value = (F.conv2d(x, c.weight, c.bias).flatten(2) for c in convolutions)
        written = (value @ torch.softmax(query.mT @ key, -1).to(value.dtype).mT).view(x.shape)
    assert y.dtype == dtype  # a half-precision map stays one
    want = exact.position.respond(x.double())
    error = size(written - want)
    assert size(position - want) < error + size(want) / 256
    want = exact(x.double())
    assert size(y - want) < error + size(want) / 256
    # The energies are those of the map as it came: nothing is rounded but the weights and the product.
    want = exact.channel.respond(x.double())
    assert size(channel - want) < size(want) / 256
    rough = (torch.softmax(-(half @ half.mT), -1) @ half).view(x.shape)
    assert size(rough - want) > size(want) / 256


def test_channels_last_maps_are_never_copied() -> None:
    x = torch.randn(2, 8, 3, 5).contiguous(memory_format=CHANNELS_LAST)
    layer = build()
    for module in (layer.channel, layer):
        with torch.no_grad(), Calls() as calls:
            y = module(x)
        assert y.is_contiguous(memory_format=CHANNELS_LAST)
        assert not {"clone", "copy_", "_to_copy"} & set(calls.seen), calls.seen


def test_starts_as_the_identity_and_learns() -> None:
    torch.manual_seed(0)
    mechanics.assert_starts_as_the_identity_and_learns(
        DualAttention(8, **DualAttention.INSERTED), {"position.gamma", "channel.gamma"}
    )


def test_head_is_the_published_one() -> None:
    """Written out with PyTorch's functions in float64."""
    made = head().double()
    x = torch.randn(2, 10, 3, 5, dtype=torch.float64)

    def block(t: Tensor, name: str) -> Tensor:
        convolution, norm, _ = made.get_submodule(name)
        t = F.conv2d(t, convolution.weight, padding=1)
        mean, var = (s[:, None, None] for s in (norm.running_mean, norm.running_var))
        return (norm.weight[:, None, None] * (t - mean) / (var + 1e-5).sqrt() + norm.bias[:, None, None]).clamp(min=0)

    def classify(t: Tensor, name: str) -> Tensor:
        return F.conv2d(t, made.get_submodule(name)[1].weight, made.get_submodule(name)[1].bias)

    a, c = block(x, "conv5a"), block(x, "conv5c")
    a = block(a + made.position.gamma * position_by_position(made.position, a), "conv51")
    c = block(c + made.channel.gamma * channel_by_channel(c), "conv52")
    want = classify(a + c, "conv8"), classify(a, "conv6"), classify(c, "conv7")
    got = made(x, all_outputs=True)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    assert torch.equal(made(x), got[0]) and made.out_channels == 3


def test_dropout_leaves_out_channels_in_training() -> None:
    x = torch.randn(2, 10, 3, 5)
    made = head(dropout=1.0)
    assert made(x).std((2, 3)).min() > 0
    made.train()
    for y, classifier in zip(made(x, all_outputs=True), (made.conv8, made.conv6, made.conv7), strict=True):
        assert torch.equal(y, classifier[1].bias[:, None, None].expand(2, 3, 3, 5))
    assert head().conv8[0].p == 0.1


def test_head_has_the_multiply_adds_of_the_published_one() -> None:
    """The paper's table: 785.01 G for 2048 x 128 x 256, 512 inside and 19 classes.

    That number has no matrix products. It is the convolutions (784.788) with their biases, two for each element that
    is normalised and one for each that is activated.
    """
    made = DANetHead(2048, 512, num_classes=19, attention="plain", device="meta")
    counts = dict.fromkeys(("convolutions", "rest"), 0)

    def count(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            positions = output.numel() // module.out_channels
            counts["convolutions"] += module.weight.numel() * positions
            counts["rest"] += output.numel() if module.bias is not None else 0
        else:
            counts["rest"] += output.numel() * (2 if isinstance(module, nn.BatchNorm2d) else 1)

    for module in made.modules():
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)):
            module.register_forward_hook(count)
    with FlopCounterMode(display=False) as flops:
        outputs = made(torch.empty(1, 2048, 128, 256, device="meta"), all_outputs=True)
    assert [tuple(y.shape) for y in outputs] == [(1, 19, 128, 256)] * 3
    positions = 128 * 256
    products = flops.get_total_flops() / 2 - counts["convolutions"]  # of what ran
    assert products == positions**2 * (64 + 512) + 2 * 512 * 512 * positions
    assert counts["convolutions"] / 1e9 == pytest.approx(784.788, abs=0.001)
    assert sum(counts.values()) / 1e9 == pytest.approx(785.01, abs=0.01)
    assert (sum(counts.values()) + products) / 1e9 == pytest.approx(1420.7, abs=0.1)


def test_empty_batch_and_meta_device() -> None:
    assert build()(torch.randn(0, 8, 3, 5)).shape == (0, 8, 3, 5)
    assert head()(torch.randn(0, 10, 3, 5)).shape == (0, 3, 3, 5)
    layer = DualAttention(8, device="meta", dtype=torch.bfloat16)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.bfloat16)}
    assert layer(torch.empty(1, 8, 300, 400, device="meta", dtype=torch.bfloat16)).shape == (1, 8, 300, 400)


MADE = {
    "layer": (build, 8),
    "plain": (lambda **o: build(mid_channels=4, attention="plain", **o), 8),
    "head": (head, 10),
}


@pytest.mark.parametrize("name", MADE)
class TestAtHomeInPyTorch:
    def test_format_follows_the_input(self, name: str) -> None:
        make, channels = MADE[name]
        mechanics.assert_format_follows_input(make(), torch.randn(2, channels, 5, 7))

    def test_copies(self, name: str) -> None:
        make, channels = MADE[name]
        mechanics.assert_copies_compute_the_same(make(), make(seed=1), torch.randn(1, channels, 3, 5))

    def test_compile(self, name: str) -> None:
        make, channels = MADE[name]
        mechanics.assert_compiles_once_for_all_sizes(make(), channels)

    def test_export(self, name: str) -> None:
        make, channels = MADE[name]
        mechanics.assert_exports(make(), channels)

    def test_onnx(self, name: str, tmp_path) -> None:
        make, channels = MADE[name]
        mechanics.assert_runs_in_onnxruntime(make(), channels, tmp_path)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # what PyTorch itself uses
def test_compiles_with_inductor() -> None:
    torch._dynamo.reset()
    layer, x = build(), torch.randn(1, 8, 5, 7).contiguous(memory_format=CHANNELS_LAST)
    y = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(y, layer(x), rtol=1e-4, atol=1e-4)
    assert y.is_contiguous(memory_format=CHANNELS_LAST)


def test_repr() -> None:
    assert "(position): PositionAttention(\n    16, 2, attention='sdpa'" in repr(DualAttention(16))
    assert "DANetHead(\n  10, 8, num_classes=3\n" in repr(head())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(fusion="concat"), ValueError, "fusion is 'concat'; dual attention has no other than 'sum'"),
        (dict(channels=0), ValueError, "channels is 0; at least 1"),
        (dict(channels=True), TypeError, "channels is True; a whole number"),
        (dict(mid_channels=0), ValueError, "mid_channels is 0; at least 1"),
        (dict(attention="math"), ValueError, "unknown attention 'math': choose one of 'sdpa', 'plain'"),
    ],
    ids=str,
)
def test_bad_options(options: dict, error: type, message: str) -> None:
    assert DualAttention(8, fusion="sum").out_channels == 8
    with pytest.raises(error, match=message):
        DualAttention(**(dict(channels=8) | options))


@pytest.mark.parametrize("name", ["in_channels", "mid_channels", "num_classes"])
def test_bad_options_of_the_head(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; at least 1 is needed"):
        DANetHead(**(dict(in_channels=10, mid_channels=8, num_classes=3) | {name: 0}))


def test_bad_inputs() -> None:
    for module, channels in ((DualAttention(8), 8), (head(), 10)):
        for bad in (torch.zeros(channels, 3, 5), torch.zeros(1, 7, 3, 5), torch.zeros(1, channels, 3, 0)):
            with pytest.raises(ValueError, match=rf"the input has shape .*; \(B, {channels}, H, W\) is needed"):
                module(bad)
        with pytest.raises(TypeError, match="the input is a NoneType"):
            module(None)
