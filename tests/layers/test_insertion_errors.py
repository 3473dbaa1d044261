"""What insertion refuses, in words that help; and that the network is untouched then."""

import re
import warnings
from functools import partial

import pytest
import torch
import torch.distributed
from tests.layers.networks import EVERYWHERE, Block, images, network, one_thread
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph
from repgraph.layers.insertion import insert, inserted, remove

__all__ = ["one_thread"]  # for all tests here

KNOWN = r"Its stages, with their blocks: 'stage1' (3), 'stage2' (2), 'stage3' (1)"


def refused(model: nn.Module, error: type[Exception], message: str, *args, **options) -> None:
    """Refused with that message, and the model is as it was."""
    plain = {name: {key: copied(value) for key, value in vars(m).items()} for name, m in model.named_modules()}
    with pytest.raises(error, match=re.escape(message)):
        insert(model, *args, **options)
    assert {name: {key: copied(value) for key, value in vars(m).items()} for name, m in model.named_modules()} == plain


def copied(value):
    return dict(value) if isinstance(value, dict) else value


@pytest.mark.parametrize("model", [None, "resnet18", [nn.ReLU()], nn.ReLU])
@pytest.mark.parametrize("call", [inserted, remove, partial(insert, where={"stage1": 1})])
def test_no_module(call, model):
    with pytest.raises(TypeError, match=r"the model is a \w+; a torch.nn.Module is needed"):
        call(model)


@pytest.mark.parametrize("where", ["stage1", ["stage1"], {"stage1"}, 1, None, {1: 1}])
def test_no_dict(where):
    refused(network(), TypeError, f"where is {where!r}; a dict of stages and numbers", where)


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (0, ValueError, "where['stage1'] is 0; at least 1 is needed"),
        (-1, ValueError, "where['stage1'] is -1; at least 1"),
        (True, TypeError, "where['stage1'] is True; a whole number is needed"),
        (1.0, TypeError, "where['stage1'] is 1.0; a whole number"),
        ("1", TypeError, "where['stage1'] is '1'; a whole number"),
        (None, TypeError, "where['stage1'] is None; a whole number"),
        (3, ValueError, "3 layers for 'stage1', which has 3 blocks: it takes up to 2"),
    ],
)
def test_counts(count, error, message):
    refused(network(), error, message, {"stage2": 1, "stage1": count})


def test_more_than_one_in_a_stage_of_one_block():
    refused(network(), ValueError, "it takes up to 1 (it stands after the block)", {"stage3": 2})


def test_wrong_names():
    model = network()
    refused(model, ValueError, f"no module 'stge2'; did you mean 'stage2'? {KNOWN}", {"stge2": 1})
    refused(model, ValueError, f"no module 'nothing'. {KNOWN}", {"stage1": 1, "nothing": 1})
    refused(model, ValueError, f"'stage1.0' is not a stage: not a list of blocks. {KNOWN}", {"stage1.0": 1})
    refused(model, ValueError, "'stage1.0.conv1' is not a stage", {"stage1.0.conv1": 1})
    refused(model, ValueError, "is not a stage", {"conv1": 1})
    refused(model, ValueError, "'' is not a stage", {"": 1})
    outer = nn.ModuleDict({"backbone": model})
    refused(outer, ValueError, "did you mean 'backbone.stage2'", {"backbne.stage2": 1})
    refused(outer, ValueError, "did you mean 'stage2'", {"stag2": 1})
    refused(outer, ValueError, "'backbone' is not a stage", {"backbone": 1})


def test_no_stages():
    refused(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), ValueError, "No stages were found in it", {"layer3": 1})
    refused(nn.Linear(3, 3), ValueError, "No stages were found in it", {"layer3": 1})


def test_names_that_fit_several_stages():
    model = nn.ModuleDict({"left": network(), "right": network()})
    refused(model, ValueError, "'stage2' fits several stages: 'left.stage2', 'right.stage2'", {"stage2": 1})
    insert(model, {"left.stage2": 1})
    assert list(inserted(model)) == ["left.stage2.1.repgraph"]


def test_a_whole_path_comes_before_an_end():
    model = network()
    model.inner = nn.ModuleDict({"stage2": network().stage2})
    insert(model, {"stage2": 1})
    assert list(inserted(model)) == ["stage2.1.repgraph"]


def test_a_layer_there_already():
    model = insert(network(), {"stage1": 1})
    layer = inserted(model)["stage1.2.repgraph"]
    message = "a layer stands at 'stage1.2' already; repgraph.remove takes"
    refused(model, ValueError, message, {"stage2": 1, "stage1": 1})
    refused(model, ValueError, message, {"stage1": 2}, SimpleRepGraph)
    assert inserted(model) == {"stage1.2.repgraph": layer}


def test_a_stage_named_twice():
    model = nn.ModuleDict({"backbone": network()})
    refused(model, ValueError, "a layer stands at 'backbone.stage1.2' already", {"stage1": 1, "backbone.stage1": 1})


def test_concat_does_not_fit():
    message = "fusion='concat' doubles the channels; an inserted layer needs fusion='sum'"
    refused(network(), ValueError, message, EVERYWHERE, fusion="concat")
    refused(network(), ValueError, message, EVERYWHERE, SimpleRepGraph, fusion="concat")
    refused(network(), ValueError, message, EVERYWHERE, partial(BottleneckRepGraph, fusion="concat"))
    assert len(inserted(insert(network(), EVERYWHERE, fusion="sum"))) == 4


