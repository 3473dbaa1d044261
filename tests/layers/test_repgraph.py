"""The Simple and Bottleneck RepGraph layers against their equations, and how they start and learn."""

import copy
from functools import partial

import pytest
import torch
from tests.layers import mechanics
from tests.layers.equations import build, equations
from tests.layers.mechanics import CHANNELS_LAST
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph

FORMATS = (torch.contiguous_format, CHANNELS_LAST)
POINTS = ((0.5, -1.25), (-2.0, 0.75), (1.0, 3.0))
Group = partial(nn.GroupNorm, 2)

SHARED = [
    dict(nodes=9),
    dict(nodes=1),
    dict(nodes=2, groups=2),
    dict(nodes=3, grid=2, fusion="concat"),
    dict(nodes=3, grid=3, spread="rings"),
    dict(nodes=4, grid="map", groups=4),
    dict(nodes=2, grid=11, spread="default"),
    dict(nodes=4, spread="grid", mid_channels=6, groups=3, scale=0.3),
    dict(nodes=3, grid="map", spread="grid"),
    dict(nodes=3, spread=POINTS, grid=2),
    dict(nodes=3, spread="default", mid_channels=1),
    dict(nodes=3, offset_view=3, learn_scale=True),
    dict(nodes=3, node_view=3, groups=2, spread="grid"),
    dict(nodes=2, node_view=9, grid=2),
    dict(nodes=2, offset_view=5, grid=2, offset_unit="map"),
    dict(nodes=3, offset_view="map", offset_unit="map", spread="default", groups=2),
    dict(nodes=3, offset_view="map", grid=2, spread="grid", offset_unit="map"),
    dict(nodes=5, spread="regions", node_view=3),
    dict(nodes=2, spread="regions", grid=2, offset_unit="map"),
    dict(nodes=4, spread="regions", grid="map", groups=2),
]


def grouped(channels: int) -> nn.Module:
    """A function that knows no device and dtype."""
    return Group(channels)


VARIANTS = [
    *((BottleneckRepGraph, options) for options in SHARED),
    *((SimpleRepGraph, options) for options in SHARED),
    (BottleneckRepGraph, dict(nodes=3, norm_layer=None, act_layer=nn.Tanh)),
    (BottleneckRepGraph, dict(nodes=3, norm_layer=Group, fusion="concat", final_act=False)),
    (BottleneckRepGraph, dict(nodes=3, norm_layer=grouped, act_layer=nn.GELU)),
    (BottleneckRepGraph, dict(nodes=3, norm_expand=False, node_view=5, fusion="concat")),
    (BottleneckRepGraph, dict(nodes=3, norm_expand=False)),
    (SimpleRepGraph, dict(nodes=3, norm_qk=True)),
    (SimpleRepGraph, dict(nodes=3, norm_qk=True, norm_layer=Group, act_layer=nn.GELU, fusion="concat")),
]


def name(variant) -> str:
    if isinstance(variant, bool):
        return "train" if variant else "eval"
    if isinstance(variant, type):
        return variant.__name__
    return " ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in variant.items())


MODES = [(*variant, False) for variant in VARIANTS] + [
    (kind, options, True) for kind, options in VARIANTS if kind is BottleneckRepGraph or "norm_qk" in options
]


