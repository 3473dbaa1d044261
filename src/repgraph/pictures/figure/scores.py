"""Scores of several seeds, a row for each entry of a table: every seed, their mean, and how far they spread."""

import math
import statistics
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from repgraph.pictures.figure import paper

GUIDE = "#dddddd"
LABEL, TITLE, SMALL = 44, 84, 130  # letters in a line, of a figure of the usual width
LINE, GAP, REST = 0.13, 0.1, 1.0  # inches: a line of text, what is between two labels, and title, axis, small print


def draw(
    title: str,
    labels: Sequence[str],
    scores: Sequence[Sequence[float]],
    reference: int | None = None,
    *,
    axis: str = "mIoU, %",
    note: str = "",
    width: float = 6.9,
) -> Figure:
    """A row for each label, the first on top, ``width`` inches wide in all; inside :func:`paper.style`.

    Seeds are hollow dots. Their mean is filled, with a bar of one sample standard deviation to either side; the bar of
    two seeds is their range, and one has neither. A row without scores stays empty.

    Args:
        scores: of each row, one for each seed; what is not finite is left out.
        reference: the row at whose mean a line goes through all.
        axis: what the scores are.
        note: small print, before how to read the figure.

    >>> with paper.style():
    ...     chart = draw("Nodes", ["S = 1", "S = 9"], [[61.0, 63.0], [64.0, 65.0, 66.0]], 0, note="voc, seeds 0 1 2")
    >>> [text.get_text() for text in chart.axes[0].get_yticklabels()]
    ['S = 1', 'S = 9']
    """
    if not labels or len(labels) != len(scores):
        raise ValueError(f"{len(labels)} labels for the scores of {len(scores)} rows; one for each is needed")
    found = [[score for score in row if math.isfinite(score)] for row in scores]
    part = width / 6.9
    shown = [_wrapped(label, LABEL * part) for label in labels]
    heading = _wrapped(title, TITLE * part)
    line = statistics.fmean(found[reference]) if reference is not None and found[reference] else None
    small = [note, _key(found, labels[reference or 0], line)]
    below = "\n".join(_wrapped(text, SMALL * part) for text in small if text)
    rows = len(labels) * (GAP + LINE * max(1 + label.count("\n") for label in shown))
    chart = paper.blank(
        width,
        rows + REST + LINE * (heading + below).count("\n"),
        layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06),
    )
    axes = chart.add_subplot()
    _rows(axes, found)
    if line is not None:
        axes.axvline(line, color=paper.ORANGE, linewidth=0.8, zorder=1, gid="reference")
    _frame(axes, shown, found)
    axes.set_xlabel(axis, parse_math=False)
    chart.suptitle(heading, x=0.012, ha="left", fontsize="large", fontweight="bold", parse_math=False)
    chart.supxlabel(below, x=0.012, ha="left", fontsize="small", color=paper.SOFT, parse_math=False)
    return chart


def _wrapped(text: str, letters: float) -> str:
    """Lines of about the same length, none of more than so many letters.

    >>> _wrapped("control: the layer's convolutions, no sampling", 44).splitlines()
    ["control: the layer's", 'convolutions, no sampling']
    """
    most = max(8, round(letters))
    lines = textwrap.wrap(text, most)
    for width in range(len(text) // (len(lines) or 1), most):
        if len(even := textwrap.wrap(text, max(1, width))) == len(lines):
            return "\n".join(even)
    return "\n".join(lines)


def _key(found: Sequence[Sequence[float]], name: str, line: float | None) -> str:
    """How to read what is in the figure, and nothing else."""
    counts = {len(row) for row in found}
    told = ["hollow: a seed" if counts != {0} else "no scores"]
    if max(counts) > 2:
        told.append(f"filled: mean ± sample standard deviation{' (of two seeds the range)' if 2 in counts else ''}")
    elif 2 in counts:
        told.append("filled: mean, and the range")
    if line is not None:
        told.append(f'line: mean of "{name}"')
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}."


def _rows(axes: Axes, found: Sequence[Sequence[float]]) -> None:
    several = [(row, scores) for row, scores in enumerate(found) if len(scores) > 1]
    for row, scores in several:
        axes.plot(
            _spread(scores), [row, row], color=paper.BLUE, linewidth=2, solid_capstyle="butt", zorder=2, gid="bar"
        )
    means = [(statistics.fmean(scores), row) for row, scores in several]
    seeds = [(score, row) for row, scores in enumerate(found) for score in scores]
    _dots(axes, means, "mean", markersize=7.5, color=paper.BLUE, markeredgewidth=0)
    _dots(axes, seeds, "seeds", markersize=3.6, color=paper.INK, markeredgewidth=0.7, markerfacecolor="white")


def _dots(axes: Axes, points: Sequence[tuple[float, int]], gid: str, **look: Any) -> None:
    # Not clipped: one at the end of the axis is whole. The layout leaves it its pads.
    look |= dict(zorder=3, clip_on=False, in_layout=False)
    axes.plot([x for x, _ in points], [y for _, y in points], "o", gid=gid, **look)


def _spread(scores: Sequence[float]) -> tuple[float, float]:
    """Where the bar of some scores begins and ends.

    >>> _spread([63.0, 64.0]), _spread([62.0, 63.0, 64.0])
    ((63.0, 64.0), (62.0, 64.0))
    """
    if len(scores) == 2:
        return min(scores), max(scores)
    mean, deviation = statistics.fmean(scores), statistics.stdev(scores)
    return mean - deviation, mean + deviation


def _frame(axes: Axes, labels: Sequence[str], found: Sequence[Sequence[float]]) -> None:
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color=GUIDE, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    if not any(map(any, found)):  # nothing, or nothing but zeros
        axes.set_xlim(0, 100)
    elif axes.get_xlim()[0] < 0:  # its margin: no score is there, but a bar may be
        bars = [_spread(scores)[0] for scores in found if len(scores) > 1]
        axes.set_xlim(left=min(0.0, *bars, *(score for scores in found for score in scores)))
