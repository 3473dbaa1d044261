import numpy as np
import pytest
import torch
from tests.engine.sight.networks import detector, inputs, picture, rgnet
from torch import nn
from torch.nn import functional as F

from repgraph.data.transforms import normalise
from repgraph.engine.sight import layers, look
from repgraph.errors import UsageError
from repgraph.layers import DANetHead, NonLocal, insert
from repgraph.models import MaskRCNN, RGNet


def own(model, image, path):
    """What the operator itself says: nodes in positions of the map, and weights."""
    layer = model.get_submodule(path)
    x = inputs(model, layer, lambda: model(normalise(image[None], model.mean, model.std)))
    with torch.no_grad():
        _, nodes, weights = layer(x, return_nodes=True)
    return nodes[0].numpy(), weights[0].numpy(), x


@pytest.mark.parametrize("context", ["repgraph", "simple"])
@pytest.mark.parametrize("options", [{}, {"grid": 2}, {"grid": 3, "groups": 2}, {"grid": "map"}, {"groups": 4}])
def test_nodes_are_the_operators_in_pixels_of_the_image(context, options):
    model, image = rgnet(context=context, context_options=options), picture(45, 70)
    seen = look(model, image)
    assert seen.size == (45, 70) and [layer.path for layer in seen.layers] == ["head.context"]
    layer = seen.layers[0]
    nodes, weights, x = own(model, image, "head.context")
    assert layer.kind == "nodes" and layer.shape == tuple(x.shape[2:]) and layer.share is None
    np.testing.assert_array_equal(layer.weights, weights)
    height, width = layer.shape
    np.testing.assert_allclose(layer.nodes[:, 0], (nodes[:, 0] + 0.5) * 70 / width - 0.5, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(layer.nodes[:, 1], (nodes[:, 1] + 0.5) * 45 / height - 0.5, rtol=1e-5, atol=1e-4)
    assert np.ptp(layer.nodes) > 4
    grid = max(height, width) if options.get("grid") == "map" else options.get("grid", 1)
    shown = layer.look(50, 30)
    row, column = int(30.5 / (45 / height)), int(50.5 / (70 / width))
    assert (shown.x, shown.y) == pytest.approx(((column + 0.5) * 70 / width - 0.5, (row + 0.5) * 45 / height - 0.5))
    cell = layer.nodes[:, :, row // grid, column // grid]
    np.testing.assert_array_equal(np.array(shown.nodes)[:, :2], cell)
    np.testing.assert_allclose(np.array(shown.nodes)[:, 2], weights[:, :, row, column].mean(0), rtol=1e-6)
    first = layer.look(50, 30, group=layer.groups - 1)
    np.testing.assert_array_equal([node[2] for node in first.nodes], weights[-1, :, row, column])
    np.testing.assert_array_equal(layer.spread()[:, :, row, column], cell)


def test_nodes_agree_with_the_networks_own():
    model, image = rgnet(), picture(48, 64)
    with torch.no_grad():
        nodes, weights = model.nodes(normalise(image[None], model.mean, model.std))
    layer = look(model, image).layers[0]
    np.testing.assert_allclose(layer.nodes, nodes[0], atol=1e-4)
    np.testing.assert_array_equal(layer.weights, weights[0])


def test_layers_inserted_in_all_stages_are_seen_where_they_run():
    model = rgnet(inserted={"layer1": 1, "layer2": 1, "layer3": 1, "layer4": 1}, inserted_options={"grid": 2})
    image = picture(64, 88)
    seen = look(model, image)
    assert [layer.path for layer in seen.layers] == [
        *(f"backbone.body.layer{i}.1.repgraph" for i in (1, 2, 3, 4)),
        "head.context",
    ]
    assert seen.layers[0].title == "layer1.1 (res2): Bottleneck, 9 nodes, grid 2"
    assert seen.layers[4].title == "head: Bottleneck, 9 nodes"
    for layer in seen.layers:
        nodes, weights, x = own(model, image, layer.path)
        assert layer.shape == tuple(x.shape[2:])
        np.testing.assert_allclose(layer.nodes[:, 0], (nodes[:, 0] + 0.5) * 88 / x.shape[3] - 0.5, atol=1e-3)
        np.testing.assert_array_equal(layer.weights, weights)
    some = look(model, image, layers=["layer3.1.repgraph"])
    assert [layer.path for layer in some.layers] == ["backbone.body.layer3.1.repgraph"]
    with pytest.raises(UsageError, match=r"no layer 'layer9' to look at; the network has backbone.body.layer1"):
        look(model, image, layers=["layer9"])


@pytest.mark.parametrize(("size", "options"), [((45, 101), {}), ((80, 40), {"grid": 2})])
def test_of_a_detector_resizing_and_padding_are_taken_back(size, options):
    model = detector(context_options={"mid_channels": 4} | options)
    image = picture(*size)
    layer = look(model, image).layers[0]
    path = layer.path
    module = model.get_submodule(path)
    x = inputs(model, module, lambda: model([image]))
    batch, _ = model.detector.transform([image / 255])
    (height, width), padded = batch.image_sizes[0], batch.tensors.shape[-2:]
    assert padded != (height, width)
    with torch.no_grad():
        _, nodes, weights = module(x, return_nodes=True)
    # A position is a square of 16 pixels of the padded batch.
    rows, columns = -(-height // 16), -(-width // 16)
    assert layer.shape == (rows, columns) and (rows, columns) != tuple(x.shape[2:])
    np.testing.assert_array_equal(layer.weights, weights[0, :, :, :rows, :columns])
    cells = nodes[0, ..., : -(-rows // layer.grid), : -(-columns // layer.grid)].numpy()
    expected = (cells[:, 0] + 0.5) * 16 * size[1] / width - 0.5, (cells[:, 1] + 0.5) * 16 * size[0] / height - 0.5
    np.testing.assert_allclose(layer.nodes, np.stack(expected, 1), rtol=1e-5, atol=1e-3)
    assert layer.at(size[1] - 1, size[0] - 1) == (rows - 1, columns - 1)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_strongest_of_a_non_local_layer_are_those_of_a_plain_softmax(groups, monkeypatch):
    monkeypatch.setattr("repgraph.engine.sight.affinity.CHUNK", 150)  # few queries at a time
    model = rgnet(context="non_local", context_options={"groups": groups, "scale": 3.0})
    image = picture(48, 72)
    layer = look(model, image, strongest=7).layers[0]
    x = inputs(model, model.head.context, lambda: model(normalise(image[None], model.mean, model.std)))
    height, width = x.shape[2:]
    context = model.head.context
    with torch.no_grad():
        query, key = (t.unflatten(1, (groups, -1)).flatten(3)[0] for t in (context.theta(x), context.phi(x)))
        full = torch.softmax(3.0 * query.mT @ key, -1).mean(0).numpy()
    assert layer.kind == "affinity" and layer.weights.shape == (1, 7, height, width) and layer.grid == 1
    best = np.sort(full, 1)[:, ::-1][:, :7].T.reshape(7, height, width)
    np.testing.assert_allclose(layer.weights[0], best, rtol=1e-4)
    np.testing.assert_allclose(layer.share, best.sum(0), rtol=1e-4)
    column, row = ((layer.nodes[:, i] + 0.5) / layer.step[i] - 0.5 for i in (0, 1))
    index = np.rint(row * width + column).astype(int)
    np.testing.assert_allclose(full[np.arange(height * width), index.reshape(7, -1)], best.reshape(7, -1), rtol=1e-4)


def test_position_attention_of_danet_is_seen():
    torch.manual_seed(0)
    model, image = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), DANetHead(8, 8, num_classes=2)).eval(), picture(12, 14)
    layer = look(model, image).layers[0]
    x = inputs(model, model[1].position, lambda: model(normalise(image[None])))
    with torch.no_grad():
        full = (model[1].position.query(x).flatten(2)[0].T @ model[1].position.key(x).flatten(2)[0]).softmax(-1)
    assert layer.path == "1.position" and layer.title == "1: position attention of DANet"
    np.testing.assert_allclose(layer.weights[0, 0], full.amax(1).view(6, 7), rtol=1e-4)


def test_channels_last_training_mode_and_no_image_statistics_change_nothing():
    model, image = rgnet(), picture(40, 56)
    plain = look(model, image).layers[0]
    model = model.to(memory_format=torch.channels_last).train()
    again = look(model, image.permute(1, 2, 0).contiguous().permute(2, 0, 1)).layers[0]
    assert model.training and model.head.norm.training
    np.testing.assert_allclose(again.nodes, plain.nodes, atol=1e-3)
    np.testing.assert_allclose(again.weights, plain.weights, atol=1e-4)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_any_network_with_an_inserted_layer_can_be_looked_at():
    blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(3)))
    model = insert(nn.Sequential(nn.Conv2d(3, 4, 2, 2), blocks), {"1": 1}, NonLocal)
    seen = look(model, picture(10, 12), strongest=100).layers[0]
    assert seen.weights.shape == (1, 30, 5, 6)  # there are no more than 30 positions
    np.testing.assert_allclose(seen.share, 1, atol=1e-5)


def test_reach_and_chosen_of_known_nodes():
    model = rgnet(context_options={"nodes": 2, "spread": [(1.0, 0.0), (0.0, 0.5)]})
    model.head.context.offset.weight.data.zero_()
    model.head.context.reduce.weight.data.zero_()  # all nodes alike: the weights are even
    layer = look(model, picture(48, 64)).layers[0]
    np.testing.assert_allclose(layer.reach(), (8 + 4) / 2, atol=1e-3)
    expected = np.zeros((6, 8))
    for row in range(6):
        for column in range(8):
            for y, x, share in ((row, column + 1, 0.5), (row, column, 0.25), (row + 1, column, 0.25)):
                if x < 8 and y < 6:
                    expected[y, x] += share
    np.testing.assert_allclose(layer.chosen(), expected, atol=1e-4)
    np.testing.assert_allclose(layer.away()[0, 0], 8, atol=1e-3)


def read_from(x, y, shape, node_view):
    """First and last column and row that a node at position x, y has anything of; None for none."""
    feature = torch.ones(1, 1, *shape, dtype=torch.float64, requires_grad=True)
    mean = F.avg_pool2d(feature, node_view, 1, node_view // 2, count_include_pad=False)
    place = torch.tensor([[[[(2 * x + 1) / shape[1] - 1, (2 * y + 1) / shape[0] - 1]]]], dtype=torch.float64)
    F.grid_sample(mean, place, padding_mode="zeros", align_corners=False).sum().backward()
    rows, columns = feature.grad[0, 0].nonzero().T.tolist()
    return (min(columns), min(rows), max(columns), max(rows)) if rows else None


@pytest.mark.parametrize("node_view", [3, 5])
def test_windows_are_what_nodes_are_the_mean_of(node_view):
    layer = look(rgnet(context_options={"node_view": node_view}), picture(45, 70)).layers[0]
    assert layer.node_view == node_view
    (across, down), found = layer.step, []
    for row in range(layer.shape[0]):
        for column in range(layer.shape[1]):
            x, y = layer.place(row, column)
            shown = layer.look(x, y)
            for (node_x, node_y, _), window in zip(shown.nodes, shown.windows, strict=True):
                place = (node_x + 0.5) / across - 0.5, (node_y + 0.5) / down - 0.5
                if window is not None:
                    left, top, right, bottom = (
                        (side + 0.5) / step for side, step in zip(window, layer.step * 2, strict=True)
                    )
                    assert 0 <= left < right <= layer.shape[1] and 0 <= top < bottom <= layer.shape[0]
                    window = int(left), int(top), int(np.ceil(right)) - 1, int(np.ceil(bottom)) - 1
                assert window == read_from(*place, layer.shape, node_view)
                found.append(window)
    assert None in found and len(set(found)) > 20


def test_windows_of_known_nodes():
    spread = [(0.0, 0.0), (2.25, 0.0), (0.0, -1.0)]
    model = rgnet(context_options={"nodes": 3, "spread": spread, "node_view": 3})
    model.head.context.offset.weight.data.zero_()
    layer = look(model, picture(48, 64)).layers[0]
    inner, rim = layer.look(28, 20), layer.look(0, 0)
    np.testing.assert_allclose(
        inner.windows, [(15.5, 7.5, 39.5, 31.5), (33.5, 7.5, 57.5, 31.5), (15.5, -0.5, 39.5, 23.5)]
    )
    assert rim.windows[0] == (-0.5, -0.5, 15.5, 15.5)
    assert rim.windows[1] == pytest.approx((9.5, -0.5, 33.5, 15.5)) and rim.windows[2] is None


def test_nodes_of_one_position_have_no_windows():
    for model in (rgnet(context_options={"node_view": 1}), rgnet(context="non_local")):
        layer = look(model, picture(48, 64)).layers[0]
        assert layer.node_view == 1 and layer.look(28, 20).windows == ()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: RGNet(3, "resnet10t", context="control", channels=8), "the network's context is 'control'"),
        (lambda: MaskRCNN(3, "resnet18"), "the network's context is 'none'"),
        (lambda: nn.Conv2d(3, 3, 1), r"the network \(a Conv2d\) has no layer"),
    ],
)
def test_a_network_without_such_layers_is_an_error_that_says_what_it_has(model, message):
    with pytest.raises(UsageError, match=message):
        look(model(), picture(8, 8))


