"""Where nodes start: the spreads' points, on cells and maps of all sizes, and that every node gets a gradient there."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from repgraph import representative_attention
from repgraph.layers import BottleneckRepGraph, SimpleRepGraph
from repgraph.layers.offset import Offset
from repgraph.layers.spread import FAR, RADIUS, SHARE, lattice, make, regions, ring, rings, shrink


def lengths(points) -> list[float]:
    return [math.hypot(x, y) for x, y in points]


@pytest.mark.parametrize("nodes", [3, 5, 9, 16, 27, 82])
def test_ring(nodes: int) -> None:
    centre, *circle = ring(nodes, 4.0)
    assert centre == (0.0, 0.0) and len(circle) == nodes - 1
    assert lengths(circle) == pytest.approx([4.0] * (nodes - 1))
    angles = sorted(math.atan2(y, x) % (2 * math.pi) for x, y in circle)
    steps = [b - a for a, b in itertools.pairwise(angles)]
    assert steps == pytest.approx([2 * math.pi / (nodes - 1)] * (nodes - 2))


def test_few_nodes() -> None:
    for shape in (ring, rings):
        assert shape(1, 4.0) == ((0.0, 0.0),)
        assert shape(2, 4.0) == ((4.0, 0.0), (-4.0, 0.0))
        assert shape(3, 4.0) == ((0.0, 0.0), (4.0, 0.0), (-4.0, 0.0))
    assert lattice(1) == ((0.0, 0.0),)
    assert lattice(2) == ((-1.0, 0.0), (1.0, 0.0))


def test_points_on_the_axes_are_exact() -> None:
    assert set(ring(9, 4.0)) >= {(4.0, 0.0), (0.0, 4.0), (-4.0, 0.0), (0.0, -4.0)}


@pytest.mark.parametrize("nodes", [4, 9, 10, 27])
def test_rings(nodes: int) -> None:
    centre, *others = rings(nodes, 2.0)
    inner, outer = others[: (nodes - 1) // 2], others[(nodes - 1) // 2 :]
    assert centre == (0.0, 0.0) and len(outer) - len(inner) in (0, 1)
    assert lengths(inner) == pytest.approx([2.0] * len(inner))
    assert lengths(outer) == pytest.approx([2.0 * FAR] * len(outer))
    assert len(set(others)) == nodes - 1


@pytest.mark.parametrize("nodes", range(1, 30))
def test_lattice(nodes: int) -> None:
    points = lattice(nodes)
    assert len(set(points)) == len(points) == nodes
    assert all(-1 <= c <= 1 for point in points for c in point)
    assert sum(x for x, _ in points) == pytest.approx(0)  # every row is centred
    if nodes == 9:
        assert points == tuple((x, y) for y in (-1.0, 0.0, 1.0) for x in (-1.0, 0.0, 1.0))


@pytest.mark.parametrize("nodes", range(1, 30))
def test_regions(nodes: int) -> None:
    places = regions(nodes)
    assert len(set(places)) == len(places) == nodes
    assert all(0 < c < 1 for place in places for c in place)
    if nodes == 9:
        assert places == tuple((x / 6, y / 6) for y in (1, 3, 5) for x in (1, 3, 5))


@pytest.mark.parametrize("grid", [1, 2, 5, "map"])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 10), (65, 33)], ids=str)
def test_all_positions_start_at_the_same_regions(size: tuple[int, int], grid) -> None:
    layer = BottleneckRepGraph(8, nodes=9, spread="regions", grid=grid).eval()
    _, nodes, _ = layer(torch.randn(2, 8, *size), return_nodes=True)
    sides = torch.tensor([size[1] - 1, size[0] - 1])
    want = torch.tensor(regions(9))[:, :, None, None] * sides[:, None, None]
    torch.testing.assert_close(nodes, want.expand_as(nodes), rtol=1e-5, atol=1e-4)


def test_regions_are_no_state_and_stay_exact_in_half_precision() -> None:
    layer = BottleneckRepGraph(8, nodes=9, spread="regions").eval()
    assert not [key for key in layer.state_dict() if "regions" in key]
    x = torch.randn(1, 8, 65, 65)
    _, want, _ = layer(x, return_nodes=True)
    _, found, _ = layer.bfloat16()(x.bfloat16(), return_nodes=True)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-4)


def test_the_names() -> None:
    assert make("ring", 9).points == ring(9, RADIUS)
    assert make("rings", 9, radius=2).points == rings(9, 2.0)
    assert make("default", 9).points is None and make("default", 9).extent == 0
    assert make("grid", 9).points == tuple((SHARE * x, SHARE * y) for x, y in lattice(9))
    assert make([(1, 2), (3.5, -4)], 2).points == ((1.0, 2.0), (3.5, -4.0))
    assert make(torch.tensor([[1.0, 2.0], [3.5, -4.0]]), 2).points == ((1.0, 2.0), (3.5, -4.0))
    assert [make(name, 9).unit for name in ("ring", "rings", "default", "grid", "regions")] == [
        *("pixels",) * 3,
        "half maps",
        "maps",
    ]
    assert (make("ring", 9).extent, make("rings", 27).extent > RADIUS * 2, make("grid", 4).extent) == (4.0, True, SHARE)


@pytest.mark.parametrize("grid", [1, 2, 5])
def test_offsets_of_a_cell_are_around_its_middle(grid: int) -> None:
    middle = (grid - 1) / 2
    for spread in ("ring", "rings", [(1.0, -2.0)] * 5):
        points, plain = make(spread, 5, grid).points, make(spread, 5).points
        assert points == tuple((x + middle, y + middle) for x, y in plain)


@pytest.mark.parametrize("spread", ["ring", "rings", "grid"])
def test_one_cell_for_the_map_has_its_nodes_all_over_it(spread: str) -> None:
    layer = BottleneckRepGraph(8, nodes=9, grid="map", spread=spread)
    for height, width in [(65, 33), (7, 5), (2, 2)]:
        _, nodes, _ = layer.eval()(torch.zeros(1, 8, height, width), return_nodes=True)
        x, y = nodes[0, :, 0, 0, 0], nodes[0, :, 1, 0, 0]
        for places, size in ((x, width), (y, height)):
            assert places.min() >= 0 and places.max() <= size - 1
            half = (size - 1) / 2
            torch.testing.assert_close(places.mean().item(), half)
            assert places.max() - places.min() > SHARE * half


@pytest.mark.parametrize("spread", ["ring", "rings", "grid", [(n - 4.0, 5.0 - n) for n in range(9)]], ids=str)
@pytest.mark.parametrize("size", [(2, 2), (3, 3), (2, 9), (5, 7), (8, 8), (9, 9), (65, 65), (33, 129)], ids=str)
def test_nodes_stay_on_the_map_seen_from_its_middle(spread, size: tuple[int, int]) -> None:
    height, width = size
    offset = Offset(4, make(spread, 9), 9)
    x, y = offset(torch.randn(1, 4, height, width))[0].view(9, 2, -1).unbind(1)  # the weight is zero
    assert x.abs().max() <= (width - 1) / 2 + 1e-5 and y.abs().max() <= (height - 1) / 2 + 1e-5
    places = torch.stack((x[:, 0], y[:, 0]), 1)
    assert torch.pdist(places).min() > 0.02  # and apart
    if height >= 33 and spread == "ring":
        torch.testing.assert_close(places, torch.tensor(ring(9, RADIUS)))


def test_shrink() -> None:
    assert [shrink(4.0, side, 99) for side in (1, 2, 3, 5, 9, 10)] == [0.0, 0.125, 0.25, 0.5, 1.0, 1.0]
    assert shrink(4.0, 99, 5) == 0.5
    assert shrink(0.0, 1, 1) == 1.0


def test_what_the_weight_adds_is_in_pixels_on_every_map() -> None:
    offset = Offset(1, make("ring", 9), 9)
    torch.nn.init.ones_(offset.weight)
    for size in ((2, 2), (65, 65)):
        moved = offset(torch.ones(1, 1, *size)) - offset(torch.zeros(1, 1, *size))
        torch.testing.assert_close(moved, torch.ones_like(moved))


def test_the_default_is_that_of_pytorch() -> None:
    torch.manual_seed(3)
    offset = Offset(16, make("default", 9), 9)
    torch.manual_seed(3)
    convolution = torch.nn.Conv2d(16, 18, 1)
    assert torch.equal(offset.weight, convolution.weight) and torch.equal(offset.bias, convolution.bias)
    offset = Offset(16, make("ring", 9), 9)
    assert offset.weight.abs().max() == 0
    torch.nn.init.ones_(offset.bias)
    offset.reset_parameters()
    torch.testing.assert_close(offset.bias.view(9, 2), torch.tensor(ring(9, RADIUS)))


def moved(grad: Tensor) -> int:
    """How many nodes a gradient (2S,) of the bias moves."""
    return int((grad.view(-1, 2).abs().max(1).values > 0).sum())


# PyTorch's initialisation with one cell for the map is not among them: it has all nodes in a corner, some off the map.
STARTS = [("default", 1), ("default", 2), *itertools.product(("ring", "rings", "grid"), (1, 2, "map"))]


@pytest.mark.parametrize(("spread", "grid"), STARTS)
@pytest.mark.parametrize("kind", [BottleneckRepGraph, SimpleRepGraph])
def test_every_node_learns_on_small_maps(kind: type, spread: str, grid) -> None:
    for size in ((2, 2), (3, 3), (2, 5), (17, 19)):
        torch.manual_seed(0)
        layer = kind(8, nodes=9, spread=spread, grid=grid)
        x = torch.randn(2, 8, *size)
        (layer(x) * torch.randn(2, 8, *size)).sum().backward()
        assert moved(layer.offset.bias.grad) == 9, size


def test_a_ring_in_fixed_pixels_would_fail_on_small_maps() -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(2, 4, 2, 2), torch.tensor(ring(9, RADIUS)).flatten().requires_grad_()
    offsets = bias[None, :, None, None].expand(2, 18, 2, 2)
    (representative_attention(x, x, x, offsets) * torch.randn(2, 4, 2, 2)).sum().backward()
    assert moved(bias.grad) == 1
