"""The paper's first figure: histograms of a non-local layer's weights, of all positions and of one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from repgraph.pictures.figure import paper
from repgraph.pictures.nodes import HERE, RIM

HIDDEN = 1e-3  # of the weights: so many of the smallest are shown in one bar
SHOWN = 1e-5  # weight times N at which the axis begins, at the least
LEAST = 0.1  # weight times N below which the map shows no difference


@dataclass(frozen=True)
class Panel:
    """Shares of the weights, and of their mass, between ``edges`` of the weight times N; and lines of text."""

    title: str
    edges: Sequence[float]
    weights: Sequence[float]
    mass: Sequence[float]
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Map:
    """An image (H, W, 3) in bytes, a pixel x, y in it, and that position's weights (h, w) for all.

    ``step`` is what is from one position to the next, across and down, in pixels: the weights' map may be larger than
    the image, where a detector has padded it.
    """

    title: str
    image: np.ndarray
    at: tuple[float, float]
    weights: np.ndarray
    step: tuple[float, float]


def draw(panels: Sequence[Panel], place: Map | None = None, *, width: float = 6.9) -> Figure:
    """The panels side by side, and the map beside them, ``width`` inches wide in all; inside :func:`paper.style`.

    >>> with paper.style():
    ...     chart = draw([Panel("all", [0.1, 1, 10], [0.9, 0.1], [0.4, 0.6], ["top 9: 50 %"])])
    >>> chart.axes[0].get_xlabel().splitlines()
    ['weight x N', 'top 9: 50 %']
    """
    columns = len(panels) + (place is not None)
    lines = max(len(panel.lines) for panel in panels)
    chart = paper.blank(width, 0.24 * width + (0.14 * lines + 0.75) * paper.scale(width), layout="constrained")
    axes = [chart.add_subplot(1, columns, number + 1) for number in range(columns)]
    low = min(_first(panel) for panel in panels)
    high = max(_last(panel) for panel in panels)
    for axis, panel in zip(axes, panels, strict=False):
        _bars(axis, panel, low, high)
    top = max(axis.get_ylim()[1] for axis in axes[: len(panels)])
    for axis in axes[: len(panels)]:
        axis.set_ylim(0, top)
        axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    if place is not None:
        _map(chart, axes[-1], place)
    handles, labels = axes[0].get_legend_handles_labels()
    chart.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, borderaxespad=0.2)
    return chart


def _first(panel: Panel) -> int:
    """The bin that the axis begins with; smaller weights are shown in it."""
    found = int(np.argmax(np.cumsum(panel.weights) > HIDDEN))
    return max(found, int(np.searchsorted(panel.edges, 0.999 * SHOWN)))


def _last(panel: Panel) -> int:
    return int(np.flatnonzero(np.asarray(panel.weights) + np.asarray(panel.mass))[-1])


def _bars(axis: Axes, panel: Panel, low: int, high: int) -> None:
    edges = np.asarray(panel.edges)[low : high + 2]

    def shown(values: Sequence[float]) -> np.ndarray:
        cut = np.array(values[low : high + 1], dtype=float)
        cut[0] += sum(values[:low])
        return cut

    axis.stairs(shown(panel.weights), edges, fill=True, color=paper.BLUE, alpha=0.45, label="share of the weights")
    axis.stairs(shown(panel.mass), edges, color=paper.ORANGE, linewidth=1.3, label="share of the mass (their sum)")
    axis.axvline(1, color=paper.INK, linewidth=0.8, linestyle="--", label="equal weights")
    axis.set_xscale("log")
    axis.set_xlim(edges[0], edges[-1])
    smaller = sum(panel.weights[:low])
    if smaller > HIDDEN:
        note = f" {100 * smaller:.1f} % are smaller"
        axis.text(
            edges[1], axis.get_ylim()[1] / 2, note, rotation=90, va="center", fontsize="x-small", color=paper.SOFT
        )
    axis.set_title(panel.title, parse_math=False)
    axis.set_xlabel("\n".join(["weight x N", *panel.lines]), linespacing=1.35)


def _map(chart: Figure, axis: Axes, place: Map) -> None:
    height, width = place.image.shape[:2]
    grey = place.image.mean(-1, keepdims=True).repeat(3, -1).astype(np.uint8)
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    axis.imshow(grey, extent=extent, interpolation="antialiased")
    rows, columns = place.weights.shape
    size = (-0.5, columns * place.step[0] - 0.5, rows * place.step[1] - 0.5, -0.5)
    relative = place.weights * place.weights.size
    norm = colors.LogNorm(LEAST, max(float(relative.max()), 1 / LEAST), clip=True)
    shown: Any = np.maximum(relative, LEAST)
    scale = axis.imshow(shown, extent=size, cmap="cividis", norm=norm, alpha=0.7, interpolation="nearest")
    axis.plot(*place.at, marker="o", markersize=5, color=HERE, markeredgecolor=RIM, markeredgewidth=0.9, linestyle="")
    axis.set(xlim=extent[:2], ylim=extent[2:], xticks=[], yticks=[], anchor="N")
    axis.spines[:].set_visible(False)
    axis.set_title(place.title, parse_math=False)
    below = axis.inset_axes((0.0, -0.13, 1.0, 0.06))
    bar: Any = chart.colorbar(scale, cax=below, orientation="horizontal")
    bar.set_label("weight x N")
    bar.outline.set_visible(False)
    bar.solids.set_alpha(1)