@pytest.mark.parametrize(("kind", "options", "training"), MODES, ids=name)
def test_follows_the_equations(kind: type, options: dict, training: bool) -> None:
    layer = build(kind, training=training, **options)
    exact = copy.deepcopy(layer).double()
    for shape in [(2, 8, 3, 4), (2, 8, 1, 1), (1, 8, 1, 4), (1, 8, 2, 2)]:
        x = torch.randn(shape)
        with torch.no_grad():
            want = equations(exact, x.double())
        assert want.shape[1] == layer.out_channels
        for memory_format in FORMATS:
            x = x.contiguous(memory_format=memory_format)
            torch.testing.assert_close(exact(x.double()), want, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer(x).double(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("kind", "options", "training"), [m for m in MODES if m[1]["nodes"] == 3], ids=name)
def test_gradients_are_those_of_the_equations(kind: type, options: dict, training: bool) -> None:
    layer = build(kind, training=training, **options).double()
    for memory_format in FORMATS:
        x = torch.randn(2, 8, 3, 3, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
        inputs = dict(x=x, **dict(layer.named_parameters()))
        got, want = (torch.autograd.grad(y.pow(3).sum(), inputs.values()) for y in (layer(x), equations(layer, x)))
        for key, a, b in zip(inputs, got, want, strict=True):
            assert b.abs().max() > 1e-6, key
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7, msg=key)


def test_running_statistics_are_those_of_the_modules() -> None:
    layer = build(BottleneckRepGraph, training=True, nodes=3).double()
    twin = copy.deepcopy(layer)
    for _ in range(3):
        x = torch.randn(2, 8, 4, 5, dtype=torch.float64)
        layer(x)
        feature = twin.act(twin.reduce_norm(torch.conv2d(x, twin.reduce.weight)))
        response, *_ = twin.attend(feature, feature, feature, twin.offset(feature), False)
        twin.expand_norm(torch.conv2d(response, twin.expand.weight))
    for key, buffer in layer.named_buffers():
        torch.testing.assert_close(buffer, twin.get_buffer(key), rtol=1e-12, atol=1e-12, msg=key)
    assert layer.expand_norm.num_batches_tracked == 3


@pytest.mark.parametrize("spread", ["ring", "rings", "grid", "default", "points"])
@pytest.mark.parametrize("grid", [1, 3, 9, "map"])
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_shapes(kind: type, grid, spread: str) -> None:
    for nodes in (1, 2, 9):
        points = [(n / 2 - 1.0, 1.5 - n) for n in range(nodes)] if spread == "points" else spread
        layer = kind(8, nodes=nodes, grid=grid, spread=points, groups=nodes % 2 + 1)
        for index, (height, width) in enumerate([(1, 1), (1, 7), (2, 2), (5, 7)]):
            memory_format = FORMATS[(index + nodes) % 2]
            x = torch.randn(2, 8, height, width).contiguous(memory_format=memory_format)
            with torch.no_grad():
                y, places, weights = layer(x, return_nodes=True)
            assert y.shape == x.shape and y.is_contiguous(memory_format=memory_format) and y.isfinite().all()
            rows, columns = (1, 1) if grid == "map" else (-(-height // grid), -(-width // grid))
            assert places.shape == (2, nodes, 2, rows, columns)
            assert weights.shape == (2, layer.groups, nodes, height, width)
            torch.testing.assert_close(weights.sum(2), torch.ones(2, layer.groups, height, width))


@pytest.mark.parametrize("options", [dict(), dict(fusion="concat", grid=3), dict(grid="map", groups=2)], ids=name)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_format_follows_the_input(kind: type, training: bool, options: dict) -> None:
    mechanics.assert_format_follows_input(build(kind, training=training, nodes=3, **options), torch.randn(2, 8, 5, 7))


def test_a_fused_layer_follows_the_format_too() -> None:
    for fusion in ("sum", "concat"):
        mechanics.assert_format_follows_input(build(BottleneckRepGraph, fusion=fusion).fuse(), torch.randn(2, 8, 5, 7))


def test_one_position_cannot_be_normalised_in_training() -> None:
    layer = BottleneckRepGraph(8)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        layer(torch.randn(1, 8, 1, 1))
    assert layer.eval()(torch.randn(1, 8, 1, 1)).shape == (1, 8, 1, 1)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d, Group], ids=["none", "batch", "group"])
def test_activations_in_place(norm, in_place: bool) -> None:
    act = partial(nn.ReLU, inplace=in_place)
    layer = build(BottleneckRepGraph, norm_layer=norm, act_layer=act, training=True, nodes=3)
    plain = build(BottleneckRepGraph, norm_layer=norm, training=True, nodes=3)
    for memory_format in FORMATS:
        x = torch.randn(2, 8, 5, 7).contiguous(memory_format=memory_format).requires_grad_()
        before = x.detach().clone()
        grads = [torch.autograd.grad(one(x).pow(2).sum(), (x, *one.parameters())) for one in (layer, plain)]
        assert torch.equal(x, before)
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def steps(layer: nn.Module, count: int, rate: float = 0.1) -> list[dict[str, Tensor]]:
    """The gradients of some steps towards a random target."""
    torch.manual_seed(1)
    x, target = torch.randn(2, 8, 5, 7), torch.randn(2, 8, 5, 7)
    optimiser, found = torch.optim.SGD(layer.parameters(), rate), []
    for _ in range(count):
        optimiser.zero_grad()
        (layer(x) - target).square().mean().backward()
        found.append({key: p.grad.clone() for key, p in layer.named_parameters() if p.grad is not None})
        optimiser.step()
    return found


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (BottleneckRepGraph, dict()),
        (BottleneckRepGraph, dict(norm_layer=None)),
        (BottleneckRepGraph, dict(norm_expand=False)),
        (BottleneckRepGraph, dict(norm_layer=Group, grid=2)),
        (SimpleRepGraph, dict()),
        (SimpleRepGraph, dict(norm_qk=True, grid="map")),
    ],
    ids=name,
)
def test_starts_as_the_identity_and_everything_learns(kind: type, options: dict, memory_format) -> None:
    torch.manual_seed(0)
    layer = kind(8, **kind.INSERTED, **options)
    x = 100 * torch.randn(2, 8, 5, 7).contiguous(memory_format=memory_format)
    for mode in (False, True):
        assert torch.equal(layer.train(mode)(x), x)
    learned = {key for grads in steps(layer, 2) for key, grad in grads.items() if grad.abs().max() > 0}
    assert learned == {key for key, _ in layer.named_parameters()}
    layer.zero_()
    assert torch.equal(layer(x), x)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_with_both_zero_as_in_the_paper_only_the_shift_ever_learns(memory_format) -> None:
    layer = BottleneckRepGraph(8, **BottleneckRepGraph.INSERTED).to(memory_format=memory_format)
    nn.init.zeros_(layer.expand.weight)
    grads = steps(layer, 5)
    for found in grads:
        alive = {key for key, grad in found.items() if grad.abs().max() > 0}
        assert alive == {"expand_norm.bias"}
    assert layer.expand.weight.abs().max() == 0 and layer.expand_norm.weight.abs().max() == 0


