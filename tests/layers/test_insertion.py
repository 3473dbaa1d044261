"""Insertion into a small network: outputs do not change, layers are in the right place and learn, copies work."""

import copy
import pickle
from functools import partial

import pytest
import torch
from tests.layers.mechanics import save_and_load
from tests.layers.networks import EVERYWHERE, KINDS, PATHS, assert_same, images, network, stir
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from repgraph.layers import BottleneckRepGraph, SimpleRepGraph, insert, inserted, remove

CLOSE = dict(rtol=1e-4, atol=1e-5)


class Shift(nn.Module):
    def __init__(self, channels: int, by: float = 1.0) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((channels, 1, 1), by))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_do_not_change(kind):
    before = network()
    model = copy.deepcopy(before)
    assert insert(model, EVERYWHERE, kind) is model
    assert {path: type(layer) for path, layer in inserted(model).items()} == dict.fromkeys(PATHS, kind)
    assert_same(model, before, images())
    with pytest.raises(AssertionError, match="training=True"):  # which it does not if a layer is not the identity
        assert_same(stir(model), before, images())


@pytest.mark.parametrize("kind", KINDS)
def test_layers_precede_the_last_blocks(kind):
    model = stir(insert(network(), EVERYWHERE, kind).eval())
    first, second, third, fourth = inserted(model).values()
    x = images()
    with torch.no_grad():
        got = model(x)
        y = model.stage1[0](model.stem(x))
        y = model.stage1[1].forward(first(y))  # forward: without hooks
        y = model.stage1[2].forward(second(y))
        y = model.stage2[1].forward(third(model.stage2[0](y)))
        y = fourth(model.stage3[0].forward(y))
        assert torch.equal(got, model.head(y.mean((2, 3))))
        assert not torch.equal(got, remove(model)(x))


def test_parameter_names_of_the_network_do_not_change():
    state = network().state_dict()
    model = insert(network(), EVERYWHERE)
    assert [name for name in model.state_dict() if ".repgraph." not in name] == list(state)
    report = model.load_state_dict(state, strict=False)
    assert report.unexpected_keys == []
    assert {name.split(".repgraph.")[0] + ".repgraph" for name in report.missing_keys} == set(PATHS)
    assert len(model.stage1) == 3  # lists of blocks keep their length
    other = stir(insert(network(), EVERYWHERE)).eval()
    model.load_state_dict(other.state_dict())
    assert torch.equal(model.eval()(images()), other(images()))


def test_layers_have_mode_dtype_and_device_of_their_block():
    model = network().double()
    model.stage1.eval()
    insert(model, {"stage1": 1, "stage2": 1}, backend="reference")
    first, second = inserted(model).values()
    assert not any(module.training for module in first.modules())
    assert all(module.training for module in second.modules())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert_same(model, network().double(), images(dtype=torch.float64))
    for kind in (BottleneckRepGraph, Shift):
        model = insert(network().to("meta"), EVERYWHERE, kind)
        assert {parameter.device.type for parameter in model.parameters()} == {"meta"} and len(inserted(model)) == 4


def test_partials_and_class_methods_start_as_identity_too():
    model = insert(network(), EVERYWHERE, partial(BottleneckRepGraph, nodes=4, radius=2.0), radius=3.0)
    assert {(layer.nodes, layer.spread.extent) for layer in inserted(model).values()} == {(4, 3)}
    assert_same(model, network(), images())
    for layer in (SimpleRepGraph.paper, partial(BottleneckRepGraph.paper, nodes=4)):
        model = insert(network(), EVERYWHERE, layer)
        assert {(each.scale, each.spread.name) for each in inserted(model).values()} == {(1.0, "default")}
        assert_same(model, network(), images())


def test_user_defined_layers():
    model = insert(network().double(), {"stage1": 1}, Shift, by=2.0).eval()
    (layer,) = inserted(model).values()
    assert len(layer.shift) == 8 and layer.shift.dtype == torch.float64 and not layer.training
    x = torch.zeros(1, 8, 5, 5, dtype=torch.float64)
    assert torch.equal(model.stage1[2](x), model.stage1[2].forward(x + 2))


def test_remove_restores_the_network():
    before = network()
    plain = {name: dict(vars(module)) for name, module in before.named_modules()}
    model = insert(before, {"stage3": 1})
    insert(model, {"stage1": 1}, SimpleRepGraph)  # one stage after another
    assert list(inserted(model)) == ["stage1.2.repgraph", "stage3.0.repgraph"]
    assert remove(model) is model and inserted(model) == {}
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == plain
    assert_same(model, network(), images())
    assert remove(model) is model and inserted(insert(model, {})) == {}  # nothing to do
    assert list(inserted(insert(model, EVERYWHERE))) == PATHS


def changed() -> nn.Module:
    """A network with layers that are not the identity, one of them held deeper than its block."""
    model = network()
    model.stage2[1] = nn.Sequential(model.stage2[1])
    return stir(insert(model, EVERYWHERE)).eval()


COPIES = [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), save_and_load]


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle", "save"])
def test_copies_use_their_own_layers(duplicate):
    model, x = changed(), images()
    expected, other = model(x), duplicate(model)
    assert list(inserted(other)) == list(inserted(model)) == [p.replace("stage2.1.", "stage2.1.0.") for p in PATHS]
    assert torch.equal(other(x), expected)
    for path, layer in inserted(other).items():
        assert layer is not inserted(model)[path]
        with torch.no_grad():
            layer.expand_norm.bias.add_(1)
            assert not torch.equal(other(x), expected), path
            layer.expand_norm.bias.sub_(1)
    assert torch.equal(model(x), expected)
    assert torch.equal(remove(other)(x), network().eval()(x))
    assert not any("repgraph" in name for name in other.state_dict()) and len(inserted(model)) == 4
    assert not any(block._forward_pre_hooks or block._forward_hooks for block in other.modules())


def test_new_hooks_do_not_replace_those_of_a_loaded_network(monkeypatch):
    stored = pickle.dumps(stir(insert(network(), {"stage1": 1})).eval())
    expected = pickle.loads(stored)(images())
    number = next(iter(pickle.loads(stored).stage1[2]._forward_pre_hooks))
    monkeypatch.setattr(RemovableHandle, "next_id", number)  # as it may be in another process
    model, calls = pickle.loads(stored), []
    model.stage1[2].register_forward_pre_hook(lambda block, args: calls.append(1))
    assert torch.equal(model(images()), expected) and calls == [1]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11's tracer itself
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.slow
def test_compiles_into_one_graph(training):
    model = changed().train(training)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # compiled code draws other numbers
    torch._dynamo.reset()
    own = copy.deepcopy(model)
    got, expected = torch.compile(own, backend="aot_eager", fullgraph=True)(images()), model(images())
    torch.testing.assert_close(got, expected, **CLOSE)
    got.sum().backward()
    expected.sum().backward()
    for (name, ours), theirs in zip(own.named_parameters(), model.parameters(), strict=True):
        if ".repgraph." in name:
            torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE, msg=lambda text, at=name: f"{at}: {text}")


def test_exports_and_traces():
    model = changed()
    program = torch.export.export(model, (images(),))
    assert set(program.state_dict) == set(model.state_dict())
    torch.testing.assert_close(program.module()(images()), model(images()), **CLOSE)
    traced = torch.fx.symbolic_trace(model)
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert [name for name in called if "repgraph" in name] == list(inserted(model))
    assert torch.equal(traced(images()), model(images()))
