"""Insertion into a small network: it stays what it was, the layers are where they should be, and they learn."""

import copy
from functools import partial

import pytest
import torch
from tests.layers.networks import EVERYWHERE, KINDS, PATHS, Block, assert_same, images, network, one_thread, stir
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph
from repgraph.layers.insertion import insert, inserted, remove

__all__ = ["one_thread"]  # for all tests here

CHANNELS = [8, 8, 12, 16]


class Shift(nn.Module):
    """A user's own layer."""

    def __init__(self, channels: int, by: float = 1.0) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((channels, 1, 1), by))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_computes_what_it_did(kind):
    before = network()
    model = copy.deepcopy(before)
    assert insert(model, EVERYWHERE, kind) is model
    assert list(inserted(model)) == PATHS
    assert all(type(layer) is kind for layer in inserted(model).values())
    assert_same(model, before, images())


def test_comparison_of_networks_can_fail():
    before = network()
    model = insert(copy.deepcopy(before), EVERYWHERE)
    inserted(model)[PATHS[0]].expand_norm.bias.data[0] = 1e-3
    with pytest.raises(AssertionError, match="training=True"):
        assert_same(model, before, images())


@pytest.mark.parametrize("kind", KINDS)
def test_layers_stand_before_the_last_blocks(kind):
    model = stir(insert(network(), EVERYWHERE, kind).eval())
    first, second, third, fourth = inserted(model).values()
    x = images()
    with torch.no_grad():
        got = model(x)
        y = model.stem(x)
        for block, before, after in (
            (model.stage1[0], None, None),
            (model.stage1[1], first, None),
            (model.stage1[2], second, None),
            (model.stage2[0], None, None),
            (model.stage2[1], third, None),
            (model.stage3[0], None, fourth),
        ):
            y = y if before is None else before(y)
            y = block.forward(y)  # without hooks
            y = y if after is None else after(y)
        assert torch.equal(got, model.head(y.mean((2, 3))))
        assert not torch.equal(got, remove(model)(x))


def test_names_of_the_network_do_not_change():
    before = network()
    state = before.state_dict()
    model = insert(network(), EVERYWHERE)
    assert [name for name in model.state_dict() if ".repgraph." not in name] == list(state)
    report = model.load_state_dict(state, strict=False)
    assert report.unexpected_keys == []
    new = [name for name in model.state_dict() if ".repgraph." in name and "num_batches" not in name]  # these need none
    assert report.missing_keys == new
    assert {name.split(".repgraph.")[0] + ".repgraph" for name in report.missing_keys} == set(PATHS)
    assert len(model.stage1) == 3  # lists of blocks keep their length


def test_weights_with_layers_load():
    model = stir(insert(network(), EVERYWHERE)).eval()
    other = insert(network(), EVERYWHERE).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images()), model(images()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns_within_two_steps(kind):
    model = insert(network(), EVERYWHERE, kind)
    model.requires_grad_(True)
    layers = inserted(model)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    learned = set()
    for _ in range(2):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(images(41)), torch.tensor([1, 3])).backward()
        for path, layer in layers.items():
            for name, parameter in layer.named_parameters():
                if parameter.grad is not None and parameter.grad.abs().max() > 0:
                    learned.add(f"{path}.{name}")
        optimiser.step()
    wanted = {f"{path}.{name}" for path, layer in layers.items() for name, _ in layer.named_parameters()}
    assert wanted - learned == set()


def test_frozen_networks_get_layers_that_learn():
    model = insert(network().requires_grad_(False), {"stage1": 1})
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert names and all(name.startswith("stage1.2.repgraph.") for name in names)


def test_layers_take_mode_and_type_of_their_block():
    model = network().double()
    model.stage1.eval()
    insert(model, {"stage1": 1, "stage2": 1})
    first, second = inserted(model).values()
    assert not any(module.training for module in first.modules())
    assert all(module.training for module in second.modules())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert_same(model, network().double(), images(dtype=torch.float64))


def test_layers_go_where_their_block_is():
    with torch.device("meta"):
        model = insert(network(), EVERYWHERE)
    other = insert(network().to("meta"), EVERYWHERE, Shift)
    for each in (model, other):
        assert {parameter.device.type for parameter in each.parameters()} == {"meta"}
        assert len(inserted(each)) == 4


