"""The statistics of a non-local layer's weights, against a plain computation, and the weights against the layer."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from repgraph.engine.figures import affinity_statistics, attention, one_position
from repgraph.engine.figures.network import run
from repgraph.engine.figures.statistics import NAMES, Statistics, measure, uniform
from repgraph.engine.figures.tally import Tally
from repgraph.engine.sight import affinity as all_pairs
from repgraph.errors import UsageError
from repgraph.layers import DualAttention, NonLocal, positions
from repgraph.layers.fusion import fuse
from repgraph.models import MaskRCNN, RGNet

SIZES = ((72, 104), (64, 64), (40, 136))


def pictures(seed=0, sizes=SIZES):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]


def network(context="non_local", seed=0, **options):
    torch.manual_seed(seed)
    given = dict(channels=16, output_stride=8, auxiliary=False) | options
    return RGNet(3, "resnet10t", context=context, **given).eval()


@pytest.fixture(scope="module")
def model():
    """With logits large enough to be far from equal weights."""
    made = network(context_options={"groups": 2, "scale": 3.0}).double()
    nn.init.normal_(made.head.context.theta.weight, std=0.7)
    return made


def plain(weights, top):
    """The definitions, for one distribution, in Python's floats."""
    weights = sorted(weights.tolist(), reverse=True)
    percent = math.ceil(len(weights) / 100)
    effective = math.exp(-math.fsum(w * math.log(w) for w in weights if w))
    shares = math.fsum(weights[:top]), math.fsum(weights[:percent])
    return dict(zip(NAMES, (*shares, effective, effective / len(weights)), strict=True))


def all_weights(model, image):
    """(heads, N, N) by softmax over the whole matrix, in float64."""
    layer = model.head.context
    with run(model, image, layer) as seen:
        query, key = (one.double() for one in layer.query_and_key(seen.features))
    query, key = (one.flatten(2).unflatten(1, (layer.groups, -1))[0] for one in (query, key))
    return torch.softmax(layer.scale * query.mT @ key, -1)


def test_statistics_are_those_of_the_definitions(model):
    images = pictures()
    found = affinity_statistics(model, images, top=5, chunk=3000)
    weights = [all_weights(model, image) for image in images]
    each = [[plain(row, 5) for row in one.flatten(0, 1)] for one in weights]
    rows = [row for one in each for row in one]
    assert found.layer == "head.context" and found.heads == 2 and found.queries == len(rows)
    for name in NAMES:
        values = np.array([row[name] for row in rows])
        summary = getattr(found, name)
        assert summary.mean == pytest.approx(values.mean(), rel=1e-9)
        for share, value in summary.quantiles.items():
            exact = np.quantile(values, share, method="inverted_cdf")
            assert value == pytest.approx(exact, rel=6e-4)
        counts = np.repeat([one.shape[-1] for one in weights], [one.shape[0] * one.shape[1] for one in weights])
        wanted = np.mean([uniform(int(count), 5)[name] for count in counts])
        assert summary.uniform == pytest.approx(wanted, rel=1e-9)
    for one, image, full in zip(found.images, each, weights, strict=True):
        assert one.positions == full.shape[-1]
        assert one.effective == pytest.approx(np.mean([row["effective"] for row in image]), rel=1e-9)
        assert one.top == pytest.approx(np.mean([row["top"] for row in image]), rel=1e-9)


def test_the_histogram_counts_every_weight_once(model):
    images = pictures()
    found = affinity_statistics(model, images, chunk=5000).histogram
    relative, weights = [], []
    for image in images:
        full = all_weights(model, image)
        relative.append((full * full.shape[-1]).flatten().numpy())
        weights.append(full.flatten().numpy())
    relative, weights = np.maximum(np.concatenate(relative), found.edges[0]), np.concatenate(weights)
    counts, _ = np.histogram(relative, found.edges)
    mass, _ = np.histogram(relative, found.edges, weights=weights)
    assert counts.sum() == len(relative)
    np.testing.assert_allclose(found.weights, counts / counts.sum(), atol=2 / len(relative))
    np.testing.assert_allclose(found.mass, mass / mass.sum(), atol=1e-4)
    assert sum(found.weights) == pytest.approx(1) and sum(found.mass) == pytest.approx(1)


@pytest.mark.parametrize("chunk", [1, 1000, 2**22])
def test_chunks_change_nothing_and_are_never_larger(model, chunk):
    layer, x = model.head.context, torch.randn(1, 16, 5, 7, dtype=torch.float64)
    with torch.no_grad():
        parts = list(all_pairs.weights(layer, x, chunk))
        torch.testing.assert_close(torch.cat(parts, 2), layer.affinity(x), rtol=1e-12, atol=1e-15)
    row = layer.groups * 35
    assert all(part.numel() <= max(chunk, row) for part in parts)