def test_all_zero_offsets_never_part() -> None:
    """Why nodes start apart: identical nodes get identical gradients."""
    layer = BottleneckRepGraph(8, nodes=3, spread=[(0.0, 0.0)] * 3)
    steps(layer, 3)
    places = layer.offset.bias.detach().view(3, 2)
    torch.testing.assert_close(places, places[:1].expand(3, 2))
    layer = BottleneckRepGraph(8, nodes=3)
    before = layer.offset.bias.detach().clone()
    steps(layer, 3)
    moved = (layer.offset.bias.detach() - before).view(3, 2)
    assert (moved[0] - moved[1]).abs().max() > 1e-6


NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def test_names_and_shapes_of_the_parameters() -> None:
    norms = [f"{norm}.{key}" for norm in ("reduce_norm", "expand_norm") for key in NORM]
    state = BottleneckRepGraph(8, 4, nodes=5).state_dict()
    assert set(state) == {"reduce.weight", "offset.weight", "offset.bias", "expand.weight", *norms}
    assert (state["reduce.weight"].shape, state["expand.weight"].shape) == ((4, 8, 1, 1), (8, 4, 1, 1))
    assert (state["offset.weight"].shape, state["offset.bias"].shape) == ((10, 4, 1, 1), (10,))
    state = SimpleRepGraph(8, 4, nodes=5).state_dict()
    names = {"theta.weight", "phi.weight", "g.weight", "offset.weight", "offset.bias", "w_y.weight", "w_y.bias"}
    assert set(state) == names
    assert (state["offset.weight"].shape, state["w_y.weight"].shape) == ((10, 8, 1, 1), (8, 4, 1, 1))
    assert BottleneckRepGraph(9).mid_channels == 4 and SimpleRepGraph(1).mid_channels == 1


@pytest.mark.parametrize("grid", [1, 2])
def test_offsets_in_units_of_the_map_grow_with_it(grid: int) -> None:
    layer = BottleneckRepGraph(8, nodes=5, grid=grid, offset_unit="map")
    offsets = [layer.offset(torch.zeros(1, 4, side, side))[0, :, 0, 0] for side in (65, 33, 1)]
    middle = (grid - 1) / 2
    torch.testing.assert_close(offsets[0], torch.tensor(layer.spread.points).flatten())
    torch.testing.assert_close(offsets[1] - middle, (offsets[0] - middle) / 2)
    torch.testing.assert_close(offsets[2], torch.full((10,), middle))


@pytest.mark.parametrize("view", [3, "map"])
def test_a_wider_view_starts_at_the_spread(view) -> None:
    layer = BottleneckRepGraph(8, nodes=5, offset_view=view)
    plain = BottleneckRepGraph(8, nodes=5)
    x = torch.randn(1, 4, 20, 20)
    torch.testing.assert_close(layer.offset(x), plain.offset(x), rtol=0, atol=0)
    assert {"offset.weight", "offset.bias"} <= set(layer.state_dict())
    assert ("offset.around" in layer.state_dict()) is (view == "map")
    assert "offset.around" not in plain.state_dict() and "temperature" not in plain.state_dict()


def test_wider_views_stay_in_float32_under_autocast() -> None:
    for view in (3, "map"):
        layer = build(BottleneckRepGraph, nodes=3, offset_view=view, learn_scale=True)
        x = torch.randn(1, 8, 6, 7)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer.offset(torch.randn(1, 4, 6, 7)).dtype == torch.float32
            y = layer(x)
        half = layer.bfloat16()(x.bfloat16())
        assert y.isfinite().all() and half.dtype == torch.bfloat16


