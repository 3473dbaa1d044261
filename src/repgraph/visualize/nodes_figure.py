"""The figure of nodes: a row for each image and a column for each position; marks are vectors in SVG and PDF."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from PIL import Image
from scipy import ndimage
from torch import Tensor, nn

from repgraph.constants import IGNORE
from repgraph.data.coco import masks
from repgraph.data.labels import Labels
from repgraph.drawing import detections, overlay
from repgraph.drawing.legend import MAX_LENGTH, plain
from repgraph.errors import UsageError
from repgraph.inference import Detections
from repgraph.visualize import collect
from repgraph.visualize.figures import NODE_COLOUR, OUTLINE, POSITION_COLOUR, TEXT, WIDTH

MAX_RADIUS, MIN_RADIUS = 0.055, 0.007  # of nodes with weight 1 and 0, as a fraction of the picture's width
MIN_POINTS, POSITION_POINTS = 1.3, 2.6  # points: minimum radius of a node, radius of the position
# Inches: around all pictures, between them, below them for the caption, and at the bottom for the legend.
MARGIN, GAP, CAPTION, LEGEND = 0.05, 0.06, 0.15, 0.4
FONT_SIZE = 7

Pixel = tuple[float, float]


@dataclass(frozen=True)
class Cell:
    """A picture of an image of ``size`` (H, W), with the nodes of a position and a caption."""

    picture: Image.Image
    size: tuple[int, int]
    nodes: collect.PositionNodes | None = None
    caption: str = ""


def figure_rows(
    model: nn.Module, name: str, image: Tensor, layer: str, labels: Labels, at: Sequence[Pixel] = (), count: int = 4
) -> list[list[Cell]]:
    """Return the rows of an image, one for each round of the layer: the prediction, and the nodes of each position.

    ``at`` are positions, as pixels x, y; if there is none, ``count`` positions are chosen.
    """
    size = (image.shape[1], image.shape[2])
    for pixel in at:
        collect.check_inside(pixel, size, name)
    attention, output = collect.attention_and_output(model, image, layers=[layer])
    prediction = collect.to_prediction(output, size, name)
    if isinstance(prediction, Detections):
        predicted = detections.draw(image, prediction, labels.names)
        best = itertools.compress(prediction.masks or (), prediction.scores >= detections.SCORE)
        regions = collect.paint_objects(size, map(masks.decode, best))
    else:
        predicted, regions = overlay.overlay(image, prediction, labels, legend=False), prediction
    positions, rows = at or choose_positions(regions, count), []
    for each in attention.values():
        cells = [Cell(predicted, size, None, name + each.name.removeprefix(each.path))]
        for x, y in positions:
            caption = f"{x:.0f}, {y:.0f}"
            if not isinstance(prediction, Detections):
                caption = labels.names[prediction[int(y + 0.5), int(x + 0.5)]]
            cells.append(Cell(overlay.as_picture(image), size, each.nodes_at(x, y), caption))
        rows.append(cells)
    return rows


def choose_positions(regions: np.ndarray, count: int) -> list[Pixel]:
    """Choose pixels x, y in the middle of regions (H, W) and far from each other.

    Regions are classes, or objects of a detector and ``IGNORE``. Those with fewer positions are preferred.

    >>> classes = np.zeros((40, 60), int)
    >>> classes[10:30, 35:55] = 1
    >>> choose_positions(classes, 3)
    [(17.0, 17.0), (45.0, 20.0), (10.0, 29.0)]
    """
    shown = np.zeros(IGNORE + 1)  # number of positions by region
    shown[IGNORE] = 1  # prefer objects
    around = np.pad(regions.astype(int), 1, constant_values=-1)
    inside = ndimage.minimum_filter(around, 3) == ndimage.maximum_filter(around, 3)
    depth = 1 + ndimage.distance_transform_cdt(inside)[1:-1, 1:-1]
    rows, columns = np.indices(regions.shape)
    distance, chosen = np.full(regions.shape, float(sum(regions.shape))), []
    for _ in range(count):
        score = depth * distance / (1 + shown[regions]) ** 2
        row, column = np.unravel_index(score.argmax(), regions.shape)
        chosen.append((float(column), float(row)))
        shown[regions[row, column]] += 1
        distance = np.minimum(distance, np.hypot(rows - row, columns - column))
    return chosen


def draw_nodes(
    rows: Sequence[Sequence[Cell]], *, width: float = WIDTH, node: str = "node", windows: bool = False
) -> Figure:
    """Draw rows of pictures with the nodes of positions; call it within :func:`.figures.figure_style`.

    The position is blue and its nodes are red; the area of a node shows its weight, with a minimum. Nodes outside of
    the image are rings at its border. The width is in inches; ``node`` is the word for a node in the legend.
    ``windows`` adds what the nodes in the image average (``node_view``), as squares.
    """
    columns = max(len(row) for row in rows)
    across = (width - 2 * MARGIN - (columns - 1) * GAP) / columns
    if across < 0.2:
        raise UsageError(f"{columns} columns do not fit into {width:g} inches; use a larger width or fewer positions")
    heights = [max(across * cell.size[0] / cell.size[1] for cell in row) for row in rows]
    total = sum(heights) + len(rows) * (CAPTION + GAP) + LEGEND + 2 * MARGIN
    figure = Figure((width, total))
    top = total - MARGIN
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            own = across * cell.size[0] / cell.size[1]
            left = MARGIN + column * (across + GAP)
            axis = figure.add_axes((left / width, (top - own) / total, across / width, own / total))
            _draw_cell(axis, cell, across, windows)
            most = max(3, int(across * 72 / (0.55 * FONT_SIZE)))  # characters in the width of a picture
            style: Any = dict(y=0, pad=-8, fontsize=FONT_SIZE, color=TEXT, parse_math=False)  # below the picture
            axis.set_title(plain(cell.caption, min(most, MAX_LENGTH)), **style)
        top -= height + CAPTION + GAP
    mark: Any = dict(marker="o", linestyle="", markeredgewidth=0.5, markeredgecolor=OUTLINE, markersize=6)
    ring = mark | dict(markerfacecolor="none", markeredgecolor=NODE_COLOUR)
    handles = [
        Line2D([], [], label="current position", color=POSITION_COLOUR, **mark),
        Line2D([], [], label=f"{node}, larger for more weight", color=NODE_COLOUR, alpha=0.75, **mark),
        Line2D([], [], label=f"{node} outside of the image", **ring),
    ]
    if windows:
        handles.append(Line2D([], [], label=f"window over which a {node} is averaged", **ring | dict(marker="s")))
    figure.legend(handles=handles, loc="lower center", ncols=2, frameon=False, fontsize=FONT_SIZE)
    return figure


def _draw_cell(axis: Axes, cell: Cell, across: float, windows: bool) -> None:
    (height, width), found = cell.size, cell.nodes
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axis.imshow(cell.picture, extent=extent, interpolation="lanczos")  # at the resolution of the file
    axis.set(xlim=extent[:2], ylim=extent[2:])
    axis.set_axis_off()
    if found is None:
        return
    for x, y, weight in sorted(found.nodes, key=lambda node: -node[2]):  # small ones on top
        radius = max(MIN_POINTS, 72 * across * (MIN_RADIUS + (MAX_RADIUS - MIN_RADIUS) * weight**0.5))
        place = min(max(x, -0.5), width - 0.5), min(max(y, -0.5), height - 0.5)
        style: Any = dict(facecolors=[to_rgba(NODE_COLOUR, 0.75)], edgecolors=OUTLINE, linewidths=0.5)
        if place != (x, y):
            style = dict(facecolors="none", edgecolors=NODE_COLOUR, linewidths=0.9, clip_on=False)
        elif windows:
            corner = (x - found.window[0] / 2, y - found.window[1] / 2)
            outline: Any = dict(linewidth=0.5, edgecolor=NODE_COLOUR, alpha=0.25 + 0.7 * weight**0.5, fill=False)
            axis.add_patch(Rectangle(corner, *found.window, zorder=1.5, **outline))
        axis.scatter(*place, s=(2 * radius) ** 2, zorder=3, **style)
    style = dict(facecolors=POSITION_COLOUR, edgecolors=OUTLINE, linewidths=0.7, zorder=4)
    axis.scatter(found.x, found.y, s=(2 * POSITION_POINTS) ** 2, **style)
