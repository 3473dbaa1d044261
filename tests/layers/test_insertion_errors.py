"""Errors of insertion, after which the network is unchanged."""

import re
from functools import partial

import pytest
import torch
import torch.distributed
from tests.layers.networks import EVERYWHERE, Block, network
from torch import Tensor, nn

from repgraph.layers import SimpleRepGraph, insert, inserted, remove

SHAPE = "layer turns (2, 8, 64, 64) into (2, 16, 64, 64) at 'stage1.1'; it has to keep the shape"
STAGES = "Stages and their blocks: 'stage1' (3), 'stage2' (2), 'stage3' (1)"


def assert_raises(model: nn.Module, message: str, *args, error: type[Exception] = ValueError, **options) -> None:
    """The error has the message, and the model is unchanged."""

    def snapshot():
        return {
            name: {key: dict(value) if isinstance(value, dict) else value for key, value in vars(module).items()}
            for name, module in model.named_modules()
        }

    before = snapshot()
    with pytest.raises(error, match=re.escape(message)):
        insert(model, *args, **options)
    assert snapshot() == before


INVALID = [
    (["stage1"], {}, TypeError, "where is ['stage1']; expected a dict from stages to integers"),
    ({"stage2": 1, "stage1": 0}, {}, ValueError, "where['stage1'] is 0; expected an integer from 1"),
    ({"stage1": 3}, {}, ValueError, "where['stage1'] is 3; expected at most 2 (layers go before"),
    ({"stage3": 2}, {}, ValueError, "where['stage3'] is 2; expected at most 1 (the stage has one block)"),
    ({"stge2": 1}, {}, ValueError, f"'stge2' is not a module; did you mean 'stage2'? {STAGES}"),
    ({"stage1.0": 1}, {}, ValueError, f"'stage1.0' is not a stage (a list of blocks). {STAGES}"),
    (EVERYWHERE, dict(layer=partial(SimpleRepGraph, fusion="concat")), ValueError, SHAPE),
    (EVERYWHERE, dict(node=3), TypeError, "unexpected keyword argument 'node'"),
    (EVERYWHERE, dict(layer={8: nn.Identity()}.__getitem__), KeyError, "12"),  # an error in the second stage
]


@pytest.mark.parametrize(("where", "options", "error", "message"), INVALID, ids=range(len(INVALID)))
def test_invalid_arguments(where, options, error, message):
    assert_raises(network(), message, where, error=error, **options)


def test_names_in_a_larger_model():
    outer = nn.ModuleDict({"backbone": network()})
    assert_raises(outer, "did you mean 'backbone.stage2'", {"backbne.stage2": 1})
    assert_raises(outer, "'backbone.stage1.2' already has an inserted", {"stage1": 1, "backbone.stage1": 1})
    assert_raises(nn.Linear(3, 3), "Stages and their blocks: none", {"layer3": 1})
    model = nn.ModuleDict({"left": network(), "right": network()})
    assert_raises(model, "'stage2' matches several stages: 'left.stage2', 'right.stage2'", {"stage2": 1})
    assert list(inserted(insert(model, {"left.stage2": 1}))) == ["left.stage2.1.repgraph"]
    model = network()
    model.inner = nn.ModuleDict({"stage2": network().stage2})  # a full path precedes the end of one
    assert list(inserted(insert(model, {"stage2": 1}))) == ["stage2.1.repgraph"]


class Halves(Block):
    """A block in which no convolution has the channels of the input."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, 1)
        return torch.cat((first, super().forward(second)), 1)


class Gate(nn.Module):
    """A block that takes any number of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.conv(x.mean(1, keepdim=True))


def test_channels():
    model = nn.ModuleDict({"stage": nn.Sequential(Gate(), Gate())})
    assert_raises(model, "cannot find the channels at 'stage.1'", {"stage": 1})
    model = nn.ModuleDict({"stage": nn.Sequential(Halves(), Halves())})
    assert_raises(model, "cannot find the channels at 'stage.1'; for maps, pass them: channels={'stage'", {"stage": 1})
    insert(model, {"stage": 1}, channels={"stage": 8})
    assert model["stage"](torch.randn(1, 8, 7, 7)).shape == (1, 8, 7, 7)
    model = network()
    assert inserted(insert(model, {"stage3": 1}, channels={"stage3": 16}))["stage3.0.repgraph"].channels == 16


def test_traced_and_compiled_networks():
    traced = nn.ModuleDict({"body": torch.fx.symbolic_trace(network())})
    assert_raises(traced, "'body' is already wrapped in GraphModule; insert the layers first", {"stage1": 1})
    compiled = torch.compile(network(), backend="eager")
    assert_raises(compiled, "the model is already wrapped in OptimizedModule; insert the layers first", EVERYWHERE)
    model = network()
    model.stage2.compile(backend="eager")
    assert_raises(model, "'stage2' is already compiled; insert the layers first", EVERYWHERE)
    insert(model, {"stage1": 1})
    with pytest.raises(ValueError, match="OptimizedModule; remove the layers from the network inside it"):
        remove(torch.compile(model, backend="eager"))
    assert len(inserted(model)) == 1


def test_wrapped_networks():
    assert list(inserted(insert(nn.DataParallel(network()), {"stage2": 1}))) == ["module.stage2.1.repgraph"]
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network())
        assert_raises(wrapped, "the model is already wrapped in DistributedDataParallel; insert", {"stage2": 1})
    finally:
        torch.distributed.destroy_process_group()


def test_blocks_that_get_no_tensor():
    class Listed(Block):
        def forward(self, x: list[Tensor] | Tensor) -> list[Tensor]:
            return [super().forward(x if isinstance(x, Tensor) else sum(x))]

    blocks = [Listed(8, 8), Listed(8, 8)]
    message = "cannot insert at 'stage.1': the block gets a list; layers need maps (B, C, H, W)"
    assert_raises(nn.ModuleDict({"stage": nn.Sequential(*blocks)}), message, {"stage": 1})
    model = insert(nn.ModuleDict({"stage": nn.ModuleList(blocks)}), {"stage": 1})  # nothing known about its calls
    with pytest.raises(TypeError, match=r"inserted into a Listed got a list; expected a tensor \(B, C, H, W\)"):
        model["stage"][1](model["stage"][0](torch.randn(1, 8, 5, 5)))
    with pytest.raises(TypeError, match="inserted into a Listed got a NoneType"):
        model["stage"][1](x=torch.randn(1, 8, 5, 5))
