"""How stages and blocks are found, which module holds a layer, and how a block is probed."""

from collections import OrderedDict

import pytest
import torch
from tests.layers.networks import Block, assert_same, network
from torch import Tensor, nn

from repgraph.layers import insert, inserted, remove
from repgraph.layers.stages import find_stage, stages


def chain(channels: int = 8) -> nn.Sequential:
    """A block that is a list."""
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())


class Children(nn.Module):
    """A module that calls all its children, but is not an nn.Sequential."""

    def __init__(self, *children: nn.Module) -> None:
        super().__init__()
        for i, child in enumerate(children):
            self.add_module(f"b{i}", child)

    def forward(self, x: Tensor) -> Tensor:
        for child in self.children():
            x = child(x)
        return x


class Stage(nn.Module):
    """A stage with its blocks in ``blocks``, after another module."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.downsample = nn.Conv2d(8, 8, 2, 2)
        self.blocks = nn.ModuleList(Block(8, 8) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (network(), {"stage1": 3, "stage2": 2, "stage3": 1}),
        (nn.ModuleDict({"net": network()}), {"net.stage1": 3, "net.stage2": 2, "net.stage3": 1}),
        (nn.Sequential(Stage(3), Stage(2), Stage(1)), {"0": 3, "1": 2, "2": 1}),
        (nn.Sequential(Children(Block(8, 8)), Children(Block(8, 8), Block(8, 8))), {"0": 1, "1": 2}),
        (nn.Sequential(nn.Sequential(chain(), chain()), nn.Sequential(chain(), chain())), {"0": 2, "1": 2}),
        (nn.Sequential(Block(8, 8), nn.Sequential(Block(8, 8))), {"": 2}),
        (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), {}),
        (nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(2))), {}),
        (nn.Sequential(Block(8, 8)), {}),
    ],
)
def test_stages(model, found):
    assert stages(model) == found


def test_inserted_layers_do_not_change_the_stages():
    assert stages(insert(network(), {"stage1": 2, "stage2": 1, "stage3": 1})) == stages(network())

    def with_a_stage(channels: int) -> nn.Module:
        return nn.Sequential(OrderedDict(stage1=nn.Sequential(Block(channels, channels), Block(channels, channels))))

    model = insert(nn.ModuleDict({"net": network()}), {"stage2": 1}, with_a_stage)
    assert stages(model) == stages(nn.ModuleDict({"net": network()})) and find_stage(model, "stage1") == "net.stage1"


def test_names():
    model = network()
    model.alias = model.stage1  # a stage with two names
    assert stages(model) == {"stage1": 3, "stage2": 2, "stage3": 1}
    outer = nn.ModuleDict({"first": model, "second": model})
    assert find_stage(outer, "stage1") == "first.stage1" and find_stage(outer, "second.stage1") == "second.stage1"
    model = nn.ModuleDict({"body": nn.Sequential(network().stage1, nn.Sequential(Block(8, 8), Block(8, 8)))})
    with pytest.raises(ValueError, match=r"'body' is not a stage .* 'body.0' \(3\), 'body.1' \(2\)"):
        find_stage(model, "body")


# A network; where; the paths of the layers.
PLACES = {
    "the model is the stage": (lambda: nn.Sequential(Block(8, 8), Block(8, 8)), {"": 1}, ["1.repgraph"]),
    "blocks in a list of their own": (
        lambda: nn.Sequential(Stage(1), Stage(3)),
        {"0": 1, "1.blocks": 1},
        ["0.blocks.0.repgraph", "1.blocks.2.repgraph"],
    ),
    "blocks that are lists": (
        lambda: nn.Sequential(nn.Sequential(chain(), nn.Sequential(chain(), chain())), nn.Sequential(chain())),
        {"0": 1, "1": 1},
        ["0.1.0.0.repgraph", "1.0.0.repgraph"],
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_module_that_holds_a_layer(name):
    """The first in the block that does not call its children itself: each layer is called once."""
    make, where, paths = PLACES[name]
    model, before, x = make(), make(), torch.randn(2, 8, 22, 26)
    before.load_state_dict(model.state_dict())
    insert(model, where)
    assert list(inserted(model)) == paths
    assert_same(model, before, x)
    calls = []
    for layer in inserted(model).values():
        layer.register_forward_hook(lambda module, *_: calls.append(module))
    model(x)
    assert sorted(map(id, calls)) == sorted(map(id, inserted(model).values()))
    assert not any("repgraph" in key for key in remove(model).state_dict())


def test_shared_modules():
    act = nn.ReLU()
    model = nn.Sequential(*(nn.Sequential(act, *chain()) for _ in range(3)))
    assert list(inserted(insert(model, {"": 2}))) == ["1.1.repgraph", "2.1.repgraph"]  # not in the shared one
    empty = nn.ModuleDict({"stage": nn.Sequential(*(nn.Sequential(nn.Sequential(act)) for _ in range(2)))})
    with pytest.raises(ValueError, match=r"no module in 'stage.1' can hold a layer"):
        insert(empty, {"stage": 1}, channels={"stage": 8})
