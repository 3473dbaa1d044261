"""Collected nodes and weights: those of the operator, in pixels of the image."""

import numpy as np
import pytest
import torch
from tests.visualize.networks import detector, layer_input, picture, rgnet
from torch import nn

from repgraph.data.labels import Labels, voc_palette
from repgraph.data.transforms import normalise
from repgraph.errors import UsageError
from repgraph.layers import DANetHead, NonLocal
from repgraph.models import RGNet
from repgraph.visualize.collect import collect_attention, find_layer
from repgraph.visualize.nodes_figure import figure_rows


def operator(model, image, path):
    """Return nodes in positions of the map, weights, and the shape of the map, from the layer itself."""
    layer = model.get_submodule(path)
    x = layer_input(layer, lambda: model(normalise(image[None], model.mean, model.std)))
    with torch.no_grad():
        _, nodes, weights = layer(x, return_nodes=True)
    return nodes[0].numpy(), weights[0].numpy(), tuple(x.shape[2:])


@pytest.mark.parametrize("options", [{}, {"grid": 2}, {"grid": 3, "groups": 2}, {"grid": "map"}])
def test_nodes_in_pixels(options):
    model, image = rgnet(context_options=options), picture(45, 70)
    (layer,) = collect_attention(model, image).values()
    nodes, weights, shape = operator(model, image, "head.context")
    assert (layer.path, layer.kind, layer.shape) == ("head.context", "nodes", shape)
    np.testing.assert_array_equal(layer.weights, weights)
    height, width = shape
    np.testing.assert_allclose(layer.nodes[:, 0], (nodes[:, 0] + 0.5) * 70 / width - 0.5, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(layer.nodes[:, 1], (nodes[:, 1] + 0.5) * 45 / height - 0.5, rtol=1e-5, atol=1e-4)
    assert np.ptp(layer.nodes) > 4
    grid = max(shape) if options.get("grid") == "map" else options.get("grid", 1)
    found = layer.nodes_at(50, 30)
    row, column = int(30.5 / (45 / height)), int(50.5 / (70 / width))
    assert (found.x, found.y) == pytest.approx(((column + 0.5) * 70 / width - 0.5, (row + 0.5) * 45 / height - 0.5))
    np.testing.assert_array_equal(np.array(found.nodes)[:, :2], layer.nodes[:, :, row // grid, column // grid])
    np.testing.assert_allclose(np.array(found.nodes)[:, 2], weights[:, :, row, column].mean(0), rtol=1e-6)


def test_nodes_on_the_maps_of_a_pyramid():
    options = dict(rounds=2, nodes=3, groups=2)
    model, image = rgnet(decoder="pyramid", output_stride=32, context_options=options), picture(45, 70)
    found = collect_attention(model, image)
    assert list(found) == ["head.context, round 1", "head.context, round 2"]
    nodes, weights = model.nodes(normalise(image[None], model.mean, model.std))
    for each, n, w in zip(found.values(), nodes, weights, strict=True):
        assert each.nodes.shape == (12, 2, 3, 5) and each.weights.shape == (1, 12, 3, 5)
        np.testing.assert_allclose(each.nodes, n[0].detach().flatten(0, 1), atol=1e-3)
        np.testing.assert_allclose(each.weights[0], w[0].detach().flatten(0, 1) / 2, atol=1e-6)


def test_each_round_is_an_entry_and_a_row_of_the_figure():
    model, image = rgnet(context_options={"rounds": 2, "groups": 2}), picture(45, 70)
    found = collect_attention(model, image)
    assert list(found) == ["head.context, round 1", "head.context, round 2"]
    nodes, weights = model.nodes(normalise(image[None], model.mean, model.std))
    labels = Labels(("a", "b", "c"), voc_palette(3), ids=(0, 1, 2))
    rows = figure_rows(model, "x", image, "head.context", labels, [(50, 30), (3, 4)])
    for each, places, own, row in zip(found.values(), nodes, weights, rows, strict=True):
        np.testing.assert_allclose(each.nodes, places[0].detach().numpy(), atol=1e-3)
        np.testing.assert_array_equal(each.weights, own[0].detach().numpy())
        assert row[0].caption == f"x, round {each.round}" and row[1].nodes.nodes == each.nodes_at(50, 30).nodes


def test_inserted_layers():
    model, image = rgnet(inserted={"layer1": 1, "layer3": 1}, inserted_options={"grid": 2}), picture(64, 88)
    found = collect_attention(model, image)
    assert list(found) == [*(f"backbone.body.layer{i}.1.repgraph" for i in (1, 3)), "head.context"]
    for path, layer in found.items():
        nodes, weights, shape = operator(model, image, path)
        np.testing.assert_allclose(layer.nodes[:, 0], (nodes[:, 0] + 0.5) * 88 / shape[1] - 0.5, atol=1e-3)
        np.testing.assert_array_equal(layer.weights, weights)
    assert list(collect_attention(model, image, layers=["layer3.1.repgraph"])) == ["backbone.body.layer3.1.repgraph"]
    with pytest.raises(UsageError, match=r"layer 'layer9' does not exist; choose from backbone.body.layer1"):
        collect_attention(model, image, layers=["layer9"])
    with pytest.raises(UsageError, match="layer 'repgraph' is ambiguous"):
        find_layer(model, "repgraph")


@pytest.mark.parametrize(("size", "options"), [((45, 101), {}), ((80, 40), {"grid": 2})])
def test_detector_resizing_and_padding_are_undone(size, options):
    model, image = detector(context_options={"mid_channels": 4} | options), picture(*size)
    (layer,) = collect_attention(model, image).values()
    module = model.get_submodule(layer.path)
    x = layer_input(module, lambda: model([image]))
    batch, _ = model.detector.transform([image / 255])
    height, width = batch.image_sizes[0]
    assert batch.tensors.shape[-2:] != (height, width)
    with torch.no_grad():
        _, nodes, weights = module(x, return_nodes=True)
    rows, columns = -(-height // 16), -(-width // 16)  # a position is 16 x 16 pixels of the padded batch
    assert layer.shape == (rows, columns) != tuple(x.shape[2:])
    np.testing.assert_array_equal(layer.weights, weights[0, :, :, :rows, :columns])
    cells = nodes[0, ..., : -(-rows // layer.grid), : -(-columns // layer.grid)].numpy()
    expected = (cells[:, 0] + 0.5) * 16 * size[1] / width - 0.5, (cells[:, 1] + 0.5) * 16 * size[0] / height - 0.5
    np.testing.assert_allclose(layer.nodes, np.stack(expected, 1), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 2])
def test_strongest_positions_of_a_non_local_layer(groups):
    model, image = rgnet(context="non_local", context_options={"groups": groups, "scale": 3.0}), picture(48, 72)
    layer = collect_attention(model, image, strongest=7)["head.context"]
    context = model.head.context
    x = layer_input(context, lambda: model(normalise(image[None], model.mean, model.std)))
    height, width = x.shape[2:]
    with torch.no_grad():
        query, key = (t.unflatten(1, (groups, -1)).flatten(3)[0] for t in (context.theta(x), context.phi(x)))
        full = torch.softmax(3.0 * query.mT @ key, -1).mean(0).numpy()
    assert layer.kind == "affinity" and layer.weights.shape == (1, 7, height, width)
    best = np.sort(full, 1)[:, ::-1][:, :7].T.reshape(7, height, width)
    np.testing.assert_allclose(layer.weights[0], best, rtol=1e-4)
    column, row = ((layer.nodes[:, i] + 0.5) / layer.step[i] - 0.5 for i in (0, 1))
    index = np.rint(row * width + column).astype(int).reshape(7, -1)
    np.testing.assert_allclose(full[np.arange(height * width), index], best.reshape(7, -1), rtol=1e-4)


def test_position_attention_of_danet():
    torch.manual_seed(0)
    model, image = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), DANetHead(8, 8, num_classes=2)).eval(), picture(12, 14)
    (layer,) = collect_attention(model, image).values()
    module = model[1].position
    x = layer_input(module, lambda: model(normalise(image[None])))
    with torch.no_grad():
        full = (module.query(x).flatten(2)[0].T @ module.key(x).flatten(2)[0]).softmax(-1)
    assert (layer.path, layer.kind) == ("1.position", "affinity")
    np.testing.assert_allclose(layer.weights[0, 0], full.amax(1).view(6, 7), rtol=1e-4)


def test_the_network_is_not_changed():
    model = rgnet().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    collect_attention(model, picture(40, 56))
    assert model.training and model.head.norm.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_errors():
    with pytest.raises(UsageError, match="the network has no RepGraph or non-local layer"):
        collect_attention(RGNet(3, "resnet10t", context="control", channels=8), picture(8, 8))
    model = rgnet()
    model.head.context.offset.bias.data[0] = float("nan")
    with pytest.raises(UsageError, match=r"weights of head.context are not finite"):
        collect_attention(model, picture(8, 8))
    unused = nn.Sequential(nn.Conv2d(3, 4, 1))
    unused.spare = NonLocal(4)
    unused.forward = lambda x: unused[0](x)
    with pytest.raises(UsageError, match="layer spare did not run"):
        collect_attention(unused, picture(8, 8))
