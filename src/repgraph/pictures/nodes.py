"""Where a RepGraph layer looks: the representative nodes of some positions, drawn on the image as SVG.

The position is blue and its nodes are red, the larger the more attention they get; a line leads to each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repgraph.pictures.page import Html, data_uri, tag

HERE, NODE, RIM = "#1466d8", "#e2212f", "#fff"
LARGEST, LEAST = 0.055, 0.007  # radius of a node that gets all the attention, and of one that gets none; of the width

Window = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the image


@dataclass(frozen=True)
class Look:
    """What one position looks at, in pixels of the image: its place, and x, y and weight of each node.

    Pixel centres are at integers, as everywhere; a node may lie outside of the image. Where nodes are the mean of
    several positions, ``windows`` has what these cover; None for a node that reads nothing.
    """

    x: float
    y: float
    nodes: tuple[tuple[float, float, float], ...]
    windows: tuple[Window | None, ...] = ()

    @property
    def farthest(self) -> float:
        """The distance of the node that gets the most attention."""
        x, y, _ = max(self.nodes, key=lambda node: node[2])
        return float(np.hypot(x - self.x, y - self.y))


def look(nodes: Any, weights: Any, at: tuple[float, float], size: Sequence[int]) -> Look:
    """The look of the map position nearest to pixel ``at`` = (x, y) of an image of ``size`` = (H, W).

    ``nodes`` (S, 2, h, w) and ``weights`` (groups, S, h', w') are one image's from :meth:`repgraph.models.RGNet.nodes`;
    groups count by their mean.

    >>> nodes, weights = np.zeros((1, 2, 2, 2)), np.ones((1, 1, 2, 2))
    >>> look(nodes, weights, (6, 1), (8, 8))
    Look(x=5.5, y=1.5, nodes=((0.0, 0.0, 1.0),), windows=())
    """
    nodes, weights = np.asarray(nodes, dtype=float), np.asarray(weights, dtype=float).mean(0)
    places = []
    for (x, y), (rows, columns) in ((at, weights.shape[1:]), (at, nodes.shape[2:])):
        row = min(max(int((y + 0.5) * rows / size[0]), 0), rows - 1)
        places.append((row, min(max(int((x + 0.5) * columns / size[1]), 0), columns - 1)))
    (row, column), (cell_row, cell_column) = places  # of the position, and of the grid's cell that it is in
    found = tuple(
        (float(x), float(y), float(weight))
        for (x, y), weight in zip(nodes[:, :, cell_row, cell_column], weights[:, row, column], strict=True)
    )
    rows, columns = weights.shape[1:]
    return Look((column + 0.5) * size[1] / columns - 0.5, (row + 0.5) * size[0] / rows - 0.5, found)


def drawing(picture: Any, size: Sequence[int], *marks: Any, alt: str = "") -> Html:
    """An SVG with a picture, which may be larger than ``size`` = (H, W), and marks in pixels of that size on it."""
    height, width = size
    # Pixel centres are at integers: the first pixel begins half a pixel before.
    inside = tag("image", href=data_uri(picture, photo=True), x=-0.5, y=-0.5, width=width, height=height)
    box = f"-0.5 -0.5 {width} {height}"
    return tag("svg", tag("title", alt), inside, *marks, viewBox=box, role="img", xmlns="http://www.w3.org/2000/svg")


def draw(looks: Iterable[Look], width: float) -> Html:
    """Looks as marks for :func:`drawing`, on an image ``width`` pixels wide; the most attended nodes lie on top.

    >>> marks = draw([Look(3, 4, ((10, 4, 0.75), (3, 9, 0.25)))], 32)
    >>> marks.count("<circle"), "weight 0.75, 7 pixels away" in marks
    (3, True)
    """
    parts: list[Html] = []
    looks = list(looks)
    thin = width / 400
    for one in looks:
        ordered = sorted(one.nodes, key=lambda node: node[2])
        for x, y, weight in ordered:
            parts.append(
                tag(
                    "line", x1=_n(one.x), y1=_n(one.y), x2=_n(x), y2=_n(y), stroke=NODE,
                    stroke_width=_n(thin * (0.7 + 5 * weight)), stroke_opacity=_n(0.35 + 0.6 * weight),
                )
            )  # fmt: skip
        for x, y, weight in ordered:
            away = np.hypot(x - one.x, y - one.y)
            parts.append(
                tag(
                    "circle", tag("title", f"weight {weight:.2f}, {away:.0f} pixels away"), cx=_n(x), cy=_n(y),
                    r=_n(width * (LEAST + (LARGEST - LEAST) * weight**0.5)), fill=NODE,
                    fill_opacity=_n(0.35 + 0.3 * weight), stroke=RIM, stroke_width=_n(thin),
                )
            )  # fmt: skip
    for one in looks:
        place = dict(cx=_n(one.x), cy=_n(one.y), r=_n(width * 0.014))
        parts.append(tag("circle", **place, fill=HERE, stroke=RIM, stroke_width=_n(1.6 * thin)))
    return tag("g", *parts)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