def test_other_mistakes():
    model = rgnet()
    with pytest.raises(UsageError, match=r"the image is \(3, 8, 8\) torch.float32; a uint8 tensor"):
        look(model, torch.zeros(3, 8, 8))
    with pytest.raises(UsageError, match="the image is str"):
        look(model, "x.png")
    with pytest.raises(UsageError, match="strongest is 0"):
        look(model, picture(8, 8), strongest=0)
    model.head.context.offset.bias.data[0] = float("nan")
    with pytest.raises(UsageError, match=r"head.context looks at is not finite"):
        look(model, picture(8, 8))
    unused = nn.Sequential(nn.Conv2d(3, 4, 1))
    unused.spare = NonLocal(4)
    unused.forward = lambda x: unused[0](x)
    with pytest.raises(UsageError, match="the layer spare did not run"):
        look(unused, picture(8, 8))
    assert list(layers(model)) == ["head.context"]


def test_no_layer_and_one_that_is_not_there():
    model = rgnet()
    image = torch.zeros(3, 24, 32, dtype=torch.uint8)
    with pytest.raises(UsageError, match="no layer is named to look at; the network has "):
        look(model, image, layers=[])
    with pytest.raises(KeyError, match="nowhere; there are "):
        look(model, image)["nowhere"]
    assert [layer.path for layer in look(model, image)] == ["head.context"]