def test_learned_nodes_are_what_the_layer_looks_at() -> None:
    layer = build(BottleneckRepGraph, nodes=3, spread=POINTS)
    nn.init.zeros_(layer.offset.weight)
    with torch.no_grad():
        layer.offset.bias.copy_(torch.tensor(POINTS).flatten())
    _, nodes, _ = layer(torch.randn(1, 8, 7, 9), return_nodes=True)
    for n, (x, y) in enumerate(POINTS):
        torch.testing.assert_close(nodes[0, n, :, 2, 4], torch.tensor([4 + x, 2 + y]))
    assert layer.offset.seen is not None and layer.offset.seen[1:] == (7, 9)
    assert not layer.offset.seen[0].requires_grad


def test_nodes_and_weights_have_gradients() -> None:
    layer = build(SimpleRepGraph, nodes=3)
    _, nodes, weights = layer(torch.randn(1, 8, 3, 4), return_nodes=True)
    (nodes.square().sum() + weights.square().sum()).backward()
    for key in ("theta.weight", "phi.weight", "offset.weight", "offset.bias"):
        assert layer.get_parameter(key).grad.abs().max() > 0, key


def test_empty_batch_and_meta_device() -> None:
    for kind in (BottleneckRepGraph, SimpleRepGraph):
        for training in (False, True):
            layer = kind(8, grid=2).train(training)
            x = torch.randn(0, 8, 3, 5, requires_grad=True)
            y = layer(x)
            y.sum().backward()
            assert y.shape == (0, 8, 3, 5)
            assert {p.grad.abs().sum().item() for p in layer.parameters()} == {0.0}
            layer = kind(8, fusion="concat", device="meta", dtype=torch.bfloat16).train(training)
            assert {p.device.type for p in layer.parameters()} == {"meta"}
            assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
            y = layer(torch.empty(1, 8, 300, 400, device="meta", dtype=torch.bfloat16))
            assert (y.shape, y.device.type) == ((1, 16, 300, 400), "meta")


def test_logits_are_scaled_to_the_width() -> None:
    """One feature that meets itself: by the width. Two projections: by its root. As the paper has it: not at all."""
    assert BottleneckRepGraph(64, 32).scale == 1 / 32 and BottleneckRepGraph(64, 32, groups=4).scale == 1 / 8
    assert SimpleRepGraph(64, 16).scale == 1 / 4 and SimpleRepGraph(64, 16, groups=4).scale == 1 / 2
    for kind in (BottleneckRepGraph, SimpleRepGraph):
        assert kind(64, 16, scale=0.3).scale == 0.3
        layer = kind.paper(64, 16, nodes=4, fusion="concat")
        assert (layer.scale, layer.spread.name, layer.nodes, layer.out_channels) == (1.0, "default", 4, 128)
        assert kind.paper(64, 16, spread="ring").spread.name == "ring"


def test_weights_of_a_fresh_layer_are_spread_over_its_nodes() -> None:
    """Without a scale the node on the query itself, which is most like it, would take nearly all."""
    x = torch.randn(1, 64, 24, 24).relu()
    for options, low, high in (({}, 0.1, 0.3), ({"scale": 1.0}, 0.9, 1.0)):
        weights = BottleneckRepGraph(64, **options)(x, return_nodes=True)[2]
        assert low < weights.max(2).values.mean() < high


