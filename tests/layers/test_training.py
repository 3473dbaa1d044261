"""How far offsets reach, groups of parameters for optimisers, and fusing whole models."""

import copy
import math

import pytest
import torch
from tests.layers.equations import build
from torch import Tensor, nn

import repgraph
from repgraph.layers import (
    BottleneckRepGraph,
    DualAttention,
    NonLocal,
    Reach,
    SimpleRepGraph,
    fuse,
    param_groups,
    reach,
)
from repgraph.layers import training as training_module


def model_of(kind: type = BottleneckRepGraph, **options) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Sequential(build(kind, **options)), nn.BatchNorm2d(8), nn.Dropout(0.5))


def lengths_of(nodes: Tensor, grid: int, height: int, width: int) -> list[float]:
    """Distances of absolute nodes (B, S, 2, Hc, Wc) from the middle of their cells, sorted."""
    middle_x, middle_y = (min(grid, width) - 1) / 2, (min(grid, height) - 1) / 2
    found = []
    for row in range(nodes.shape[3]):
        for column in range(nodes.shape[4]):
            x = nodes[:, :, 0, row, column] - (column * grid + middle_x)
            y = nodes[:, :, 1, row, column] - (row * grid + middle_y)
            found += [math.hypot(a, b) for a, b in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)]
    return sorted(found)


@pytest.mark.parametrize("grid", [1, 2, 4, 100, "map"])
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_reach_of_a_run(kind: type, grid) -> None:
    model, x = model_of(kind, nodes=5, grid=grid), torch.randn(3, 3, 9, 7)
    with torch.no_grad():
        _, nodes, _ = model[1][0](model[0](x), return_nodes=True)
    lengths = lengths_of(nodes, 100 if grid == "map" else grid, 9, 7)
    found = reach(model, x)
    assert list(found) == ["1.0"]
    got, diagonal = found["1.0"], math.hypot(9, 7)
    assert got.mean == pytest.approx(sum(lengths) / len(lengths), rel=1e-5)
    assert got.p95 == pytest.approx(lengths[math.ceil(0.95 * len(lengths)) - 1], rel=1e-5)
    assert (got.mean_share, got.p95_share) == pytest.approx((got.mean / diagonal, got.p95 / diagonal))
    assert (got.height, got.width) == (9, 7)
    assert reach(model) == found  # the last call


def test_reach_of_known_offsets() -> None:
    layer = BottleneckRepGraph(8, nodes=20, spread=[(3.0, 4.0)] * 19 + [(30.0, 40.0)])
    found = reach(layer, torch.randn(2, 8, 101, 101))
    assert found == {"": Reach(7.25, 5.0, 7.25 / math.hypot(101, 101), 5.0 / math.hypot(101, 101), 101, 101)}
    layer = BottleneckRepGraph(8, nodes=9, radius=6.0)
    assert reach(layer, torch.randn(1, 8, 4, 99))[""].p95 == pytest.approx(1.5)  # a spread that has shrunk


def test_reach_leaves_the_model_as_it_was() -> None:
    model = model_of(training=True).train()
    model[2].eval()  # modes may differ
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    before = torch.get_rng_state()
    reach(model, torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)))
    assert [module.training for module in model.modules()] == modes and modes.count(False) == 1
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module._forward_hooks for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_reach_of_a_model_that_uses_chance() -> None:
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = BottleneckRepGraph(8)

        def forward(self, x, *, scale):
            return self.layer(scale * (x + torch.randn_like(x)))

    model, before = Noisy(), torch.get_rng_state()
    assert reach(model, x=torch.zeros(1, 8, 5, 7), scale=2.0)["layer"].width == 7
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_come_back_after_an_error() -> None:
    model = model_of(training=True).train()
    with pytest.raises(RuntimeError):
        reach(model, torch.randn(1, 4, 5, 7))
    assert all(module.training for module in model.modules())


def test_reach_follows_training() -> None:
    layer = BottleneckRepGraph(8, nodes=9)
    x = torch.randn(1, 8, 33, 33)
    layer(x)
    before = reach(layer)[""]
    nn.init.constant_(layer.offset.bias, 3.0)
    assert reach(layer)[""] == before  # that call is over
    layer(x)
    assert reach(layer)[""].mean == pytest.approx(math.hypot(3, 3))


