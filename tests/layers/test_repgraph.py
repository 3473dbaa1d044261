"""The RepGraph layers against their equations, how they start and learn, and what they reject."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from tests.layers import mechanics
from tests.layers.equations import build, equations
from tests.layers.mechanics import CHANNELS_LAST, FORMATS
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from repgraph import DeformableAttention
from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, DANetHead, DualAttention, NonLocal, SimpleRepGraph, fuse
from repgraph.layers.pyramid import PyramidRepGraph

KINDS = [BottleneckRepGraph, SimpleRepGraph]
POINTS = ((0.5, -1.25), (-2.0, 0.75), (1.0, 3.0))
Group = partial(nn.GroupNorm, 2)
SHARED = [
    dict(nodes=9),
    dict(nodes=1),
    dict(nodes=2, groups=2),
    dict(nodes=3, grid=2, fusion="concat"),
    dict(nodes=4, grid="map", groups=4),
    dict(nodes=2, grid=11, spread="default"),
    dict(nodes=4, spread="grid", mid_channels=6, groups=3, scale=0.3),
    dict(nodes=3, grid="map", spread="grid"),
    dict(nodes=3, spread=POINTS, grid=2),
    dict(nodes=3, spread="default", mid_channels=1),
    dict(nodes=3, node_view=3, groups=2, spread="grid"),
    dict(nodes=2, node_view=9, grid=2),
    dict(nodes=3, rounds=2, groups=2, radius=[3.0, 1.5]),
    dict(nodes=2, rounds=3, grid=2, node_view=3, fusion="concat", scale=0.1),
]
VARIANTS = [
    *((kind, options) for kind in KINDS for options in SHARED),
    (BottleneckRepGraph, dict(nodes=3, norm_layer=None, act_layer=nn.Tanh)),
    (BottleneckRepGraph, dict(nodes=3, norm_layer=Group, fusion="concat", final_act=False)),
    (BottleneckRepGraph, dict(nodes=3, norm_expand=False, node_view=5, fusion="concat")),
    (SimpleRepGraph, dict(nodes=3, norm_qk=True)),
    (SimpleRepGraph, dict(nodes=3, norm_qk=True, fusion="concat")),
]
MODES = [(*variant, False) for variant in VARIANTS] + [
    (kind, options, True) for kind, options in VARIANTS if kind is BottleneckRepGraph or "norm_qk" in options
]


def name(value) -> str:
    if isinstance(value, bool):
        return "train" if value else "eval"
    if isinstance(value, type):
        return value.__name__
    return " ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in value.items())


# Layers in float64 are slow: kernels have to be compiled for it.
EXACT = pytest.mark.parametrize("backend", ["reference", pytest.param("auto", marks=pytest.mark.slow)])


@EXACT
@pytest.mark.parametrize(("kind", "options", "training"), MODES, ids=name)
def test_output_matches_the_equations(kind: type, options: dict, training: bool, backend: str) -> None:
    layer = build(kind, training=training, **options)
    exact = copy.deepcopy(layer).double()
    exact.backend = backend
    for shape in [(2, 8, 3, 4), (2, 8, 1, 1), (1, 8, 1, 4), (1, 8, 2, 2)]:
        x = torch.randn(shape)
        with torch.no_grad():
            want = equations(exact, x.double())
        assert want.shape[1] == layer.out_channels
        for memory_format in FORMATS:
            x = x.contiguous(memory_format=memory_format)
            torch.testing.assert_close(exact(x.double()), want, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer(x).double(), want, rtol=1e-3, atol=1e-3)


@EXACT
@pytest.mark.parametrize(("kind", "options", "training"), [m for m in MODES if m[1]["nodes"] == 3], ids=name)
def test_gradients_match_the_equations(kind: type, options: dict, training: bool, backend: str) -> None:
    layer = build(kind, training=training, backend=backend, **options).double()
    for memory_format in FORMATS:
        x = torch.randn(2, 8, 3, 3, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
        inputs = dict(x=x, **dict(layer.named_parameters()))
        got, want = (torch.autograd.grad(y.pow(3).sum(), inputs.values()) for y in (layer(x), equations(layer, x)))
        for key, a, b in zip(inputs, got, want, strict=True):
            assert b.abs().max() > 1e-6, key
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7, msg=key)


FORMATTED = [dict(), dict(fusion="concat", grid=3), dict(grid="map", groups=2), dict(fusion="concat", mid_channels=1)]
FORMATTED += [dict(rounds=2, scale=0.1)]


@pytest.mark.parametrize("options", FORMATTED, ids=name)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", KINDS)
def test_output_has_the_memory_format_of_the_input(kind: type, training: bool, options: dict) -> None:
    layer = build(kind, training=training, nodes=3, **options)
    mechanics.assert_format_follows_input(layer, torch.randn(2, 8, 5, 7))
    if not training:
        mechanics.assert_format_follows_input(fuse(layer), torch.randn(2, 8, 5, 7))


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d, Group], ids=["none", "batch", "group"])
def test_in_place_activations(norm) -> None:
    layer = build(BottleneckRepGraph, norm_layer=norm, act_layer=partial(nn.ReLU, inplace=True), training=True, nodes=3)
    plain = build(BottleneckRepGraph, norm_layer=norm, training=True, nodes=3)
    x = torch.randn(2, 8, 5, 7).contiguous(memory_format=CHANNELS_LAST).requires_grad_()
    grads = [torch.autograd.grad(one(x).pow(2).sum(), (x, *one.parameters())) for one in (layer, plain)]
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (BottleneckRepGraph, dict()),
        (BottleneckRepGraph, dict(norm_layer=None)),
        (BottleneckRepGraph, dict(norm_expand=False)),
        (BottleneckRepGraph, dict(norm_layer=Group, grid=2)),
        (BottleneckRepGraph, dict(norm_layer=FrozenBatchNorm2d)),
        (BottleneckRepGraph, dict(rounds=3)),
        (SimpleRepGraph, dict()),
        (SimpleRepGraph, dict(norm_qk=True, grid="map")),
        (SimpleRepGraph, dict(rounds=2)),
        (NonLocal, dict()),
        (DualAttention, dict()),
    ],
    ids=name,
)
def test_starts_as_identity_and_learns(kind: type, options: dict) -> None:
    torch.manual_seed(0)
    layer, x = kind(8, **getattr(kind, "INSERTED", {}), **options), torch.randn(2, 8, 5, 7)
    for memory_format in FORMATS:
        for training in (False, True):
            assert torch.equal(layer.train(training)(x.contiguous(memory_format=memory_format)), x)
    optimizer, learned = torch.optim.SGD(layer.parameters(), 0.1), set()
    for _ in range(2):
        optimizer.zero_grad()
        (layer(x) - x.roll(1, 3)).square().mean().backward()
        learned |= {name for name, p in layer.named_parameters() if p.grad is not None and p.grad.any()}
        optimizer.step()
    assert learned == {name for name, _ in layer.named_parameters()}
    assert not torch.equal(layer(x), x)


def test_with_convolution_and_norm_zero_as_in_the_paper_only_the_bias_learns() -> None:
    layer, x = BottleneckRepGraph(8, **BottleneckRepGraph.INSERTED), torch.randn(2, 8, 5, 7)
    nn.init.zeros_(layer.expand.weight)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(5):
        optimizer.zero_grad()
        (layer(x) - x.roll(1, 3)).square().mean().backward()
        learned = {key for key, p in layer.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        assert learned == {"expand_norm.bias"}
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
def test_each_round_returns_its_nodes(kind: type) -> None:
    """Rings from far to near, around each query of the round."""
    one, layer = kind(8, nodes=5), kind(8, nodes=5, rounds=3, radius=8, groups=2)
    assert set(one.state_dict()) < set(layer.state_dict())
    _, nodes, weights = layer(torch.randn(1, 8, 33, 35), return_nodes=True)
    assert len(nodes) == len(weights) == 3 and {each.shape for each in weights} == {(1, 2, 5, 33, 35)}
    for each, radius in zip(nodes, (8, 4, 2), strict=True):
        torch.testing.assert_close(each[0, 1, :, 3, 7], torch.tensor([7.0 + radius, 3.0]))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", KINDS)
def test_empty_batch_and_meta_device(kind: type, training: bool) -> None:
    layer = kind(8, grid=2).train(training)
    y = layer(torch.randn(0, 8, 3, 5, requires_grad=True))
    y.sum().backward()
    assert y.shape == (0, 8, 3, 5)
    assert {p.grad.abs().sum().item() for p in layer.parameters()} == {0.0}
    layer = kind(8, fusion="concat", device="meta", dtype=torch.bfloat16).train(training)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.bfloat16)}
    y = layer(torch.empty(1, 8, 300, 400, device="meta", dtype=torch.bfloat16))
    assert (y.shape, y.device.type) == ((1, 16, 300, 400), "meta")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(channels=0), ValueError, "channels is 0; expected an integer from 1 to 65536"),
        (dict(nodes=100000000), ValueError, "nodes is 100000000; expected an integer from 1 to 65536"),
        (dict(grid="all"), TypeError, "grid is 'all'; expected an integer"),
        (dict(groups=3), ValueError, "groups is 3; expected a divisor of the 4 inner channels"),
        (dict(spread="rings"), ValueError, "spread is 'rings'; expected one of 'ring', 'grid', 'default', or one"),
        (dict(spread=POINTS), ValueError, r"spread has 3 points; expected a finite \(x, y\) for each of the 9 nodes"),
        (dict(spread=[(1.0, float("inf"))] * 9), ValueError, r"expected a finite \(x, y\) for each of the 9"),
        (dict(radius=[4.0], rounds=2), ValueError, r"radius is \[4.0\]; .* one for each of 2 rounds"),
        (dict(radius=4.0, spread="grid"), ValueError, "radius is 4.0, but spread 'grid' with grid=1 has none"),
        (dict(node_view=2), ValueError, "node_view is 2; expected an odd integer"),
        (dict(kind=NonLocal, attention="flash"), ValueError, "attention is 'flash'; expected one of 'sdpa', 'plain'"),
        (dict(kind=DualAttention, fusion="concat"), ValueError, "fusion is 'concat'; dual attention supports 'sum' o"),
        (dict(kind=PyramidRepGraph, groups=3), UsageError, "groups is 3; expected a divisor of the 8 channels"),
        (dict(kind=DeformableAttention, heads=5), UsageError, "heads is 5; expected a divisor of the 8 channels"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_invalid_options(options: dict, error: type, message: str) -> None:
    options = dict(kind=BottleneckRepGraph, channels=8) | options
    with pytest.raises(error, match=message):
        options.pop("kind")(**options)


@pytest.mark.parametrize("kind", [*KINDS, NonLocal, DualAttention, partial(DANetHead, num_classes=3)])
def test_invalid_inputs(kind: Callable[[int], nn.Module]) -> None:
    layer = kind(8)
    for bad in (torch.zeros(8, 3, 5), torch.zeros(1, 7, 3, 5), torch.zeros(1, 8, 0, 5), torch.zeros(1, 8, 5, 0)):
        with pytest.raises(ValueError, match=r"input has shape .*; expected \(B, 8, H, W\)"):
            layer(bad)
    with pytest.raises(TypeError, match=r"input is a list; expected a torch.Tensor of shape \(B, 8, H, W\)"):
        layer([1.0])
    for dtype in (torch.float64, torch.int64):
        with pytest.raises(TypeError, match=f"input is {dtype} and the weights are torch.float32; use x.to"):
            layer(torch.zeros(1, 8, 3, 5, dtype=dtype))
    with pytest.raises(TypeError, match=r"input is torch.float64"), torch.autocast("cpu", torch.bfloat16):
        layer(torch.zeros(1, 8, 3, 5, dtype=torch.float64))  # which autocast does not change
