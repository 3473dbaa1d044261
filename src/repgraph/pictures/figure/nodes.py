"""The paper's appendix figure: where positions look, in rows of images; the marks stay vectors in SVG and PDF."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from repgraph.errors import UsageError
from repgraph.pictures.figure import paper
from repgraph.pictures.legend import plain
from repgraph.pictures.nodes import HERE, LARGEST, LEAST, NODE, RIM, Look

# Inches: around all pictures, between them, below them for a line of text, and at the bottom for a line of the legend.
MARGIN, GAP, CAPTION, LEGEND = 0.05, 0.06, 0.15, 0.2
SMALLEST = 1.3  # points: the least radius of a node, so that it can be seen
POSITION = 2.6  # points: radius of the current position
LETTERS = 7
MARKS = 3  # in a line of the legend, at most


@dataclass(frozen=True)
class Cell:
    """A picture, uint8 (h, w, 3), of an image of ``size`` (H, W); what a position in it looks at; a line of text."""

    picture: np.ndarray
    size: tuple[int, int]
    look: Look | None = None
    caption: str = ""


def draw(
    rows: Sequence[Sequence[Cell]],
    *,
    width: float = 6.9,
    dpi: float = 300,
    links: bool = False,
    captions: bool = True,
    legend: bool = True,
    what: str = "node",
) -> Figure:
    """Rows of pictures, ``width`` inches wide in all; inside :func:`paper.style`.

    The current position is blue, its nodes are red and the larger the more weight they have, by area; those with next
    to none have a size that can still be seen. A node outside of the image is a ring at its rim. Where nodes
    are the mean of several positions, thin squares are around these. The legend calls nodes ``what``. Pictures have the
    resolution ``dpi``.

    >>> cell = Cell(np.zeros((6, 8, 3), np.uint8), (6, 8), Look(3, 2, ((1, 1, 0.9), (9, 3, 0.1))), "sky")
    >>> with paper.style():
    ...     chart = draw([[cell, cell]], width=3, legend=False)
    >>> len(chart.axes)
    2
    """
    columns = max(len(row) for row in rows)
    across = (width - 2 * MARGIN - (columns - 1) * GAP) / columns
    if across < 0.2:
        raise UsageError(f"{columns} columns do not fit into {width:g} inches; give a larger width, or fewer positions")
    text = CAPTION if captions and any(cell.caption for row in rows for cell in row) else 0.0
    heights = [max(across * cell.size[0] / cell.size[1] for cell in row) for row in rows]
    marks = _marks([cell for row in rows for cell in row], what) if legend else []
    bottom = LEGEND * math.ceil(len(marks) / MARKS)
    total = sum(heights) + len(rows) * text + (len(rows) - 1) * GAP + bottom + 2 * MARGIN
    paper.check_size(width, total, dpi)
    chart = paper.blank(width, total)
    top = total - MARGIN
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            own = across * cell.size[0] / cell.size[1]
            left = MARGIN + column * (across + GAP)
            box = (left / width, (top - own) / total, across / width, own / total)
            axis = chart.add_axes(box)
            _cell(axis, cell, across, dpi, links)
            if text and cell.caption:
                place = (left + across / 2) / width, (top - own - 0.11) / total
                style: Any = dict(ha="center", va="baseline", fontsize=LETTERS, color=paper.INK, parse_math=False)
                chart.text(*place, _fitting(cell.caption, across), **style)
        top -= height + text + GAP
    if legend:
        _legend(chart, marks, bottom)
    return chart


def _cell(axis: Axes, cell: Cell, across: float, dpi: float, links: bool) -> None:
    height, width = cell.size
    axis.imshow(_resized(cell, across * dpi), extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="none")
    axis.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
    axis.set_axis_off()
    if cell.look is None:
        return
    look, points = cell.look, 72 * across  # points: the width of the picture
    _windows(axis, look)
    for x, y, weight in sorted(look.nodes, key=lambda node: -node[2]):  # small ones lie on top, and are not hidden
        radius = max(SMALLEST, points * (LEAST + (LARGEST - LEAST) * max(weight, 0.0) ** 0.5))
        inside = -0.5 <= x <= width - 0.5 and -0.5 <= y <= height - 0.5
        place = x, y
        if not inside:
            place = min(max(x, -0.5), width - 0.5), min(max(y, -0.5), height - 0.5)
        if links:
            axis.plot(
                [look.x, place[0]], [look.y, place[1]], color=NODE, linewidth=0.5 + 1.5 * weight, alpha=0.6, zorder=2
            )
        axis.scatter(
            *place, s=(2 * radius) ** 2, zorder=3, clip_on=inside, linewidths=0.5 if inside else 0.9,
            facecolors=[(*_rgb(NODE), 0.75)] if inside else "none", edgecolors=RIM if inside else NODE,
        )  # fmt: skip
    axis.scatter(look.x, look.y, s=(2 * POSITION) ** 2, facecolors=HERE, edgecolors=RIM, linewidths=0.7, zorder=4)


def _windows(axis: Axes, look: Look) -> None:
    """What the nodes are the mean of, the clearer the more weight; a pale rim is for dark pictures."""
    for window, (_, _, weight) in zip(look.windows, look.nodes, strict=False):
        if window is None:
            continue
        left, top, right, bottom = window
        clear = 0.25 + 0.7 * max(weight, 0.0) ** 0.5
        for thick, colour, alpha in ((1.0, RIM, 0.4 * clear), (0.4, NODE, clear)):
            style: dict[str, Any] = dict(linewidth=thick, edgecolor=colour, alpha=alpha, zorder=1.5)
            axis.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, **style))


def _marks(cells: Sequence[Cell], what: str) -> list[tuple[str, dict[str, Any]]]:
    """The marks that there are: what they are called, and how they look."""
    outside = any(
        not (-0.5 <= x <= cell.size[1] - 0.5 and -0.5 <= y <= cell.size[0] - 0.5)
        for cell in cells if cell.look is not None for x, y, _ in cell.look.nodes
    )  # fmt: skip
    style: dict[str, Any] = dict(marker="o", linestyle="", markeredgewidth=0.5, markeredgecolor=RIM)
    marks = [
        ("current position", style | dict(color=HERE, markersize=2 * POSITION)),
        (f"{what}, larger for more weight", style | dict(color=NODE, markersize=6, alpha=0.75)),
    ]
    if any(window for cell in cells if cell.look is not None for window in cell.look.windows):
        square = dict(marker="s", markerfacecolor="none", markeredgecolor=NODE, markeredgewidth=0.4, markersize=6)
        marks.append((f"what a {what} is the mean of", style | square))
    if outside:
        ring = dict(markerfacecolor="none", markeredgecolor=NODE, markeredgewidth=0.9, markersize=5)
        marks.append((f"{what}, outside of the image", style | ring))
    return marks


def _legend(chart: Figure, marks: Sequence[tuple[str, dict[str, Any]]], height: float) -> None:
    """What the marks are, at the bottom, in lines of the same number."""
    axis = chart.add_axes((0, 0, 1, height / chart.get_figheight()))
    axis.set_axis_off()
    handles = [axis.plot([], [], label=label, **given)[0] for label, given in marks]
    columns = math.ceil(len(handles) / math.ceil(len(handles) / MARKS))
    axis.legend(handles=handles, loc="center", ncols=columns, frameon=False, borderaxespad=0, fontsize=LETTERS)


def _resized(cell: Cell, pixels: float) -> np.ndarray:
    """The picture with as many pixels as are printed."""
    height, width = cell.size
    across = max(1, round(pixels))
    size = across, max(1, round(across * height / width))
    picture = Image.fromarray(np.ascontiguousarray(cell.picture))
    smaller = size[0] < picture.width
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS if smaller else Image.Resampling.BICUBIC))


def _fitting(caption: str, across: float) -> str:
    """A line of text no longer than a picture is wide."""
    text, most = plain(caption), max(3, int(across * 72 / (0.55 * LETTERS)))
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue
