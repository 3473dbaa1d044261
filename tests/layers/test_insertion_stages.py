"""How stages and blocks are found, and which module holds a layer."""

import pytest
import torch
from tests.layers.networks import Block, assert_same, network, one_thread
from torch import Tensor, nn

from repgraph.layers.insertion import insert, inserted, remove
from repgraph.layers.probe import channels_in
from repgraph.layers.stages import blocks, find, stages

__all__ = ["one_thread"]  # for all tests here


def chain(channels: int = 8) -> nn.Sequential:
    """A block that is a list."""
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())


class Children(nn.Module):
    """A module that calls its children one after another, and is no Sequential."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        for i, child in enumerate(children):
            self.add_module(f"b{i}", child)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


class Stage(nn.Module):
    """A stage with its blocks in ``blocks``, after a part that is none."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.downsample = nn.Conv2d(8, 8, 2, 2)
        self.blocks = nn.ModuleList(Block(8, 8) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x


def test_stages_of_a_network():
    assert stages(network()) == {"stage1": 3, "stage2": 2, "stage3": 1}
    assert stages(nn.ModuleDict({"backbone": network()})) == {
        "backbone.stage1": 3,
        "backbone.stage2": 2,
        "backbone.stage3": 1,
    }


def test_stages_are_the_same_with_layers():
    model = insert(network(), {"stage1": 2, "stage2": 1, "stage3": 1})
    assert stages(model) == stages(network())
    simple = nn.Sequential(nn.Sequential(chain(), chain(), chain()), nn.Sequential(chain(), chain()))
    known = stages(simple)
    assert known == {"0": 3, "1": 2}
    assert stages(insert(simple, {"0": 2, "1": 1})) == known
    short = nn.ModuleDict({"stage": nn.Sequential(chain())})
    assert stages(insert(short, {"stage": 1})) == {}


class Inner(nn.Module):
    """A layer with a stage in it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stage1 = nn.Sequential(Block(channels, channels), Block(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        return self.stage1(x)


def test_inserted_layers_have_no_stages_of_the_network():
    model = insert(nn.ModuleDict({"backbone": network()}), {"stage2": 1}, Inner)
    assert stages(model) == stages(nn.ModuleDict({"backbone": network()}))
    assert find(model, "stage1") == "backbone.stage1"


def test_lists_of_stages_are_none():
    assert stages(nn.Sequential(Stage(3), Stage(2), Stage(1))) == {"0": 3, "1": 2, "2": 1}
    assert stages(nn.Sequential(Children(Block(8, 8)), Children(Block(8, 8), Block(8, 8)))) == {"0": 1, "1": 2}
    assert stages(nn.Sequential(nn.Sequential(Block(8, 8)), nn.Sequential(Block(8, 8)))) == {"0": 1, "1": 1}
    assert stages(nn.ModuleList([network(), network()])).keys() == {f"{i}.stage{k}" for i in "01" for k in "123"}


@pytest.mark.parametrize(
    "model",
    [
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()),
        nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3), nn.ReLU())),
        Block(8, 8),
        nn.Sequential(Block(8, 8)),
    ],
)
def test_networks_without_stages(model):
    assert stages(model) == {}


def test_a_list_of_stages_takes_no_layers():
    model = nn.ModuleDict({"body": nn.Sequential(network().stage1, nn.Sequential(Block(8, 8), Block(8, 8)))})
    with pytest.raises(ValueError, match=r"'body' is not a stage: .* 'body.0' \(3\), 'body.1' \(2\)"):
        insert(model, {"body": 1})


def test_the_model_may_be_the_stage():
    assert stages(nn.Sequential(Block(8, 8), nn.Sequential(Block(8, 8)))) == {"": 2}
    model = nn.Sequential(Block(8, 8), Block(8, 8))
    assert stages(model) == {"": 2}
    assert list(inserted(insert(model, {"": 1}))) == ["1.repgraph"]


def test_a_stage_with_two_names_is_one():
    model = network()
    model.alias = model.stage1
    assert stages(model) == {"stage1": 3, "stage2": 2, "stage3": 1}
    outer = nn.ModuleDict({"first": model, "second": model})
    assert find(outer, "stage1") == "first.stage1"
    assert find(outer, "second.stage1") == "second.stage1"
    insert(outer, {"second.stage1": 1})
    assert list(inserted(outer)) == ["first.stage1.2.repgraph"]


def test_an_end_counts_from_a_dot():
    model = nn.ModuleDict({"a": nn.ModuleDict({"my_stage": Children(Block(8, 8), Block(8, 8))})})
    with pytest.raises(ValueError, match="no module 'stage'"):
        find(model, "stage")
    assert find(model, "my_stage") == "a.my_stage"


def test_modules_that_are_no_stage_do_not_make_a_name_ambiguous():
    model = nn.ModuleDict({"a": nn.ModuleDict({"x": nn.ReLU()}), "b": nn.ModuleDict({"x": network().stage1})})
    assert find(model, "x") == "b.x"


@pytest.mark.parametrize("depth", [1, 3])
def test_blocks_in_a_module_of_their_own(depth):
    model = nn.Sequential(Stage(depth), Stage(2))
    before = nn.Sequential(Stage(depth), Stage(2))
    before.load_state_dict(model.state_dict())
    assert list(blocks(model[0])) == [f"blocks.{i}" for i in range(depth)]
    insert(model, {"0": 1, "1.blocks": 1})
    assert list(inserted(model)) == [f"0.blocks.{depth - 1}.repgraph", "1.blocks.1.repgraph"]
    assert_same(model, before, torch.randn(2, 8, 22, 26))


def test_blocks_that_are_lists_hold_the_layer_further_in():
    model = nn.Sequential(nn.Sequential(chain(), nn.Sequential(chain(), chain())), nn.Sequential(chain()))
    before = nn.Sequential(nn.Sequential(chain(), nn.Sequential(chain(), chain())), nn.Sequential(chain()))
    before.load_state_dict(model.state_dict())
    insert(model, {"0": 1, "1": 1})
    layer, last = inserted(model).values()
    assert list(inserted(model)) == ["0.1.0.0.repgraph", "1.0.0.repgraph"]
    assert len(model[0][1]) == 2 and len(model[1][0]) == 3
    assert_same(model, before, torch.randn(2, 8, 9, 7))
    calls = []
    for each in (layer, last):
        each.register_forward_hook(lambda module, args, result: calls.append((module, args[0], result)))
    x = torch.randn(2, 8, 9, 7)
    y = model.eval()(x)
    assert [call[0] for call in calls] == [layer, last]  # each once
    assert torch.equal(calls[0][1], before.eval()[0][0](x))
    assert calls[1][2] is y
    assert not any("repgraph" in name for name in remove(model).state_dict())


def test_blocks_that_call_their_children_hold_the_layer_further_in():
    def make() -> nn.Module:
        return nn.Sequential(Children(Children(*chain()), Children(*chain())))

    model, before = make(), make()
    before.load_state_dict(model.state_dict())
    insert(model, {"0": 1})
    assert list(inserted(model)) == ["0.b1.b0.repgraph"]
    calls = []
    inserted(model)["0.b1.b0.repgraph"].register_forward_hook(lambda *_: calls.append(1))
    model.eval()(torch.randn(2, 8, 9, 7))
    assert calls == [1]
    assert_same(model, before, torch.randn(2, 8, 9, 7))


def test_shared_parts_hold_no_layer():
    act = nn.ReLU()
    model = nn.Sequential(*(nn.Sequential(act, *chain()) for _ in range(3)))
    insert(model, {"": 2})
    assert list(inserted(model)) == ["1.1.repgraph", "2.1.repgraph"]
    empty = nn.ModuleDict({"stage": nn.Sequential(*(nn.Sequential(nn.Sequential(act)) for _ in range(2)))})
    with pytest.raises(ValueError, match=r"no module in 'stage.1' can hold a layer"):
        insert(empty, {"stage": 1}, channels={"stage": 8})


def test_a_block_that_is_there_twice():
    block = Block(8, 8)
    model = nn.ModuleDict({"stage": nn.Sequential(Block(8, 8), block, block)})
    assert stages(model) == {"stage": 3}
    with pytest.raises(
        ValueError, match=r"'stage.2' is also another block of 'stage': a layer would stand before both"
    ):
        insert(model, {"stage": 1})
    assert inserted(model) == {}


def test_a_stage_inside_a_block():
    def make() -> nn.Module:
        return nn.Sequential(nn.Sequential(chain(), nn.Sequential(chain())))

    model, before = make(), make()
    before.load_state_dict(model.state_dict())
    insert(model, {"0": 1, "0.1": 1})
    assert list(inserted(model)) == ["0.1.0.0.repgraph", "0.1.0.1.repgraph"]
    assert_same(model, before, torch.randn(2, 8, 9, 7))
    assert inserted(remove(model)) == {}


def test_blocks_that_were_traced():
    model = nn.ModuleDict({"stage": nn.Sequential(*(torch.fx.symbolic_trace(Block(8, 8)) for _ in range(2)))})
    insert(model, {"stage": 1}, zero_init=False)
    x = torch.randn(1, 8, 9, 7)
    block = model.eval()["stage"][1]
    assert torch.equal(block(x), block.forward(inserted(model)["stage.1.repgraph"](x)))


def test_a_name_that_is_taken():
    class Taken(Block):
        def __init__(self) -> None:
            super().__init__(8, 8)
            self.repgraph = "mine"

    model = nn.ModuleDict({"stage": nn.Sequential(Taken(), Taken())})
    insert(model, {"stage": 1})
    assert list(inserted(model)) == ["stage.1.conv1.repgraph"]
    assert remove(model)["stage"][1].repgraph == "mine"


class Gate(nn.Module):
    """A block that takes any number of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.conv(x.mean(1, keepdim=True))


class Late(Block):
    """A block whose first convolution is not the first to be called."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self._modules = {"late": nn.Conv2d(5, 8, 1), **self._modules}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.late(x[:, :5])


class Awkward(Block):
    """A block with a tensor that is no buffer, and that looks at its data in training."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.factor = torch.ones(1, 8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.sum().item() == 0:
            return x
        return super().forward(x * self.factor)


def test_channels_of_blocks():
    assert channels_in(Awkward()) == 8
    assert channels_in(Block(8, 12)) == 8
    assert channels_in(Block(8, 12).half()) == 8
    assert channels_in(Late()) == 8
    assert channels_in(Gate()) is None
    assert channels_in(nn.Linear(8, 8)) is None
    assert channels_in(nn.utils.parametrizations.weight_norm(nn.Conv2d(6, 6, 1))) == 6


def test_finding_channels_leaves_a_block_alone():
    block = Block(8, 12).train()
    calls = []
    block.conv1.register_forward_hook(lambda *_: calls.append(1))
    state = {name: value.clone() for name, value in block.state_dict().items()}
    assert channels_in(block) == 8
    assert block.training and block.conv1.training and calls == []
    assert all(torch.equal(value, state[name]) for name, value in block.state_dict().items())
    block(torch.randn(1, 8, 4, 4))
    assert calls == [1]
