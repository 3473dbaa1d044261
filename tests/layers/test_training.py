"""Reach of the nodes, optimizer groups, and fusing whole models."""

import copy
import math

import pytest
import torch
from tests.layers.equations import build
from torch import Tensor, nn

from repgraph import BottleneckRepGraph, DualAttention, NonLocal, SimpleRepGraph, fuse, param_groups, reach


def make_model(kind: type = BottleneckRepGraph, **options) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Sequential(build(kind, **options)), nn.BatchNorm2d(8), nn.Dropout(0.5))


@pytest.mark.parametrize("grid", [1, 4, 100, "map"])
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_reach(kind: type, grid) -> None:
    model, x = make_model(kind, nodes=5, grid=grid), torch.randn(3, 3, 9, 7)
    with torch.no_grad():
        _, nodes, _ = model[1][0](model[0](x), return_nodes=True)  # [B, S, 2, Hc, Wc]
    side = 100 if grid == "map" else grid
    rows, columns = (torch.arange(n) * side for n in nodes.shape[3:])
    x_far = nodes[:, :, 0] - columns - (min(side, 7) - 1) / 2  # from the center of the cell
    y_far = nodes[:, :, 1] - rows[:, None] - (min(side, 9) - 1) / 2
    lengths = torch.hypot(x_far, y_far).flatten().sort().values
    found = reach(model, x)
    assert list(found) == ["1.0"]
    got, diagonal = found["1.0"], math.hypot(9, 7)
    assert got.mean == pytest.approx(lengths.mean().item(), rel=1e-5)
    assert got.p95 == pytest.approx(lengths[math.ceil(0.95 * len(lengths)) - 1].item(), rel=1e-5)
    assert (got.mean_share, got.p95_share) == pytest.approx((got.mean / diagonal, got.p95 / diagonal))
    assert (got.height, got.width) == (9, 7)
    assert reach(model) == found  # of the last call


def test_reach_of_known_offsets() -> None:
    layer = BottleneckRepGraph(8, nodes=9, radius=6.0)
    assert reach(layer, torch.randn(1, 8, 4, 99))[""].p95 == pytest.approx(1.5)  # a ring that has shrunk
    assert math.isnan(reach(layer, torch.randn(0, 8, 5, 7))[""].mean)
    layer = BottleneckRepGraph(8, nodes=2, rounds=2, radius=[6.0, 2.0])
    assert reach(layer, torch.randn(1, 8, 33, 33))[""].mean == pytest.approx(4.0)  # over all rounds


class Noisy(nn.Module):
    """Uses random numbers and keyword arguments, calls one layer twice and another in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.two = BottleneckRepGraph(8)
        self.auxiliary = SimpleRepGraph(8)

    def forward(self, x: Tensor, *, scale: float) -> Tensor:
        y = self.one(scale * (x + torch.randn_like(x))).sum() + self.two(x[:, :, ::2, ::2]).sum()
        return y + self.auxiliary(x).sum() if self.training else y


def test_reach_leaves_the_model_unchanged() -> None:
    model, x = Noisy(), torch.randn(2, 8, 11, 7)
    model.auxiliary.eval()  # modes may differ
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    before = torch.get_rng_state()
    assert {path: found.height for path, found in reach(model, x, scale=2.0).items()} == {"one": 6}
    with pytest.raises(ValueError, match="input has shape"):
        reach(model, x[:, 1:], scale=2.0)
    assert [module.training for module in model.modules()] == modes and set(modes) == {False, True}
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # the compiler of PyTorch 2.11
def test_reach_of_compiled_models() -> None:
    torch._dynamo.reset()
    model, x = make_model(), torch.randn(2, 3, 5, 7)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with pytest.raises(ValueError, match="no eager call of a RepGraph layer was recorded"):
        reach(compiled)
    found = reach(compiled, x)["_orig_mod.1.0"]
    assert found == reach(model, x)["1.0"] and found.height == 5


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.layer = BottleneckRepGraph(8, nodes=3, rounds=2)
        self.dual = DualAttention(8)
        self.layer_norm = nn.LayerNorm((8, 5, 7))
        self.table = nn.Parameter(torch.zeros(4, 4))


GROUPS = {
    "offset weights": {"layer.offset.weight", "layer.next_offsets.0.weight"},
    "offset biases": {"layer.offset.bias", "layer.next_offsets.0.bias"},
    "norms and biases": {
        *(f"layer.{norm}.{key}" for norm in ("reduce_norm", "expand_norm") for key in ("weight", "bias")),
        *(f"dual.position.{key}.bias" for key in ("query", "key", "value")),
        *("dual.position.gamma", "dual.channel.gamma", "layer_norm.weight", "layer_norm.bias", "stem.bias"),
    },
    "weights": {
        *("stem.weight", "layer.reduce.weight", "layer.expand.weight", "table"),
        *(f"dual.position.{key}.weight" for key in ("query", "key", "value")),
    },
}


def names_of(model: nn.Module, groups: list[dict]) -> dict[str, set[str]]:
    paths = {id(parameter): path for path, parameter in model.named_parameters()}
    return {group["name"]: {paths[id(parameter)] for parameter in group["params"]} for group in groups}


def test_param_groups() -> None:
    model = Everything()
    groups = param_groups(model, 0.01, offset_lr=0.002)
    assert names_of(model, groups) == GROUPS
    assert [group["lr"] for group in groups] == [0.002, 0.002, 0.01, 0.01]
    assert [group.get("weight_decay") for group in groups] == [None, 0.0, 0.0, None]
    groups = param_groups(model, 1, no_decay=False)
    assert names_of(model, groups) == GROUPS
    assert all(set(group) == {"params", "lr", "name"} and group["lr"] == 1.0 for group in groups)
    model.stem.requires_grad_(False)
    assert "stem.weight" not in names_of(model, param_groups(model, 0.1))["weights"]
    assert param_groups(model.requires_grad_(False), 0.1) == []


def test_parameters_that_are_shared_with_an_offset_are_offsets() -> None:
    model = nn.Sequential(nn.Conv2d(4, 18, 1), BottleneckRepGraph(8), BottleneckRepGraph(8))
    model[2].offset = model[1].offset
    model[0].weight = model[1].offset.weight
    groups = param_groups(model, 0.1, offset_lr=0.5)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert names_of(model, groups)["offset weights"] == {"0.weight"}


def test_errors() -> None:
    with pytest.raises(ValueError, match="Sequential contains no RepGraph layer"):
        reach(nn.Sequential(nn.Conv2d(8, 8, 1), NonLocal(8)))
    with pytest.raises(ValueError, match=r"offset_lr is -1.0; expected a finite number from 0"):
        param_groups(nn.Conv2d(1, 1, 1), 0.1, offset_lr=-1.0)


def test_fuse_a_model() -> None:
    shared = build(BottleneckRepGraph, nodes=3)
    model = nn.Sequential(shared, nn.Conv2d(8, 8, 1), build(SimpleRepGraph, norm_qk=True), nn.BatchNorm2d(8), shared)
    x = torch.randn(2, 8, 5, 7)
    model.eval()[2].train()
    with pytest.raises(RuntimeError, match="this SimpleRepGraph is in training mode"):
        fuse(model)
    assert type(model[0].expand_norm) is nn.BatchNorm2d  # nothing is changed before the error
    want = model.eval()(x)
    torch.testing.assert_close(fuse(model)(x), want, rtol=1e-4, atol=1e-4)
    assert type(model[0].expand_norm) is type(model[2].theta_norm[0]) is nn.Identity
