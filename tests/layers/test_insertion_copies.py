"""Networks with inserted layers are copied, stored, compiled, exported and traced, and take their layers along."""

import copy
import io
import pickle

import pytest
import torch
from tests.layers.networks import EVERYWHERE, PATHS, images, network, one_thread, stir
from torch import nn
from torch.utils.hooks import RemovableHandle

from repgraph.layers import BottleneckRepGraph
from repgraph.layers.insertion import insert, inserted, remove

__all__ = ["one_thread"]  # for all tests here

CLOSE = dict(rtol=1e-4, atol=1e-5)


def changed(layer=BottleneckRepGraph) -> nn.Module:
    """A network with layers that are not the identity, and in which one is held deeper than its block."""
    model = network()
    model.stage2[1] = nn.Sequential(model.stage2[1])
    return stir(insert(model, EVERYWHERE, layer)).eval()


def pointwise(channels: int) -> nn.Module:
    return nn.Conv2d(channels, channels, 1)


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), saved]


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle", "save"])
def test_copies_use_their_own_layers(duplicate):
    model = changed()
    x = images()
    expected = model(x)
    other = duplicate(model)
    paths = [path.replace("stage2.1.", "stage2.1.0.") for path in PATHS]
    assert list(inserted(other)) == list(inserted(model)) == paths
    assert torch.equal(other(x), expected)
    for path, layer in inserted(other).items():
        assert layer is not inserted(model)[path]
        with torch.no_grad():
            layer.expand_norm.bias.add_(1)
        changed_now = other(x)
        assert not torch.equal(changed_now, expected), path
        with torch.no_grad():
            layer.expand_norm.bias.sub_(1)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("duplicate", COPIES, ids=["deepcopy", "pickle", "save"])
def test_layers_are_removed_from_copies(duplicate):
    model = changed()
    other = remove(duplicate(model))
    assert inserted(other) == {} and len(inserted(model)) == 4
    assert not any("repgraph" in name for name in other.state_dict())
    assert not any(block._forward_pre_hooks or block._forward_hooks for block in other.modules())
    plain = network().eval()
    assert torch.equal(other(images()), plain(images()))
    assert not torch.equal(model(images()), plain(images()))


def test_hooks_of_a_new_process_do_not_replace_ours(monkeypatch):
    stored = pickle.dumps(stir(insert(network(), {"stage1": 1})).eval())
    expected = pickle.loads(stored)(images())
    number = next(iter(pickle.loads(stored).stage1[2]._forward_pre_hooks))
    monkeypatch.setattr(RemovableHandle, "next_id", number)  # as it may stand in another process
    model = pickle.loads(stored)
    calls = []
    model.stage1[2].register_forward_pre_hook(lambda block, args: calls.append(1))
    assert torch.equal(model(images()), expected)
    assert calls == [1]


def test_a_part_is_copied_with_its_layers():
    stage = changed().stage1
    x = torch.randn(1, 8, 9, 9)
    assert torch.equal(copy.deepcopy(stage)(x), stage(x))
    assert list(inserted(stage)) == ["1.repgraph", "2.repgraph"]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch 2.11's tracer itself
@pytest.mark.parametrize(
    ("layer", "training"), [(BottleneckRepGraph, False), (BottleneckRepGraph, True), (pointwise, True)]
)
def test_compiles_into_one_graph(layer, training):
    model = changed(layer).train(training)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # compiled code draws other numbers
    torch._dynamo.reset()
    own = copy.deepcopy(model)
    compiled = torch.compile(own, backend="aot_eager", fullgraph=True)
    got, expected = compiled(images()), model(images())
    torch.testing.assert_close(got, expected, **CLOSE)
    got.sum().backward()
    expected.sum().backward()
    for path, each in inserted(own).items():
        for (name, ours), theirs in zip(each.named_parameters(), inserted(model)[path].parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, **CLOSE, msg=lambda text, at=name: f"{at}: {text}")


def test_exports():
    model = changed()
    program = torch.export.export(model, (images(),))
    assert set(program.state_dict) == set(model.state_dict())
    torch.testing.assert_close(program.module()(images()), model(images()), **CLOSE)


def test_a_symbolic_trace_has_the_layers_as_nodes():
    model = changed()
    traced = torch.fx.symbolic_trace(model)
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert [name for name in called if "repgraph" in name] == list(inserted(model))
    assert torch.equal(traced(images()), model(images()))


def test_parameters_may_come_from_outside():
    model = changed()
    other = {name: value + 0.1 for name, value in model.named_parameters() if ".repgraph." in name}
    got = torch.func.functional_call(model, other, (images(),))
    assert not torch.equal(got, model(images()))
    model.load_state_dict(other, strict=False)
    assert torch.equal(got, model(images()))
