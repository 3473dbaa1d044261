"""Where a layer's nodes lie before it has learned anything.

A node that starts on its query sees what the query sees, and nodes that start together get the same gradient and stay
together; so nodes start apart. A spread says where: points around the query (the middle of its cell, for a grid), in
pixels or, for those that cover the map, in halves of the map's sides; or regions of the map, the same for all queries.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

RADIUS = 4.0  # of the ring; see docs/layers.md for what it was chosen by
FAR = 3.0  # the outer of two rings lies so many times further out
SHARE = 0.75  # of the map that a grid over it covers

NAMES = ("ring", "rings", "grid", "regions", "default")
Points = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Spread:
    """Initial offsets (x, y) of the S nodes; ``points`` is None where PyTorch's initialisation is left alone.

    In pixels a spread shrinks on maps that are too small for it (:func:`shrink`); in ``"half maps"`` it grows and
    shrinks with the map. In ``"maps"`` the points are places on the map, from (0, 0) to (1, 1), and not offsets.
    """

    name: str
    points: tuple[tuple[float, float], ...] | None
    unit: Literal["pixels", "half maps", "maps"] = "pixels"

    @property
    def extent(self) -> float:
        """The largest distance along an axis."""
        return max((abs(c) for point in self.points or () for c in point), default=0.0)


def make(spread: str | Points, nodes: int, grid: int | Literal["map"] = 1, radius: float | None = None) -> Spread:
    """The spread of that name (or of the given points, in pixels) for ``nodes`` nodes.

    >>> make("ring", 5).points
    ((0.0, 0.0), (4.0, 0.0), (0.0, 4.0), (-4.0, 0.0), (0.0, -4.0))
    >>> make("grid", 4).unit
    'half maps'
    """
    if radius is not None and not (isinstance(radius, (int, float)) and 0 < radius < math.inf):
        raise ValueError(f"radius is {radius!r}; a number of pixels above 0 is needed")
    if radius is not None and not has_radius(spread, grid):
        raise ValueError(f"radius is for the spreads 'ring' and 'rings' without grid='map', not for {spread!r}")
    if not isinstance(spread, str):
        if not isinstance(spread, Iterable):
            raise TypeError(f"spread is {spread!r}; a name or the (x, y) of each node is needed")
        return Spread("points", _centred(_given(spread, nodes), grid))
    if spread not in NAMES:
        raise ValueError(
            f"unknown spread {spread!r}: choose one of {', '.join(map(repr, NAMES))}, or give the (x, y) of each node"
        )
    if spread == "default":
        return Spread(spread, None)
    if spread == "regions":
        return Spread(spread, regions(nodes), "maps")
    if spread == "grid" or grid == "map":
        points = lattice(nodes) if spread == "grid" else ring(nodes) if spread == "ring" else rings(nodes)
        most = max(math.hypot(x, y) if spread != "grid" else max(abs(x), abs(y)) for x, y in points) or 1.0
        # The one cell of grid "map" has its anchor in the corner, half a map from the middle.
        middle = 1.0 if grid == "map" else 0.0
        points = tuple((middle + SHARE * x / most, middle + SHARE * y / most) for x, y in points)
        return Spread(spread, points, "half maps")
    points = (ring if spread == "ring" else rings)(nodes, RADIUS if radius is None else float(radius))
    return Spread(spread, _centred(points, grid))


def has_radius(spread: str | Points | None, grid: int | Literal["map"] = 1) -> bool:
    """Whether a spread is one of rings so many pixels wide."""
    return isinstance(spread, str) and spread in ("ring", "rings") and grid != "map"


def ring(nodes: int, radius: float = 1.0) -> tuple[tuple[float, float], ...]:
    """One node in the centre and the others evenly on a circle; two nodes: one on each side."""
    if nodes <= 2:
        return ((0.0, 0.0),) if nodes == 1 else ((radius, 0.0), (-radius, 0.0))
    return ((0.0, 0.0), *_circle(nodes - 1, radius))


def rings(nodes: int, radius: float = 1.0) -> tuple[tuple[float, float], ...]:
    """One node in the centre, half of the others on a circle, half on one FAR times as wide, turned by half a step."""
    if nodes <= 3:
        return ring(nodes, radius)
    inner = (nodes - 1) // 2
    outer = nodes - 1 - inner
    return ((0.0, 0.0), *_circle(inner, radius), *_circle(outer, FAR * radius, turn=0.5))


def lattice(nodes: int) -> tuple[tuple[float, float], ...]:
    """Rows and columns over the square from -1 to 1, as square as the number allows; a short last row is centred.

    >>> lattice(4)
    ((-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0))
    """
    columns = math.ceil(math.sqrt(nodes))
    rows = math.ceil(nodes / columns)
    points = []
    for row in range(rows):
        count = min(columns, nodes - row * columns)
        points += [(_line(column, count), _line(row, rows)) for column in range(count)]
    return tuple(points)


def regions(nodes: int) -> tuple[tuple[float, float], ...]:
    """The middles of regions that the map is cut into: as many rows and columns as a lattice has.

    >>> regions(4)
    ((0.25, 0.25), (0.75, 0.25), (0.25, 0.75), (0.75, 0.75))
    """
    rows = Counter(y for _, y in lattice(nodes))
    return tuple(
        ((2 * column + 1) / (2 * count), (2 * row + 1) / (2 * len(rows)))
        for row, count in enumerate(rows.values())
        for column in range(count)
    )


def shrink(extent: float, height: int, width: int) -> float:
    """What a spread in pixels is multiplied by: 1, or less where it would reach beyond the map from its middle.

    >>> shrink(4.0, 65, 65), shrink(4.0, 2, 2), shrink(4.0, 1, 9)
    (1.0, 0.125, 0.0)
    """
    if extent == 0:
        return 1.0
    return _least(1.0, (_least(height, width) - 1) / (2 * extent))


def _least(a: float, b: float) -> float:
    """The least of two numbers that may be symbols, when traced; no comparison asks them which case this is."""
    if torch.compiler.is_dynamo_compiling() or torch.jit.is_tracing():
        return min(a, b)
    return torch.sym_min(a, b)  # type: ignore[return-value]


def _circle(count: int, radius: float, turn: float = 0.0) -> list[tuple[float, float]]:
    """Points evenly on a circle; those on the axes have exact coordinates."""
    angles = [2 * math.pi * (i + turn) / count for i in range(count)]
    return [(_tidy(radius * math.cos(a), radius), _tidy(radius * math.sin(a), radius)) for a in angles]


def _tidy(value: float, radius: float) -> float:
    return 0.0 if abs(value) < 1e-12 * radius else round(value, 12)


def _line(index: int, count: int) -> float:
    return 0.0 if count == 1 else 2.0 * index / (count - 1) - 1.0


def _centred(points: Sequence[tuple[float, float]], grid: int | Literal["map"]) -> tuple[tuple[float, float], ...]:
    """Points around the middle of a cell, as offsets from its left-top position."""
    shift = 0.0 if grid == "map" else (int(grid) - 1) / 2
    return tuple((x + shift, y + shift) for x, y in points)


def _given(points: Points, nodes: int) -> tuple[tuple[float, float], ...]:
    given = tuple(tuple(float(c) for c in point) for point in points)
    if len(given) != nodes or any(len(point) != 2 for point in given):
        raise ValueError(f"spread has {len(given)} points; one (x, y) for each of the {nodes} nodes is needed")
    if not all(math.isfinite(c) for point in given for c in point):
        raise ValueError("spread has a coordinate that is not finite; give pixels")
    return given  # type: ignore[return-value]