@pytest.mark.parametrize("grid", [1, 5])
def test_reach_of_the_bias_alone(grid: int) -> None:
    for layer in (SimpleRepGraph(8, nodes=9, grid=grid), copy.deepcopy(SimpleRepGraph(8, nodes=9, grid=grid))):
        got = reach(layer)[""]
        assert (got.mean, got.p95) == pytest.approx((4.0 * 8 / 9, 4.0))
        assert math.isnan(got.mean_share) and math.isnan(got.p95_share) and (got.height, got.width) == (0, 0)


@pytest.mark.parametrize("grid", [1, "map"])
def test_reach_of_a_bias_that_grows_with_the_map(grid) -> None:
    layer = BottleneckRepGraph(8, nodes=4, spread="grid", grid=grid)
    alone = reach(layer)[""]
    assert math.isnan(alone.mean) and math.isnan(alone.p95) and alone.height == 0
    seen = reach(layer, torch.randn(1, 8, 400, 400))[""]
    assert (alone.mean_share, alone.p95_share) == pytest.approx((seen.mean_share, seen.p95_share), rel=0.01)
    assert alone.mean_share == pytest.approx(0.75 / 2)


def test_reach_of_layers_that_do_not_run_for_these_inputs() -> None:
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.other = BottleneckRepGraph(8), SimpleRepGraph(8)

        def forward(self, x):
            return self.main(x) + self.other(x) if self.training else self.main(x)

    model, x = Auxiliary(), torch.randn(1, 8, 5, 7)
    model(x)
    assert [found.height for found in reach(model).values()] == [5, 5]
    assert {path: found.height for path, found in reach(model, x).items()} == {"main": 5, "other": 0}


def test_reach_of_a_layer_that_is_called_twice_is_of_its_last_call() -> None:
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = self.two = BottleneckRepGraph(8)

        def forward(self, x):
            return self.one(x).sum() + self.two(x[:, :, ::2, ::2]).sum()

    assert {path: found.height for path, found in reach(Pyramid(), torch.randn(1, 8, 11, 13)).items()} == {"one": 6}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler of PyTorch 2.11
def test_reach_of_compiled_models() -> None:
    torch._dynamo.reset()
    model, x = model_of(), torch.randn(2, 3, 5, 7)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    assert reach(compiled)["_orig_mod.1.0"].height == 0  # nothing is kept in compiled code
    found = reach(compiled, x)["_orig_mod.1.0"]
    assert found == reach(model, x)["1.0"] and found.height == 5


def test_reach_of_very_many_offsets() -> None:
    """More than torch.quantile takes in older versions."""
    offsets = torch.arange(2**24 + 100, dtype=torch.float32).view(1, 1, -1, 1)
    mean, p95 = training_module._lengths(torch.cat((offsets, torch.zeros_like(offsets)), 1), 0.0, 0.0)
    assert mean == pytest.approx((2**24 + 99) / 2, rel=1e-6) and p95 == pytest.approx(0.95 * (2**24 + 100), rel=1e-6)


def test_reach_of_an_empty_batch() -> None:
    assert math.isnan(reach(BottleneckRepGraph(8), torch.randn(0, 8, 5, 7))[""].mean)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (
            Reach(4.21, 7.94, 0.0627, 0.112, 65, 65),
            "4.2 px mean, 7.9 px p95 (6.3 %, 11 % of the 65 x 65 map's diagonal)",
        ),
        (Reach(4.0, 5.0, math.nan, math.nan, 0, 0), "4.0 px mean, 5.0 px p95 (of the bias alone)"),
        (reach(BottleneckRepGraph(8, spread="regions"))[""], "not known before a call (regions of the map)"),
        (Reach(math.nan, math.nan, 0.25, 0.375, 0, 0), "25 %, 38 % of a square map's diagonal (of the bias alone)"),
    ],
)
def test_reach_as_text(found: Reach, shown: str) -> None:
    assert str(found) == shown
    with pytest.raises(AttributeError):
        found.mean = 1.0


@pytest.mark.parametrize("function", [reach, lambda model: reach(model, torch.randn(1, 8, 3, 3))])
def test_reach_needs_a_layer(function) -> None:
    with pytest.raises(ValueError, match="this Sequential has no RepGraph layer, whose reach could be measured"):
        function(nn.Sequential(nn.Conv2d(8, 8, 1), NonLocal(8)))


def named(model: nn.Module, groups: list[dict]) -> dict[str, set[str]]:
    paths = {id(parameter): path for path, parameter in model.named_parameters()}
    return {group["name"]: {paths[id(parameter)] for parameter in group["params"]} for group in groups}


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.one = BottleneckRepGraph(8, nodes=3)
        self.two = SimpleRepGraph(8, nodes=3, norm_qk=True, norm_layer=lambda c: nn.GroupNorm(2, c))
        self.three = DualAttention(8)
        self.layer_norm = nn.LayerNorm((8, 5, 7))
        self.head = nn.Linear(8, 2)
        self.table = nn.Parameter(torch.zeros(4, 4))
        self.temperature = nn.Parameter(torch.zeros(()))


GROUPS = {
    "offset weights": {"one.offset.weight", "two.offset.weight"},
    "offset biases": {"one.offset.bias", "two.offset.bias"},
    "norms and biases": {
        *(f"one.{norm}.{key}" for norm in ("reduce_norm", "expand_norm") for key in ("weight", "bias")),
        *(f"two.{norm}.0.{key}" for norm in ("theta_norm", "phi_norm") for key in ("weight", "bias")),
        *("two.w_y.bias", "three.position.gamma", "three.channel.gamma", "layer_norm.weight", "layer_norm.bias"),
        *(f"three.position.{key}.bias" for key in ("query", "key", "value")),
        *("stem.bias", "head.bias", "temperature"),
    },
    "weights": {
        *("stem.weight", "one.reduce.weight", "one.expand.weight", "two.theta.weight", "two.phi.weight"),
        *("two.g.weight", "two.w_y.weight", "head.weight", "table"),
        *(f"three.position.{key}.weight" for key in ("query", "key", "value")),
    },
}


def test_groups() -> None:
    model = Everything()
    groups = param_groups(model, 0.01, offset_lr=0.002)
    assert named(model, groups) == GROUPS
    assert [group["lr"] for group in groups] == [0.002, 0.002, 0.01, 0.01]
    assert [group.get("weight_decay") for group in groups] == [None, 0.0, 0.0, None]
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_groups_that_all_decay() -> None:
    model = Everything()
    groups = param_groups(model, 1, no_decay=False)
    assert named(model, groups) == GROUPS
    assert all(set(group) == {"params", "lr", "name"} and group["lr"] == 1.0 for group in groups)


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimisers_take_the_groups(optimiser: type) -> None:
    layer = BottleneckRepGraph(8, nodes=3)
    nn.init.ones_(layer.offset.weight)
    before = copy.deepcopy(layer.state_dict())
    steps = optimiser(param_groups(layer, 0.1, offset_lr=0), weight_decay=0.1)
    assert {group["name"]: group["weight_decay"] for group in steps.param_groups} == {
        "offset weights": 0.1,
        "offset biases": 0.0,
        "norms and biases": 0.0,
        "weights": 0.1,
    }
    layer(torch.randn(2, 8, 5, 7)).square().sum().backward()
    steps.step()
    for key, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[key]) == key.startswith("offset"), key


def test_decay_does_not_pull_the_nodes_together() -> None:
    layer = BottleneckRepGraph(8)
    for no_decay in (True, False):
        steps = torch.optim.SGD(param_groups(layer, 0.1, no_decay=no_decay), weight_decay=0.5)
        before = layer.offset.bias.detach().clone()
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        steps.step()
        assert torch.equal(layer.offset.bias, before) == no_decay


