"""Nodes and attention weights of a layer for one image, in pixels of the image; pixel centres are at integers.

:func:`repgraph.visualize.collect.collect_attention` returns them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

MARGIN = 0.02  # in positions: a node this close to one position outside of the map reads only zeros

Window = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class PositionNodes:
    """The nodes of one position, in pixels of the image; they may be outside of it."""

    x: float
    y: float
    nodes: tuple[tuple[float, float, float], ...]  # x, y, attention weight
    windows: tuple[Window | None, ...] = ()  # that nodes average, with node_view > 1; None if a node reads only zeros

    def describe(self) -> str:
        """Describe the nodes: number, reach and largest weight."""
        total = sum(weight for _, _, weight in self.nodes)
        distance = sum(weight * float(np.hypot(x - self.x, y - self.y)) for x, y, weight in self.nodes)
        text = f"{len(self.nodes)} nodes"
        if total < 0.999:  # a layer that attends to all positions
            text = f"the {len(self.nodes)} strongest positions with {100 * total:.1f} % of the weight"
        largest = max(weight for _, _, weight in self.nodes)
        return f"{text}, reach {distance / max(total, 1e-12):.1f} pixels, largest weight {largest:.2g}"


@dataclass(frozen=True)
class LayerAttention:
    """The nodes and weights of every position of a layer's (h, w) map.

    A RepGraph layer (``kind`` "nodes") has S nodes for each cell of ``grid`` x ``grid`` positions. A layer that attends
    to all positions (``kind`` "affinity": non-local, and the position attention of DANet) is represented by the S
    positions with the largest weights, in descending order; weights are means over its heads. Positions in the padding
    of a detector's batch are left out.
    """

    path: str  # of the layer in the network
    title: str
    kind: Literal["nodes", "affinity"]
    nodes: np.ndarray  # x and y in pixels, float32 (S, 2, ceil(h / grid), ceil(w / grid))
    weights: np.ndarray  # float32 (groups, S, h, w); their sum over S is 1, or less for "affinity"
    shape: tuple[int, int]  # (h, w)
    step: tuple[float, float]  # distance between neighbouring positions in pixels: horizontal, vertical
    grid: int = 1
    node_view: int = 1  # a node is the mean of node_view x node_view positions
    round: int = 1  # nodes read the output of the round before
    rounds: int = 1

    @property
    def groups(self) -> int:
        return len(self.weights)

    def nodes_at(self, x: float, y: float, group: int | None = None) -> PositionNodes:
        """Return the nodes of the position at a pixel, with the weights of a group or the mean of all groups."""
        (height, width), (across, down) = self.shape, self.step
        row = min(max(int((y + 0.5) // down), 0), height - 1)
        column = min(max(int((x + 0.5) // across), 0), width - 1)
        places = self.nodes[:, :, row // self.grid, column // self.grid].tolist()
        weights = self.group_weights(group)[:, row, column].tolist()
        nodes = tuple((a, b, weight) for (a, b), weight in zip(places, weights, strict=True))
        windows = tuple(self.window(a, b) for a, b in places) if self.node_view > 1 else ()
        return PositionNodes((column + 0.5) * across - 0.5, (row + 0.5) * down - 0.5, nodes, windows)

    def window(self, x: float, y: float) -> Window | None:
        """Return the window that a node at a pixel averages, clipped to the map; None if it reads only zeros."""
        sides = []
        for pixel, step, count in zip((x, y), self.step, self.shape[::-1], strict=True):
            position = (pixel + 0.5) / step - 0.5
            if not MARGIN - 1 <= position <= count - MARGIN:
                return None
            middle = min(max(position, 0), count - 1) + 0.5
            ends = max(middle - self.node_view / 2, 0), min(middle + self.node_view / 2, count)
            sides.append([end * step - 0.5 for end in ends])
        (left, right), (top, bottom) = sides
        return left, top, right, bottom

    def group_weights(self, group: int | None = None) -> np.ndarray:
        """Return the weights (S, h, w) of a group, or the mean of all groups."""
        return self.weights.mean(0) if group is None else self.weights[group]

    def position_nodes(self) -> np.ndarray:
        """Return the nodes of each position (those of its cell), (S, 2, h, w)."""
        height, width = self.shape
        return self.nodes.repeat(self.grid, 2)[:, :, :height].repeat(self.grid, 3)[..., :width]

    def reach(self, group: int | None = None) -> np.ndarray:
        """Return the reach of each position, (h, w): the mean distance of its nodes in pixels, by weight."""
        weights, nodes = self.group_weights(group), self.position_nodes()
        rows, columns = np.indices(self.shape, np.float32)
        x, y = (columns + 0.5) * self.step[0] - 0.5, (rows + 0.5) * self.step[1] - 0.5
        distance = np.hypot(nodes[:, 0] - x, nodes[:, 1] - y)
        return (weights * distance).sum(0) / np.maximum(weights.sum(0), 1e-12)

    def received(self, group: int | None = None) -> np.ndarray:
        """Return the attention that each position receives from all others, (h, w); 1 if all receive the same.

        A node between positions counts for the four around it, with the weights of bilinear interpolation; nodes
        outside of the map do not count.
        """
        height, width = self.shape
        weights, nodes = self.group_weights(group), self.position_nodes().astype(np.float64)
        columns, rows = (nodes[:, 0] + 0.5) / self.step[0] - 0.5, (nodes[:, 1] + 0.5) / self.step[1] - 0.5
        total = np.zeros(self.shape)
        for down, across in np.ndindex(2, 2):
            row, column = np.floor(rows) + down, np.floor(columns) + across
            part = weights * (1 - abs(rows - row)) * (1 - abs(columns - column))
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            np.add.at(total, (row[inside].astype(int), column[inside].astype(int)), part[inside])
        return total
