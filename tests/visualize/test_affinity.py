"""Statistics of a non-local layer's weights against a plain computation, and the weights against the layer."""

import math

import numpy as np
import pytest
import torch
from tests.visualize.networks import detector, layer_input, picture, rgnet
from torch import nn

from repgraph.data.transforms import normalise
from repgraph.errors import UsageError
from repgraph.visualize.affinity import STATISTICS, affinity_statistics, measure, position_affinity, uniform

IMAGES = [picture(*size, seed) for seed, size in enumerate(((72, 104), (64, 64), (40, 136)))]


@pytest.fixture(scope="module")
def model():
    """A network whose weights are far from equal."""
    network = rgnet(context="non_local", channels=16, context_options={"groups": 2, "scale": 3.0}).double()
    nn.init.normal_(network.head.context.theta.weight, std=0.7)
    return network


def definitions(weights, top):
    """Compute the statistics of one distribution in Python's floats."""
    weights = sorted(weights.tolist(), reverse=True)
    percent = math.ceil(len(weights) / 100)
    effective = math.exp(-math.fsum(w * math.log(w) for w in weights if w))
    shares = math.fsum(weights[:top]), math.fsum(weights[:percent])
    return dict(zip(STATISTICS, (*shares, effective, effective / len(weights)), strict=True))


def all_weights(model, image):
    """Return the weights (heads, N, N) by a softmax over the whole matrix."""
    layer = model.head.context
    x = layer_input(layer, lambda: model(normalise(image[None], model.mean, model.std).double()))
    with torch.no_grad():
        query, key = (t.flatten(2).unflatten(1, (layer.groups, -1))[0] for t in layer.query_and_key(x))
        return torch.softmax(layer.scale * query.mT @ key, -1)


def test_statistics_and_histogram(model):
    found = affinity_statistics(model, IMAGES, top=5)
    weights = [all_weights(model, image) for image in IMAGES]
    each = [[definitions(row, 5) for row in one.flatten(0, 1)] for one in weights]
    rows = [row for one in each for row in one]
    assert found.layer == "head.context" and found.heads == 2 and found.queries == len(rows)
    counts = [one.shape[-1] for one in weights]
    for name in STATISTICS:
        values, summary = np.array([row[name] for row in rows]), getattr(found, name)
        assert summary.mean == pytest.approx(values.mean(), rel=1e-9)
        for share, value in summary.quantiles.items():
            assert value == pytest.approx(np.quantile(values, share, method="inverted_cdf"), rel=6e-4)
        expected = np.average([uniform(count, 5)[name] for count in counts], weights=counts)
        assert summary.uniform == pytest.approx(expected, rel=1e-9)
        for statistics, own in zip(found.images, each, strict=True):
            assert statistics[name] == pytest.approx(np.mean([row[name] for row in own]), rel=1e-9)
    assert [statistics["positions"] for statistics in found.images] == counts
    histogram = found.histogram
    relative = np.concatenate([(one * one.shape[-1]).flatten().numpy() for one in weights])
    relative, flat = np.maximum(relative, histogram.edges[0]), np.concatenate([one.flatten() for one in weights])
    numbers, mass = np.histogram(relative, histogram.edges)[0], np.histogram(relative, histogram.edges, weights=flat)[0]
    np.testing.assert_allclose(histogram.weights, numbers / len(relative), atol=2 / len(relative))
    np.testing.assert_allclose(histogram.mass, mass / mass.sum(), atol=1e-4)


def test_measure_of_float32_equal_and_single_weights():
    logits = 6 * torch.randn(20, 3001, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact, found = measure(logits.softmax(-1)), measure(logits.float().softmax(-1))
    torch.testing.assert_close(found, exact, rtol=2e-6, atol=0)
    for count in (1, 7, 100, 101, 768):
        equal = measure(torch.full((count,), 1 / count, dtype=torch.float64))
        assert equal.tolist() == pytest.approx(list(uniform(count).values()), rel=1e-12)
    assert measure(torch.eye(50)[3]).tolist() == [1, 1, 1, 0.02]


def test_position(model):
    image = IMAGES[0]  # 72 x 104 pixels, 9 x 13 positions
    found, matrix = position_affinity(model, image, (103, 8), top=5), all_weights(model, image)
    assert (found.row, found.column, found.at, found.step) == (1, 12, (99.5, 11.5), (8, 8))
    row = matrix[:, 1 * 13 + 12]
    np.testing.assert_allclose(found.weights, row.unflatten(1, (9, 13)).numpy(), rtol=1e-5, atol=1e-12)
    each = [definitions(weights, 5) for weights in row]
    for name in STATISTICS:
        assert found.statistics[name] == pytest.approx(np.mean([one[name] for one in each]), rel=1e-9)
    assert found.uniform == uniform(117, 5)
    centre = position_affinity(model, image)
    assert (centre.row, centre.column) == (4, 6)


def test_position_of_a_detector():
    """80 x 100 pixels become 96 x 120, padded to 96 x 128: the last of 8 columns of the map is half padding."""
    model = detector(context="non_local", min_size=96, max_size=160, where={"layer3": 1})
    found = position_affinity(model, picture(80, 100), (99, 79))
    assert found.weights.shape == (1, 6, 8) and (found.row, found.column) == (5, 7)
    assert found.step == pytest.approx((16 / 1.2, 16 / 1.2))
    assert found.at == pytest.approx((7.5 * 16 / 1.2 - 0.5, 5.5 * 16 / 1.2 - 0.5))


def test_errors(model):
    with pytest.raises(UsageError, match="no non-local layer; repgraph nodes shows"):
        affinity_statistics(rgnet(), IMAGES)
    with pytest.raises(ValueError, match="images is empty"):
        affinity_statistics(model, [])
    broken = rgnet(context="non_local")
    nn.init.constant_(broken.head.context.theta.weight, math.nan)
    with pytest.raises(UsageError, match=r"weights of head.context are not finite for image 1"):
        affinity_statistics(broken, IMAGES)