def test_float32_is_close_to_float64():
    torch.manual_seed(1)
    logits = 6 * torch.randn(20, 3001, dtype=torch.float64)
    exact, found = measure(logits.softmax(-1)), measure(logits.float().softmax(-1))
    for name in NAMES:
        torch.testing.assert_close(found[name], exact[name], rtol=2e-6, atol=0)


def test_equal_weights_are_the_yardstick():
    for count in (1, 7, 99, 100, 101, 768):
        found = measure(torch.full((count,), 1 / count, dtype=torch.float64))
        for name, value in uniform(count).items():
            assert float(found[name]) == pytest.approx(value, rel=1e-12)
    one = measure(torch.eye(50)[3])
    assert [float(one[name]) for name in NAMES] == [1, 1, 1, 0.02]


def test_weights_of_zero_count_in_the_first_bin():
    statistics = Statistics(top=2)
    statistics.add(torch.eye(50)[:3][None])
    bars = statistics.histogram()
    assert bars.weights[0] == pytest.approx(49 / 50) and bars.mass[0] == 0
    filled = [i for i, share in enumerate(bars.weights) if share][1]
    assert bars.edges[filled] <= 50 < bars.edges[filled + 1] and bars.mass[filled] == 1


def test_quantiles_of_a_tally():
    values = torch.logspace(-6, 6, 1001, dtype=torch.float64)
    tally = Tally()
    for part in values[torch.randperm(1001)].split(100):
        tally.add(part)
    for share in (0.001, 0.05, 0.5, 0.999, 1):
        exact = np.quantile(values.numpy(), share, method="inverted_cdf")
        assert tally.quantile(share) == pytest.approx(exact, rel=5.1e-4)
    assert tally.count == 1001 and tally.mean == pytest.approx(float(values.mean()), rel=1e-12)


def test_processes_are_summed(model, monkeypatch, tmp_path):
    """In a group, with a second process that has seen the same: all counts double, and no mean changes."""
    import torch.distributed as dist

    alone = affinity_statistics(model, pictures()[:2])
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(2))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, own: found.__setitem__(slice(None), [own, own]))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        both = affinity_statistics(model, pictures()[:2])
    finally:
        dist.destroy_process_group()
    assert both.queries == 2 * alone.queries and both.images == alone.images * 2
    for name in NAMES:
        assert getattr(both, name) == getattr(alone, name)
    assert both.histogram == alone.histogram


def response(layer, x, parts):
    """The layer's result, with the weights that were given out."""
    value = layer.g(x) if isinstance(layer, NonLocal) else layer.value(x)
    heads = layer.groups if isinstance(layer, NonLocal) else 1
    attended = torch.cat(list(parts), 2).to(x.dtype) @ positions.rows(value, heads)
    attended = positions.map_of(attended, *x.shape[2:])
    if isinstance(layer, NonLocal):
        return fuse(x, attended, layer.w_y, nn.Identity(), layer.fusion)
    return layer.gamma * attended


def detector(context, **options):
    torch.manual_seed(2)
    return MaskRCNN(2, "resnet18", context=context, min_size=96, max_size=160, detections=1, **options).eval()


NETWORKS = {
    "head": lambda: network(),
    "sum, shared, norm, scale": lambda: network(
        fusion="sum", context_options={"share_query_key": True, "norm_qk": True, "scale": 1.0, "groups": 4}
    ),
    "plain": lambda: network(context_options={"attention": "plain"}),
    "dual": lambda: network("dual"),
    "inserted": lambda: network("none", inserted={"layer3": 1}, inserted_options={"layer": "non_local"}),
    "mask r-cnn": lambda: detector("non_local"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_weights_are_those_that_the_layer_used(name):
    model = NETWORKS[name]().double()
    layer = attention.choose(model)[1]
    for parameter in layer.parameters():  # what starts at zero shows nothing
        nn.init.normal_(parameter, std=0.3)
    results = []
    handle = layer.register_forward_hook(lambda module, args, result: results.append(result))
    with run(model, pictures()[0], layer) as seen:
        handle.remove()
        found = response(layer, seen.features, all_pairs.weights(layer, seen.features, 4000))
        assert results[0].abs().max() > 0.01
        torch.testing.assert_close(found, results[0], rtol=1e-9, atol=1e-9)


def test_the_last_layer_unless_another_is_named():
    model = network(inserted={"layer2": 1, "layer3": 1}, inserted_options={"layer": "non_local"})
    paths = list(attention.attentions(model))
    assert len(paths) == 3 and paths[-1] == "head.context"
    image = pictures()[:1]
    assert affinity_statistics(model, image).layer == "head.context"
    assert affinity_statistics(model, image, layer=paths[0]).layer == paths[0]
    with pytest.raises(UsageError, match=r"no layer 'head.contxt' .*did you mean 'head.context'\?"):
        affinity_statistics(model, image, layer="head.contxt")
    with pytest.raises(UsageError, match=f"no layer 'zzz' .*choose one of '{paths[0]}', "):
        affinity_statistics(model, image, layer="zzz")


def test_dual_attention_by_either_path():
    model = nn.Sequential(DualAttention(3))
    assert [attention.choose(model, path)[0] for path in (None, "0", "0.position")] == ["0.position"] * 3


def test_a_network_without_such_a_layer_says_what_it_has():
    with pytest.raises(
        UsageError, match=r"no layer that attends to all .*BottleneckRepGraph at head.context; repgraph n"
    ):
        affinity_statistics(network("repgraph"), pictures())
    with pytest.raises(UsageError, match="it has no RepGraph layer either"):
        attention.choose(network("none"))


def test_bad_input(model):
    with pytest.raises(UsageError, match=r"the image is \(3, 8, 8\) torch.float32; a uint8 tensor"):
        affinity_statistics(model, [torch.zeros(3, 8, 8)])
    with pytest.raises(ValueError, match="there are no images"):
        affinity_statistics(model, [])
    broken = network()
    nn.init.constant_(broken.head.context.theta.weight, math.nan)
    with pytest.raises(UsageError, match=r"weights of head.context are not finite for image 1"):
        affinity_statistics(broken, pictures())
    with pytest.raises(UsageError, match=r"weights of head.context are not finite for this image"):
        one_position(broken, pictures()[0], (3, 3))


def test_a_network_in_training_is_left_as_it_was():
    model = network(context_options={"norm_qk": True}).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    affinity_statistics(model, pictures()[:1])
    assert model.training and not model.head.context._forward_pre_hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_position_has_its_row_of_the_matrix(model):
    image = pictures()[0]  # 72 x 104 pixels, 9 x 13 positions
    found = one_position(model, image, (103, 8), top=5)
    assert (found.row, found.column, found.at, found.step) == (1, 12, (99.5, 11.5), (8, 8))
    wanted = all_weights(model, image)[:, 1 * 13 + 12]
    np.testing.assert_allclose(found.weights, wanted.unflatten(1, (9, 13)).numpy(), rtol=1e-5, atol=1e-12)
    each = [plain(row, 5) for row in wanted]
    for name in NAMES:
        assert found.statistics[name] == pytest.approx(np.mean([row[name] for row in each]), rel=1e-9)
    assert found.uniform == uniform(117, 5) and found.positions == 117


def test_the_position_that_is_chosen_is_the_median(model):
    image = pictures()[0]
    found = one_position(model, image)
    effective = measure(all_weights(model, image))["effective"].mean(0)
    assert found.statistics["effective"] == pytest.approx(float(effective.median()), rel=1e-9)


@pytest.mark.parametrize("at", [(104, 3), (3, 72), (-1, 0)])
def test_a_position_outside(model, at):
    with pytest.raises(
        UsageError, match=r"is outside of the image, which has 104 x 72 pixels: x is 0 to 103, y 0 to 71"
    ):
        one_position(model, pictures()[0], at)


def test_positions_of_a_detector_are_in_pixels_of_the_image():
    """80 x 100 pixels become 96 x 120, padded to 96 x 128: the last of 8 columns of the map is half padding."""
    model = detector("non_local", where={"layer3": 1})
    image = pictures(sizes=((80, 100),))[0]
    found = one_position(model, image, (99, 79))
    assert found.weights.shape == (1, 6, 8)
    assert (found.row, found.column) == (5, 7)
    assert found.step == pytest.approx((16 / 1.2, 16 / 1.2))
    assert found.at == pytest.approx((7.5 * 16 / 1.2 - 0.5, 5.5 * 16 / 1.2 - 0.5))
    for at in ((0, 0), (51, 33)):
        one = one_position(model, image, at)
        assert all(abs(centre - asked) <= 8 / 1.2 + 0.5 for centre, asked in zip(one.at, at, strict=True))