def test_options_reach_the_layers():
    model = insert(network(), EVERYWHERE, SimpleRepGraph, mid_channels=4, nodes=5, grid=2, groups=2, norm_qk=True)
    for layer, channels in zip(inserted(model).values(), CHANNELS, strict=True):
        assert (layer.channels, layer.mid_channels, layer.nodes, layer.grid, layer.groups) == (channels, 4, 5, 2, 2)
        assert len(layer.theta_norm) == 2
    assert_same(model, network(), images())


def test_a_partial_keeps_its_options_and_starts_as_the_identity():
    model = insert(network(), EVERYWHERE, partial(BottleneckRepGraph, nodes=4, radius=2.0), radius=3.0)
    for layer in inserted(model).values():
        assert layer.nodes == 4 and layer.spread.extent == 3
    assert_same(model, network(), images())


@pytest.mark.parametrize(
    "layer", [BottleneckRepGraph.paper, SimpleRepGraph.paper, partial(BottleneckRepGraph.paper, nodes=4)], ids=str
)
def test_the_papers_form_starts_as_the_identity_too(layer):
    model = insert(network(), EVERYWHERE, layer)
    assert {(each.scale, each.spread.name) for each in inserted(model).values()} == {(1.0, "default")}
    assert_same(model, network(), images())


def test_identity_is_an_option():
    model = insert(network(), EVERYWHERE, zero_init=False)
    assert not torch.equal(model(images()), network()(images()))


def test_layers_of_ones_own():
    model = insert(network().double(), {"stage1": 1, "stage3": 1}, Shift, by=2.0).eval()
    first, last = inserted(model).values()
    assert first.shift.shape[0] == 8 and last.shift.shape[0] == 16
    assert first.shift.dtype == torch.float64 and not first.training
    x = torch.zeros(1, 8, 5, 5, dtype=torch.float64)
    assert torch.equal(model.stage1[2](x), model.stage1[2].forward(x + 2))
    y = torch.zeros(1, 12, 5, 5, dtype=torch.float64)
    assert torch.equal(model.stage3(y), model.stage3[0].forward(y) + 2)


def test_remove_takes_everything_out():
    before = network()
    plain = {name: dict(vars(module)) for name, module in before.named_modules()}
    model = insert(before, EVERYWHERE)
    assert remove(model) is model
    assert inserted(model) == {}
    assert [name for name, _ in model.named_modules()] == list(plain)
    for name, module in model.named_modules():
        assert vars(module) == plain[name], name
    assert_same(model, network(), images())
    assert remove(model) is model  # of nothing


def test_layers_come_one_stage_after_another():
    model = insert(network(), {"stage3": 1})
    insert(model, {"stage1": 1}, SimpleRepGraph)
    assert list(inserted(model)) == ["stage1.2.repgraph", "stage3.0.repgraph"]
    assert_same(model, network(), images())
    insert(remove(model), EVERYWHERE)
    assert list(inserted(model)) == PATHS


def test_nothing_to_insert():
    assert inserted(insert(network(), {})) == {}


def test_hooks_of_the_block_see_what_the_block_gets():
    model = network().eval()
    seen = []
    model.stage1[2].register_forward_pre_hook(lambda block, args: seen.append(args[0]))
    insert(model, {"stage1": 1}, Shift)
    x = torch.zeros(1, 8, 5, 5)
    model.stage1[2](x)
    assert len(seen) == 1  # and none from finding the channels
    assert torch.equal(seen[0], torch.ones_like(x))
    remove(model)
    model.stage1[2](x)
    assert torch.equal(seen[1], x)


def test_further_arguments_pass_by():
    class Scaled(Block):
        def forward(self, x: Tensor, factor: float = 1.0, shift: float = 0.0) -> Tensor:
            return super().forward(x) * factor + shift

    stage = nn.Sequential(Scaled(8, 8), Scaled(8, 8)).eval()
    model = insert(nn.ModuleDict({"stage": stage}), {"stage": 1}, Shift)
    x = torch.randn(1, 8, 5, 5)
    assert torch.equal(model["stage"][1](x, 2.0, shift=3.0), stage[1].forward(x + 1) * 2 + 3)
