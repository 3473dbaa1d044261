"""Initial nodes: the points of the spreads on maps of all sizes, and gradients for every node."""

import itertools
import math

import pytest
import torch

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, SimpleRepGraph
from repgraph.layers.offset import Offset
from repgraph.layers.spread import COVERAGE, RADIUS, lattice, make_spread, ring


def test_points() -> None:
    assert ring(1, 4.0) == ((0.0, 0.0),) and ring(2, 4.0) == ((4.0, 0.0), (-4.0, 0.0))
    center, *circle = ring(9, 4.0)
    assert center == (0.0, 0.0) and {(4.0, 0.0), (0.0, 4.0), (-4.0, 0.0), (0.0, -4.0)} < set(circle)  # exactly
    assert [math.hypot(x, y) for x, y in circle] == pytest.approx([4.0] * 8)
    assert lattice(9) == tuple((x, y) for y in (-1.0, 0.0, 1.0) for x in (-1.0, 0.0, 1.0))
    assert lattice(2) == ((-1.0, 0.0), (1.0, 0.0))
    assert len(set(lattice(10))) == 10 and sum(x for x, _ in lattice(10)) == pytest.approx(0)  # rows are centered
    for points in ([(1, 2), (3.5, -4)], torch.tensor([[1.0, 2.0], [3.5, -4.0]])):
        assert make_spread(points, 2).points == ((1.0, 2.0), (3.5, -4.0))


@pytest.mark.parametrize("spread", ["ring", "grid"])
def test_one_cell_for_the_map_has_its_nodes_all_over_it(spread: str) -> None:
    layer = BottleneckRepGraph(8, nodes=9, grid="map", spread=spread)
    for height, width in [(65, 33), (7, 5), (2, 2)]:
        _, nodes, _ = layer.eval()(torch.zeros(1, 8, height, width), return_nodes=True)
        for places, size in ((nodes[0, :, 0, 0, 0], width), (nodes[0, :, 1, 0, 0], height)):
            half = (size - 1) / 2
            assert places.min() >= 0 and places.max() <= size - 1
            torch.testing.assert_close(places.mean().item(), half)
            assert places.max() - places.min() > COVERAGE * half


@pytest.mark.parametrize("spread", ["ring", "grid", [(n - 4.0, 5.0 - n) for n in range(9)]], ids=str)
@pytest.mark.parametrize("size", [(2, 2), (2, 9), (5, 7), (9, 9), (33, 129)], ids=str)
def test_nodes_of_the_central_position_are_on_the_map(spread, size: tuple[int, int]) -> None:
    height, width = size
    offset = Offset(4, make_spread(spread, 9), 9)
    x, y = offset(torch.randn(1, 4, height, width))[0].view(9, 2, -1).unbind(1)  # the weight is zero
    assert x.abs().max() <= (width - 1) / 2 + 1e-5 and y.abs().max() <= (height - 1) / 2 + 1e-5
    places = torch.stack((x[:, 0], y[:, 0]), 1)
    assert torch.pdist(places).min() > 0.02  # and apart
    if height >= 33 and spread == "ring":
        torch.testing.assert_close(places, torch.tensor(ring(9, RADIUS)))


def test_nodes_stay_where_they_were_trained() -> None:
    """With ``map_size`` a ring that shrank in training does not grow on larger maps, nor shrink further."""
    small = BottleneckRepGraph(8, radius=8.0)
    kept = BottleneckRepGraph(8, radius=8.0, map_size=[5, 9])
    x = torch.zeros(1, 8, 5, 9)
    expected = small.offset(small.reduce(x))[0, :, 0, 0]
    assert expected.abs().max() == 2
    for size in ((5, 9), (3, 3), (33, 65)):
        found = kept.offset(kept.reduce(torch.zeros(1, 8, *size)))
        torch.testing.assert_close(found, expected.view(1, -1, 1, 1).expand_as(found))
    with pytest.raises(UsageError, match="map_size is 5; expected a height and a width"):
        BottleneckRepGraph(8, map_size=5)


def test_default_initialisation_is_that_of_a_convolution() -> None:
    torch.manual_seed(3)
    offset = Offset(16, make_spread("default", 9), 9)
    torch.manual_seed(3)
    convolution = torch.nn.Conv2d(16, 18, 1)
    assert torch.equal(offset.weight, convolution.weight) and torch.equal(offset.bias, convolution.bias)


# Not "default" with grid "map", which has all nodes in a corner, some outside the map.
STARTS = [("default", 1), ("default", 2), *itertools.product(("ring", "grid"), (1, 2, "map"))]


@pytest.mark.parametrize(("spread", "grid"), STARTS)
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_every_node_learns_on_small_maps(kind: type, spread: str, grid) -> None:
    for size in ((2, 2), (2, 5), (17, 19)):
        torch.manual_seed(0)
        layer = kind(8, nodes=9, spread=spread, grid=grid)
        (layer(torch.randn(2, 8, *size)) * torch.randn(2, 8, *size)).sum().backward()
        assert layer.offset.bias.grad.view(9, 2).abs().amax(1).min() > 0, size