def test_layers_that_do_not_keep_the_shape():
    wide = partial(nn.Conv2d, out_channels=12, kernel_size=1)  # fits stage2 and no other
    refused(network(), ValueError, "layer makes 12 of the 8 channels at 'stage1.2'", {"stage2": 1, "stage1": 1}, wide)
    nameless = lambda channels: nn.Sequential(nn.Conv2d(channels, 12, 1))  # noqa: E731
    refused(network(), ValueError, "layer makes (2, 12, 64, 64) of (2, 8, 64, 64) at 'stage1.1'", EVERYWHERE, nameless)
    halved = lambda channels: nn.MaxPool2d(2)  # noqa: E731
    refused(network(), ValueError, "layer makes (2, 8, 32, 32) of (2, 8, 64, 64)", EVERYWHERE, halved)
    refused(network(), TypeError, "layer made a int for 'stage1.1'; a torch.nn.Module is needed", EVERYWHERE, int)


def test_errors_of_the_layer_itself():
    refused(network(), TypeError, "unexpected keyword argument 'node'", EVERYWHERE, node=3)
    refused(network(), ValueError, "groups=5 does not divide", EVERYWHERE, groups=5)
    calls = []

    def second(channels: int) -> nn.Module:
        calls.append(channels)
        if len(calls) == 2:
            raise RuntimeError("not twice")
        return nn.Identity()

    refused(network(), RuntimeError, "not twice", EVERYWHERE, second)
    assert calls == [8, 8]


class Halves(Block):
    """A block of which no convolution has the channels of its input."""

    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, 1)
        return torch.cat((first, super().forward(second)), 1)


def test_channels_that_cannot_be_found():
    model = nn.ModuleDict({"stage": nn.Sequential(Halves(), Halves())})
    message = "cannot find the channels at 'stage.1': give them, such as channels={'stage': 1024}"
    refused(model, ValueError, message, {"stage": 1})
    insert(model, {"stage": 1}, channels={"stage": 8})
    assert inserted(model)["stage.1.repgraph"].channels == 8
    assert model["stage"](torch.randn(1, 8, 7, 7)).shape == (1, 8, 7, 7)


def test_channels_given_wrongly():
    model = network()
    refused(
        model,
        ValueError,
        "channels['stage2'] is 8, but at 'stage2.1' there are 12",
        {"stage2": 1},
        channels={"stage2": 8},
    )
    refused(model, ValueError, "channels has 'stage3', which where has not", {"stage2": 1}, channels={"stage3": 8})
    refused(model, ValueError, "channels['stage2'] is 0; at least 1", {"stage2": 1}, channels={"stage2": 0})
    refused(model, TypeError, "channels['stage2'] is 2.5; a whole", {"stage2": 1}, channels={"stage2": 2.5})
    refused(model, TypeError, "channels is 12; a dict", {"stage2": 1}, channels=12)
    assert inserted(insert(model, {"stage3": 1}, channels={"stage3": 16}))["stage3.0.repgraph"].channels == 16


def test_a_traced_network():
    traced = torch.fx.symbolic_trace(network())
    message = "'stage1.2' is in a torch.fx.GraphModule, which calls the parts of the block and not the block: insert"
    refused(nn.ModuleDict({"body": traced}), ValueError, message.replace("stage1", "body.stage1"), {"stage1": 1})
    refused(traced, ValueError, message, {"stage1": 1})


def test_a_traced_network_that_calls_its_blocks():
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, module: nn.Module, path: str) -> bool:
            return isinstance(module, Block) or super().is_leaf_module(module, path)

    model = network().eval()
    traced = torch.fx.GraphModule(model, Tracer().trace(model))
    insert(traced, {"stage1": 1}, zero_init=False)
    assert not torch.equal(traced(images()), network().eval()(images()))


def test_a_compiled_network():
    compiled = torch.compile(network(), backend="eager")
    refused(
        compiled, ValueError, "the model is wrapped by OptimizedModule already: insert the layers first", EVERYWHERE
    )
    model = network()
    model.stage2.compile(backend="eager")
    refused(model, ValueError, "'stage2' is compiled already: insert the layers first", EVERYWHERE)
    assert len(inserted(insert(model, {"stage1": 1}))) == 1
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(ValueError, match="OptimizedModule already: remove the layers from the network inside it"):
        remove(compiled)
    assert len(inserted(compiled)) == 1


def test_a_scripted_network():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch deprecates it, with another warning in each release
        scripted = torch.jit.script(nn.Sequential(network().stage1))
    with pytest.raises(ValueError, match="'0' is a ScriptModule, which takes no layers: insert them first"):
        insert(scripted, {"0": 1})


def test_wrapped_networks():
    assert list(inserted(insert(nn.DataParallel(network()), {"stage2": 1}))) == ["module.stage2.1.repgraph"]
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network())
        refused(wrapped, ValueError, "the model is wrapped by DistributedDataParallel already: insert", {"stage2": 1})
        insert(wrapped.module, {"stage2": 1})
        with pytest.raises(ValueError, match="DistributedDataParallel already: remove"):
            remove(wrapped)
    finally:
        torch.distributed.destroy_process_group()


def test_blocks_that_get_no_tensor():
    class Listed(Block):
        def forward(self, x: list[Tensor] | Tensor) -> list[Tensor]:
            return [super().forward(x if isinstance(x, Tensor) else sum(x))]

    model = insert(nn.ModuleDict({"stage": nn.Sequential(Listed(8, 8), Listed(8, 8))}), {"stage": 1})
    with pytest.raises(TypeError, match=r"inserted into a Listed gets a list; it needs one tensor \(B, C, H, W\)"):
        model["stage"](torch.randn(1, 8, 5, 5))
    with pytest.raises(TypeError, match="inserted into a Listed gets a NoneType"):
        model["stage"][1](x=torch.randn(1, 8, 5, 5))
