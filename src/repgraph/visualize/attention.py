"""Nodes and attention weights of a layer for one image, in pixels of the image; pixel centres are at integers.

:func:`repgraph.visualize.collect.collect_attention` returns them.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class PositionNodes:
    """The nodes of one position, in pixels of the image; they may be outside of it."""

    x: float
    y: float
    nodes: tuple[tuple[float, float, float], ...]  # x, y, attention weight

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
    def name(self) -> str:
        return self.path if self.rounds == 1 else f"{self.path}, round {self.round}"

    def nodes_at(self, x: float, y: float) -> PositionNodes:
        """Return the nodes of the position at a pixel, with the mean weights of all groups."""
        (height, width), (across, down) = self.shape, self.step
        row = min(max(int((y + 0.5) // down), 0), height - 1)
        column = min(max(int((x + 0.5) // across), 0), width - 1)
        places = self.nodes[:, :, row // self.grid, column // self.grid].tolist()
        weights = self.weights[:, :, row, column].mean(0).tolist()
        nodes = tuple((a, b, weight) for (a, b), weight in zip(places, weights, strict=True))
        return PositionNodes((column + 0.5) * across - 0.5, (row + 0.5) * down - 0.5, nodes)