def test_shared_and_frozen_parameters() -> None:
    model = nn.Sequential(BottleneckRepGraph(8), nn.Conv2d(8, 4, 1), BottleneckRepGraph(8), nn.BatchNorm2d(8))
    model[2].offset = model[0].offset
    model[1].weight = model[0].reduce.weight
    model[1].bias = None
    model[0].expand.weight.requires_grad_(False)
    for parameter in (*model[2].reduce_norm.parameters(), *model[3].parameters()):
        parameter.requires_grad_(False)
    groups = param_groups(model, 0.1)
    found = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(found) == len(set(found)) == len([p for p in model.parameters() if p.requires_grad])
    assert named(model, groups)["offset weights"] == {"0.offset.weight"}
    assert "0.expand.weight" not in named(model, groups)["weights"]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert param_groups(model, 0.1) == []


def test_a_parameter_shared_with_an_offset_counts_as_one() -> None:
    model = nn.Sequential(nn.Conv2d(4, 18, 1), BottleneckRepGraph(8))
    model[0].weight, model[0].bias = model[1].offset.weight, model[1].offset.bias
    groups = param_groups(model, 0.1, offset_lr=0.5)
    assert len(groups[0]["params"]) == len(groups[1]["params"]) == 1 and groups[0]["lr"] == 0.5
    assert not {"0.weight", "0.bias"} & named(model, groups[2:])["weights"]


def test_groups_of_other_models() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8))
    assert [group["name"] for group in param_groups(model, 0.1)] == ["norms and biases", "weights"]
    assert [group["name"] for group in param_groups(model[0], 0.1)] == ["weights"]
    layer = BottleneckRepGraph(8)
    nn.utils.parametrizations.spectral_norm(layer.offset)
    assert named(layer, param_groups(layer, 0.1))["offset weights"] == {"offset.parametrizations.weight.original"}


def test_groups_need_shapes() -> None:
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet; call the model once"):
        param_groups(nn.Sequential(nn.LazyConv2d(8, 1)), 0.1)


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan])
def test_bad_rates(value: float) -> None:
    with pytest.raises(ValueError, match=rf"^lr is {value!r}; a finite number above 0 is needed"):
        param_groups(nn.Conv2d(1, 1, 1), value)
    if value:
        with pytest.raises(ValueError, match=rf"offset_lr is {value!r}; a finite number of at least 0 is needed"):
            param_groups(nn.Conv2d(1, 1, 1), 0.1, offset_lr=value)


@pytest.mark.parametrize("value", ["0.1", True, [0.1], torch.tensor(0.1)], ids=str)
def test_rates_of_the_wrong_type(value) -> None:
    for rates in (dict(lr=value), dict(lr=0.1, offset_lr=value)):
        with pytest.raises(TypeError, match=r"lr is .*; a number is needed"):
            param_groups(nn.Conv2d(1, 1, 1), **rates)


def test_fusing_a_model() -> None:
    shared = build(BottleneckRepGraph, nodes=3)
    model = nn.Sequential(shared, nn.Conv2d(8, 8, 1), build(SimpleRepGraph, norm_qk=True), nn.BatchNorm2d(8), shared)
    x = torch.randn(2, 8, 5, 7)
    want = model.eval()(x)
    assert fuse(model) is model
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-4)
    assert type(model[0].expand_norm) is type(model[2].theta_norm[0]) is nn.Identity
    assert type(model[3]) is nn.BatchNorm2d
    assert torch.equal(fuse(model)(x), model(x))
    plain = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)).eval()
    assert fuse(plain) is plain


def test_fusing_is_refused_in_training() -> None:
    model = nn.Sequential(build(BottleneckRepGraph), build(SimpleRepGraph, norm_qk=True)).train()
    with pytest.raises(RuntimeError, match=r"this Sequential is in training mode; call eval\(\)"):
        fuse(model)
    model.eval()
    model[1].train()
    with pytest.raises(RuntimeError, match="this SimpleRepGraph is in training mode"):
        fuse(model)
    assert type(model[0].expand_norm) is nn.BatchNorm2d  # nothing was done by halves


def test_all_of_it_is_exported() -> None:
    for name in ("reach", "param_groups", "fuse", "BottleneckRepGraph", "SimpleRepGraph", "NonLocal", "DualAttention"):
        assert getattr(repgraph, name) is getattr(repgraph.layers, name) and name in repgraph.__all__
