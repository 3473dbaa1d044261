"""What the layers of a network look at in one image, in pixels of the image: data for pictures.

:func:`repgraph.engine.sight.look` makes it. Pixel centres are at integers, as everywhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from repgraph.pictures.nodes import Look, Window

NEAR = 0.02  # positions: as good as one outside of the map, where nothing is read


@dataclass(frozen=True)
class LayerSight:
    """What each position of a layer's map looks at.

    A RepGraph layer (``kind`` "nodes") has S nodes for each cell of ``grid`` x ``grid`` positions, which share them; a
    node is the mean of ``node_view`` x ``node_view`` positions. A layer that attends to all positions (``kind``
    "affinity": Non-local, and DANet's position attention) is told by the K strongest of each position, strongest first,
    with the mean of its heads as weights; ``share`` is what those K have of the weight of all. Positions in the padding
    of a detector's batch are left out.

    >>> nodes = np.zeros((1, 2, 2, 3), np.float32)
    >>> layer = LayerSight("head.context", "head", "nodes", nodes, np.ones((1, 1, 2, 3), np.float32), (2, 3), (8, 8))
    >>> layer.at(9, 3), layer.place(0, 1)
    ((0, 1), (11.5, 3.5))
    >>> layer.look(9, 3)
    Look(x=11.5, y=3.5, nodes=((0.0, 0.0, 1.0),), windows=())
    """

    path: str  # of the layer in the network
    title: str
    kind: Literal["nodes", "affinity"]
    nodes: np.ndarray  # (S, 2, ceil(h / grid), ceil(w / grid)) float32: x, y
    weights: np.ndarray  # (groups, S, h, w) float32, which sum to 1 over S, or to share
    shape: tuple[int, int]  # h, w of the map
    step: tuple[float, float]  # pixels from one position to the next: across, down
    grid: int = 1
    share: np.ndarray | None = None  # (h, w), for "affinity"
    node_view: int = 1

    @property
    def groups(self) -> int:
        return len(self.weights)

    def at(self, x: float, y: float) -> tuple[int, int]:
        """Row and column of the map position that a pixel is nearest to."""
        (height, width), (across, down) = self.shape, self.step
        row, column = int((y + 0.5) // down), int((x + 0.5) // across)
        return min(max(row, 0), height - 1), min(max(column, 0), width - 1)

    def place(self, row: int, column: int) -> tuple[float, float]:
        """The pixel x, y in the middle of a map position."""
        return (column + 0.5) * self.step[0] - 0.5, (row + 0.5) * self.step[1] - 0.5

    def look(self, x: float, y: float, group: int | None = None) -> Look:
        """What the position at a pixel looks at; None for the mean of all groups."""
        row, column = self.at(x, y)
        nodes = self.nodes[:, :, row // self.grid, column // self.grid].tolist()
        weights = self.of(group)[:, row, column].tolist()
        found = tuple((a, b, w) for (a, b), w in zip(nodes, weights, strict=True))
        windows = tuple(self.window(a, b) for a, b in nodes) if self.node_view > 1 else ()
        return Look(*self.place(row, column), found, windows)

    def window(self, x: float, y: float) -> Window | None:
        """What a node at a pixel is the mean of: ``node_view`` positions each way, up to the rim of the map.

        None for a node so far outside that it reads nothing. One that is read from the outermost positions alone has
        their window.
        """
        sides = []
        for at, step, count in zip((x, y), self.step, self.shape[::-1], strict=True):
            position = (at + 0.5) / step - 0.5
            if not NEAR - 1 <= position <= count - NEAR:
                return None
            middle = min(max(position, 0), count - 1) + 0.5
            ends = max(middle - self.node_view / 2, 0), min(middle + self.node_view / 2, count)
            sides.append([end * step - 0.5 for end in ends])
        (left, right), (top, bottom) = sides
        return left, top, right, bottom

    def of(self, group: int | None = None) -> np.ndarray:
        """The weights (S, h, w) of a group, or the mean of all groups."""
        return self.weights.mean(0) if group is None else self.weights[group]

    def spread(self) -> np.ndarray:
        """The nodes of each position, (S, 2, h, w): those of its cell."""
        height, width = self.shape
        return self.nodes.repeat(self.grid, 2)[:, :, :height].repeat(self.grid, 3)[..., :width]

    def away(self) -> np.ndarray:
        """Where the nodes of each position lie from it, (S, 2, h, w), in pixels."""
        (height, width), (across, down) = self.shape, self.step
        x, y = (np.arange(width) + 0.5) * across - 0.5, (np.arange(height) + 0.5) * down - 0.5
        return self.spread() - np.stack(np.broadcast_arrays(x, y[:, None])).astype(np.float32)

    def reach(self, group: int | None = None) -> np.ndarray:
        """How far away each position looks, (h, w): the mean distance of its nodes in pixels, by their weights."""
        weights = self.of(group)
        distance = np.hypot(*np.moveaxis(self.away(), 1, 0))
        return (weights * distance).sum(0) / np.maximum(weights.sum(0), 1e-12)

    def chosen(self, group: int | None = None) -> np.ndarray:
        """How much attention each position gets from all others, (h, w); 1 if all get the same.

        A node between positions counts for the four around it, as it is read from them; what lies outside of the map
        counts nowhere.
        """
        height, width = self.shape
        weights, spread = self.of(group), self.spread().astype(np.float64)
        columns, rows = (spread[:, 0] + 0.5) / self.step[0] - 0.5, (spread[:, 1] + 0.5) / self.step[1] - 0.5
        total = np.zeros(height * width)
        for down in (0, 1):
            for across in (0, 1):
                row, column = np.floor(rows) + down, np.floor(columns) + across
                part = weights * (1 - abs(rows - row)) * (1 - abs(columns - column))
                inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
                index = (row[inside] * width + column[inside]).astype(np.int64)
                total += np.bincount(index, part[inside], height * width)
        return total.reshape(height, width)


@dataclass(frozen=True)
class Sight:
    """What the layers of a network look at in one image of ``size`` (H, W), in the order in which they run."""

    size: tuple[int, int]
    layers: tuple[LayerSight, ...]

    def __iter__(self) -> Iterator[LayerSight]:
        return iter(self.layers)

    def __getitem__(self, path: str) -> LayerSight:
        """The layer of that path."""
        for layer in self.layers:
            if layer.path == path:
                return layer
        raise KeyError(f"{path}; there are {', '.join(layer.path for layer in self.layers)}")