def test_representation() -> None:
    lines = repr(BottleneckRepGraph(8, grid="map", groups=2, backend="reference")).splitlines()
    assert lines[1].strip() == (
        "8, 4, nodes=9, grid='map', groups=2, fusion='sum', scale=0.5, spread='ring', backend='reference'"
    )
    assert lines[2].strip() == "(reduce): Pointwise(8, 4, bias=False)"
    assert any(line.strip() == "(offset): Offset(4, 18, spread='ring')" for line in lines)
    shown = repr(BottleneckRepGraph(8, offset_view=3, offset_unit="map", learn_scale=True))
    assert "spread='ring', offset_view=3, offset_unit='map', learn_scale=True" in shown
    assert "Offset(4, 18, spread='ring', view=3, unit='map')" in shown
    assert "spread='points'" in repr(SimpleRepGraph(8, nodes=3, spread=POINTS)).splitlines()[1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(channels=0), ValueError, "channels is 0; at least 1 is needed"),
        (dict(channels=8.0), TypeError, "channels is 8.0; a whole number is needed"),
        (dict(mid_channels=0), ValueError, "mid_channels is 0; at least 1 is needed"),
        (dict(nodes=0), ValueError, "nodes is 0; at least 1 is needed"),
        (dict(nodes=100000000), ValueError, "nodes is 100000000; at most 65536 is possible"),
        (dict(nodes=True), TypeError, "nodes is True; a whole number is needed"),
        (dict(grid=0), ValueError, "grid is 0; at least 1 is needed"),
        (dict(grid=1.5), TypeError, "grid is 1.5; a whole number is needed"),
        (dict(grid="all"), ValueError, "grid is 'all'; a whole number or 'map' is needed"),
        (dict(groups=0), ValueError, "groups is 0; at least 1 is needed"),
        (
            dict(groups=3),
            ValueError,
            "groups=3 does not divide the 4 inner channels; give mid_channels or other groups",
        ),
        (dict(fusion="mean"), ValueError, "unknown fusion 'mean': choose one of 'sum', 'concat'"),
        (dict(scale=float("nan")), TypeError, "scale is nan; a finite number is needed"),
        (dict(scale="root"), TypeError, "scale is 'root'; a finite number is needed"),
        (
            dict(spread="star"),
            ValueError,
            "unknown spread 'star': choose one of 'ring', 'rings', 'grid', 'regions', 'default', or",
        ),
        (dict(spread=4), TypeError, r"spread is 4; a name or the \(x, y\) of each node is needed"),
        (dict(spread=POINTS), ValueError, r"spread has 3 points; one \(x, y\) for each of the 9 nodes is needed"),
        (dict(spread=[(1.0,)] * 9), ValueError, r"one \(x, y\) for each of the 9 nodes is needed"),
        (dict(spread=[(1.0, float("inf"))] * 9), ValueError, "spread has a coordinate that is not finite"),
        (dict(radius=0), ValueError, "radius is 0; a number of pixels above 0 is needed"),
        (dict(radius=float("nan")), ValueError, "radius is nan; a number of pixels"),
        (dict(radius="4"), ValueError, "radius is '4'; a number of pixels"),
        (dict(radius=4.0, spread="grid"), ValueError, "radius is for the spreads 'ring' and 'rings'"),
        (dict(radius=4.0, grid="map"), ValueError, "radius is for the spreads 'ring' and 'rings'"),
        (dict(offset_view=2), ValueError, "offset_view is 2; an odd number is needed"),
        (dict(node_view=2), ValueError, "node_view is 2; an odd number is needed"),
        (dict(node_view="map"), TypeError, "node_view is 'map'; a whole number is needed"),
        (dict(offset_view=0), ValueError, "offset_view is 0; at least 1 is needed"),
        (dict(offset_view="all"), ValueError, "offset_view is 'all'; an odd number or 'map' is needed"),
        (dict(offset_unit="px"), ValueError, "unknown offset_unit 'px': choose one of 'pixels', 'map'"),
        (dict(learn_scale=2), TypeError, "learn_scale is 2; True or False is needed"),
        (
            dict(backend="cuda"),
            ValueError,
            "unknown backend 'cuda': choose one of 'auto', 'reference', 'triton', 'cpu'",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_bad_options(kind: type, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        kind(**(dict(channels=8) | options))


def test_a_bad_option_of_the_bottleneck_alone() -> None:
    with pytest.raises(TypeError, match="norm_expand is 1; True or False is needed"):
        BottleneckRepGraph(8, norm_expand=1)


@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_bad_inputs(kind: type) -> None:
    layer = kind(8)
    for bad in (torch.zeros(8, 3, 5), torch.zeros(1, 7, 3, 5), torch.zeros(1, 8, 0, 5), torch.zeros(1, 8, 5, 0)):
        with pytest.raises(ValueError, match=r"the input has shape .*; \(B, 8, H, W\) is needed"):
            layer(bad)
    with pytest.raises(TypeError, match=r"the input is a list; a torch.Tensor \(B, 8, H, W\) is needed"):
        layer([1.0])
    with pytest.raises(RuntimeError, match=r"backend 'triton' cannot run here: .*, these are float64"):
        kind(8, backend="triton", dtype=torch.float64)(torch.zeros(1, 8, 3, 5, dtype=torch.float64))


def test_a_subclass_may_have_another_feature() -> None:
    class Doubled(BottleneckRepGraph):
        def reduced(self, x):
            feature, x = super().reduced(x)
            return 2 * feature, x

    x = torch.randn(1, 8, 5, 6)
    layer = Doubled(8, 4).eval()
    with torch.no_grad():
        want = layer(x)
        torch.testing.assert_close(layer.fuse()(x), want)  # which goes another way
