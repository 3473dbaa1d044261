"""Initial positions of a layer's nodes: offsets from the query or, for a grid, from the center of its cell.

Nodes that start at the same position get equal gradients and never separate, so a spread has them start apart.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from repgraph.errors import UsageError

RADIUS = 4.0  # default radius of the ring, in pixels; docs/nodes.md has the measurements
COVERAGE = 0.75  # share of the map that a relative spread covers

NAMES = ("ring", "grid", "default")
Points = Sequence[Sequence[float]]
Grid = int | Literal["map"]  # side of the cells that share nodes, or a single cell


@dataclass(frozen=True)
class Spread:
    """Initial offsets (x, y) of the S nodes, in pixels, which shrink on maps too small for them, or relative."""

    name: str  # "ring", "grid", "default" or, for given points, "points"
    points: tuple[tuple[float, float], ...] | None  # None to keep PyTorch's default initialization
    relative: bool = False  # points are in halves of the map's sides

    @property
    def extent(self) -> float:
        """The largest absolute coordinate."""
        return max((abs(c) for point in self.points or () for c in point), default=0.0)


def make_spread(spread: str | Points, nodes: int, grid: Grid = 1, radius: float | None = None) -> Spread:
    """Build the spread of a layer.

    Args:
        spread: "ring" (one node on the query, the others on a circle around it), "grid" (rows and columns over the
            map, around the query), "default" (PyTorch's initialization), or one (x, y) per node in pixels.
        grid: side of the cells that share nodes, or "map"; a ring then covers the map as well.
        radius: of the ring in pixels; :data:`RADIUS` by default.
    """
    if not isinstance(spread, Iterable) or (isinstance(spread, str) and spread not in NAMES):
        names = ", ".join(map(repr, NAMES))
        raise UsageError(f"spread is {spread!r}; expected one of {names}, or one (x, y) per node")
    if radius is not None and not (isinstance(radius, (int, float)) and 0 < radius < math.inf):
        raise UsageError(f"radius is {radius!r}; expected a positive number of pixels")
    if radius is not None and not has_radius(spread, grid):
        raise UsageError(f"radius is {radius!r}, but spread {spread!r} with grid={grid!r} has none; omit it")
    if not isinstance(spread, str):
        given: Any = tuple(tuple(float(c) for c in point) for point in spread)
        if len(given) != nodes or not all(len(point) == 2 and all(map(math.isfinite, point)) for point in given):
            raise UsageError(f"spread has {len(given)} points; expected a finite (x, y) for each of the {nodes} nodes")
        return Spread("points", _centered(given, grid))
    if spread == "default":
        return Spread(spread, None)
    if has_radius(spread, grid):
        return Spread(spread, _centered(ring(nodes, RADIUS if radius is None else float(radius)), grid))
    points = lattice(nodes) if spread == "grid" else ring(nodes)
    center = 1.0 if grid == "map" else 0.0  # the single cell is anchored at the corner, half a map from its center
    return Spread(spread, tuple((center + COVERAGE * x, center + COVERAGE * y) for x, y in points), relative=True)


def make_spreads(
    spread: str | Points, nodes: int, grid: Grid, radius: float | Sequence[float] | None, rounds: int
) -> tuple[Spread, ...]:
    """Build the spread of each round: the radius halves in each, or is a list; other spreads are all the same."""
    if isinstance(radius, (list, tuple)):
        if len(radius) != rounds:
            raise UsageError(f"radius is {radius!r}; expected one number, or one for each of {rounds} rounds")
        radii: Any = radius
    else:
        first = RADIUS if radius is None and has_radius(spread, grid) else radius
        radii = [first / 2**index if isinstance(first, (int, float)) else first for index in range(rounds)]
    return tuple(make_spread(spread, nodes, grid, each) for each in radii)


def has_radius(spread: str | Points | None, grid: Grid = 1) -> bool:
    """Return whether a spread is a ring with a radius in pixels."""
    return isinstance(spread, str) and spread == "ring" and grid != "map"


def ring(nodes: int, radius: float = 1.0) -> tuple[tuple[float, float], ...]:
    """Return one node in the center and the others evenly on a circle; two nodes are on opposite sides."""
    if nodes <= 2:
        return ((0.0, 0.0),) if nodes == 1 else ((radius, 0.0), (-radius, 0.0))
    angles = [2 * math.pi * i / (nodes - 1) for i in range(nodes - 1)]
    # Rounding makes coordinates on the axes exact; adding 0.0 turns -0.0 into 0.0.
    circle = [(round(radius * math.cos(a), 12) + 0.0, round(radius * math.sin(a), 12) + 0.0) for a in angles]
    return ((0.0, 0.0), *circle)


def lattice(nodes: int) -> tuple[tuple[float, float], ...]:
    """Return rows and columns over the square from -1 to 1; a short last row is centered."""

    def steps(count: int) -> list[float]:
        return [2.0 * index / (count - 1) - 1.0 for index in range(count)] if count > 1 else [0.0]

    columns = math.ceil(math.sqrt(nodes))
    rows = steps(math.ceil(nodes / columns))
    return tuple((x, y) for i, y in enumerate(rows) for x in steps(min(columns, nodes - i * columns)))


def shrink_factor(extent: float, height: int, width: int) -> float:
    """Return the factor by which a spread in pixels shrinks on a map that is too small for it; otherwise 1."""
    if extent == 0:
        return 1.0
    if torch.jit.is_tracing():  # sizes are tensors
        return ((torch.minimum(height, width).double() - 1) / (2 * extent)).clamp(max=1)  # type: ignore
    minimum: Any = min if torch.compiler.is_dynamo_compiling() else torch.sym_min  # without a guard on symbolic sizes
    return minimum(1.0, (minimum(height, width) - 1) / (2 * extent))  # type: ignore[no-any-return]


def _centered(points: Sequence[tuple[float, float]], grid: Grid) -> tuple[tuple[float, float], ...]:
    """Convert offsets from the center of a cell to offsets from its top-left position."""
    shift = 0.0 if grid == "map" else (int(grid) - 1) / 2
    return tuple((x + shift, y + shift) for x, y in points)
