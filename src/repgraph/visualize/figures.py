"""Matplotlib figures for papers: style, size and files, and the figure of a non-local layer's attention weights."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from repgraph import files
from repgraph.errors import UsageError
from repgraph.visualize.affinity import AffinityStatistics, PositionAffinity, format_lines

WIDTH = 6.9  # inches: the text of a page with two columns
POSITION_COLOUR, NODE_COLOUR, OUTLINE = "#1466d8", "#e2212f", "#fff"
TEXT, GREY, BLUE, ORANGE = "#222222", "#666666", "#0072b2", "#d55e00"  # the last two of Okabe and Ito's colors
MAX_SIDE, MAX_PIXELS = 2**16, 2**28  # of images that Matplotlib draws; about 1 GiB
HIDDEN = 1e-3  # share of the smallest weights that the histograms may leave out
MAP_MIN = 0.1  # smallest weight times N in the colors of the map

_METADATA: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
_STYLE: dict[str, Any] = {
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), "small"),
    "axes.titlesize": "medium",
    "axes.linewidth": 0.6,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # text stays text, as many publishers require
    "svg.hashsalt": "repgraph",  # reproducible files
}


@contextmanager
def figure_style(width: float = WIDTH) -> Iterator[None]:
    """Draw and save figures in the style of a paper, independent of the user's matplotlibrc."""
    with matplotlib.style.context(["default", _STYLE | {"font.size": 8 * font_scale(width)}]):
        yield


def font_scale(width: float) -> float:
    """Return the factor on font sizes for a figure of ``width`` inches."""
    return min(1.0, max(0.75, width / WIDTH))


def file_format(path: Path) -> str:
    """Return the format of a path's suffix: png, svg or pdf."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in _METADATA:
        raise UsageError(f"{path}: unknown figure format; use the suffix .png, .svg or .pdf")
    return suffix


def save(figure: Figure, path: Path, dpi: float) -> Path:
    """Write a figure in the format of the path's suffix; raise an error if it is too large to be drawn."""
    width, height = figure.get_size_inches()
    across, down = round(width * dpi), round(height * dpi)
    if max(across, down) >= MAX_SIDE or across * down > MAX_PIXELS:
        size = f"{across} x {down} pixels"
        raise UsageError(f"the figure would have {size}; use a smaller --width or --dpi, or fewer images")
    suffix, buffer = file_format(path), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # Matplotlib draws a box
        figure.savefig(buffer, format=suffix, dpi=dpi, metadata=_METADATA[suffix])
    return files.write(path, buffer.getvalue())


def draw_affinity(
    found: AffinityStatistics, position: PositionAffinity, image: np.ndarray, *, width: float = WIDTH
) -> Figure:
    """Draw histograms of the attention weights of all positions and of one, and its map over its ``image`` (H, W, 3).

    Call it within :func:`figure_style`. Bars show how many weights have a size, the line their share of the sum.
    """
    count = len(found.images)
    title = f"all positions of {count} image{'s' * (count > 1)}"
    panels = [
        (title, found.histogram, found.values("mean"), found.values("uniform")),
        ("one position", position.histogram, position.statistics, position.uniform),
    ]
    figure = Figure((width, 0.24 * width + 1.17 * font_scale(width)), layout="constrained")
    left, middle, map_axis = figure.subplots(1, 3)
    middle.sharey(left)
    edges = found.histogram.edges
    first = min(int(np.argmax(np.cumsum(histogram.weights) > HIDDEN)) for _, histogram, _, _ in panels)
    last = max(int(np.flatnonzero(histogram.weights)[-1]) for _, histogram, _, _ in panels)
    for axis, (title, histogram, values, even) in zip((left, middle), panels, strict=True):
        axis.stairs(histogram.weights, edges, fill=True, color=BLUE, alpha=0.45, label="share of the weights")
        axis.stairs(histogram.mass, edges, color=ORANGE, linewidth=1.3, label="share of their sum")
        axis.axvline(1, color=TEXT, linewidth=0.8, linestyle="--", label="equal weights")
        axis.set(title=title, xscale="log", xlim=(edges[first], edges[last + 1]))
        axis.set_xlabel("\n".join(["weight x N", *format_lines(values, even, found.top_count)]), linespacing=1.35)
    left.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    _draw_map(figure, map_axis, position, image)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, borderaxespad=0.2)
    return figure


def _draw_map(figure: Figure, axis: Axes, position: PositionAffinity, image: np.ndarray) -> None:
    """Draw a position's weights over its image; with a detector, the map extends into the padding."""
    height, width = image.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axis.imshow(image.mean(-1), extent=extent, cmap="gray", vmin=0, vmax=255)
    weights = position.weights.mean(0)
    rows, columns = weights.shape
    map_extent = (-0.5, columns * position.step[0] - 0.5, rows * position.step[1] - 0.5, -0.5)
    relative = np.maximum(weights * weights.size, MAP_MIN)
    norm = colors.LogNorm(MAP_MIN, max(float(relative.max()), 1 / MAP_MIN), clip=True)
    drawn = axis.imshow(relative, extent=map_extent, cmap="cividis", norm=norm, alpha=0.7, interpolation="nearest")
    marker: Any = dict(marker="o", markersize=5, color=POSITION_COLOUR, markeredgecolor=OUTLINE, markeredgewidth=0.9)
    axis.plot(*position.at, linestyle="", **marker)
    axis.set(xlim=extent[:2], ylim=extent[2:], xticks=[], yticks=[], anchor="N", title="its weights")
    axis.spines[:].set_visible(False)
    below = axis.inset_axes((0.0, -0.13, 1.0, 0.06))
    figure.colorbar(drawn, cax=below, orientation="horizontal", label="weight x N")
