import base64
from dataclasses import replace

import numpy as np
import pytest

from repgraph.pictures.explorer import packing
from repgraph.pictures.sight import LayerSight


def layer(size=(512, 512), rows=64, columns=64, nodes=9, groups=1, grid=1, kind="nodes", seed=0) -> LayerSight:
    """A layer whose nodes lie anywhere on the image and somewhat beyond."""
    random = np.random.default_rng(seed)
    cells = -(-rows // grid), -(-columns // grid)
    places = random.uniform(-0.3, 1.3, (nodes, 2, *cells)) * np.array(size[::-1])[:, None, None]
    weights = random.dirichlet(np.full(nodes, 0.3), (groups, rows, columns)).transpose(0, 3, 1, 2)
    if kind == "affinity":
        weights = -np.sort(-weights, 1) * 0.8
    step = size[1] / columns, size[0] / rows
    share = weights[0].sum(0).astype(np.float32) if kind == "affinity" else None
    return LayerSight(
        "head.context",
        "head",
        kind,
        places.astype(np.float32),
        weights.astype(np.float32),
        (rows, columns),
        step,
        grid,
        share,
    )


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.mark.parametrize("size", [(512, 512), (3000, 4096), (7, 5)])
@pytest.mark.parametrize("grid", [1, 3])
def test_places_are_off_by_less_than_half_a_pixel(size, grid):
    given = layer(size, 11, 7, grid=grid)
    packed = packing.pack_layer(given, size, 64)
    steps = unpacked(packed["places"], "<u2").reshape(*given.nodes.shape[2:], 9, 2)
    back = np.array(packed["origin"]) + np.array(packed["unit"]) * steps
    error = abs(back.transpose(2, 3, 0, 1) - given.nodes).max()
    assert error < 0.1 and packed["cells"] == given.nodes.shape[3] and packed["grid"] == grid


def test_of_how_many_positions_nodes_are_the_mean():
    given = layer(rows=6, columns=8)
    assert packing.pack_layer(given, (512, 512), 64)["node_view"] == 1
    assert packing.pack_layer(replace(given, node_view=5), (512, 512), 64)["node_view"] == 5


def test_what_is_far_off_does_not_spoil_the_rest():
    given = layer((100, 200), 5, 5)
    given.nodes[0, :, 0, 0] = 1e7, -1e7
    packed = packing.pack_layer(given, (100, 200), 64)
    steps = unpacked(packed["places"], "<u2").reshape(5, 5, 9, 2)
    back = (np.array(packed["origin"]) + np.array(packed["unit"]) * steps).transpose(2, 3, 0, 1)
    np.testing.assert_allclose(back[0, :, 0, 0], [600, -200], atol=0.1)  # two images off
    assert abs(back[1:] - given.nodes[1:]).max() < 0.1


@pytest.mark.parametrize("groups", [1, 4])
def test_weights_of_the_mean_and_of_each_group(groups):
    given = layer(rows=6, columns=8, groups=groups)
    packed = packing.pack_layer(given, (512, 512), 64)
    sets = 1 if groups == 1 else 1 + groups
    assert packed["sets"] == sets
    roots = unpacked(packed["weights"], "u1").reshape(6, 8, sets, 9)
    tops = (unpacked(packed["tops"], "<u2").reshape(6, 8, sets, 1) / 65535.0) ** 2
    weights = tops * (roots / 255.0) ** 2
    expected = [given.weights.mean(0)] if groups == 1 else [given.weights.mean(0), *given.weights]
    np.testing.assert_allclose(weights.transpose(2, 3, 0, 1), expected, atol=0.004)
    small = np.array(expected).transpose(2, 3, 0, 1) < 1e-3
    assert small.any() and (weights[small] < 2e-3).all()
    np.testing.assert_allclose(weights.max(3), np.array(expected).max(1).transpose(1, 2, 0), atol=2e-5)


def test_maps_are_those_of_the_layer():
    given = layer(rows=6, columns=8, groups=2)
    packed = packing.pack_layer(given, (512, 512), 64)
    for name, root in (("reach", False), ("chosen", True)):
        expected = np.stack([getattr(given, name)(group) for group in (None, 0, 1)])
        share = unpacked(packed[name]["values"], "u1").reshape(3, 6, 8) / 255.0
        values = packed[name]["top"] * (share**2 if packed[name]["root"] else share)
        assert packed[name]["root"] is root
        np.testing.assert_allclose(values, expected, atol=0.005 * expected.max())


def test_of_many_positions_so_many_are_kept_as_there_is_room_for():
    small = packing.pack_layers([layer(rows=16, columns=16, nodes=64, kind="affinity")], (512, 512))[0]
    assert small["count"] == 64
    two = [layer(rows=128, columns=128, nodes=64, kind="affinity"), layer(rows=16, columns=16, nodes=9)]
    large, plain = packing.pack_layers(two, (512, 512))
    assert large["count"] == 24 and plain["count"] == 9  # 5 bytes for each of 128 x 128 positions
    share = (unpacked(large["share"], "u1") / 255.0) ** 2
    np.testing.assert_allclose(share.reshape(128, 128), two[0].weights[0, :24].sum(0), atol=0.004)
    assert sum(len(large[name]) for name in ("places", "weights", "tops")) < 2.8e6


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (400, 700)])
def test_runs_are_what_they_were(shape):
    random = np.random.default_rng(0)
    for values in (random.integers(0, 256, shape, np.uint8), np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8)):
        packed = packing.pack_runs(values)
        lengths = unpacked(packed["lengths"], "<u2")
        back = unpacked(packed["values"], "u1").repeat(lengths)
        np.testing.assert_array_equal(back, values.reshape(-1))
        assert lengths.min() > 0
