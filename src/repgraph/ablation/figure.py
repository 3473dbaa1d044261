"""The figure of a table: the scores of all seeds, a row for each entry."""

import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from repgraph.ablation.summary import EntrySummary
from repgraph.ablation.tables import Table
from repgraph.visualize.figures import BLUE, GREY, ORANGE, TEXT, WIDTH, figure_style, save

LINE = 0.13  # inches: height of a line of text
KEY = 'Hollow: a seed; filled: mean ± sample standard deviation (two seeds: the range); line: mean of "{}".'


def save_figure(table: Table, rows: Sequence[EntrySummary], path: Path, axis: str, note: str) -> Path:
    """Draw the mIoU of each entry and seed, and write the picture."""
    labels, scores = [row.entry.label for row in rows], [[100 * score for score in row.miou.values()] for row in rows]
    reference = [row.entry.name for row in rows].index(table.reference)
    with figure_style():
        return save(draw_scores(table.title, labels, scores, reference, axis, note), path, dpi=140)


def draw_scores(
    title: str, labels: Sequence[str], scores: Sequence[Sequence[float]], reference: int, axis: str, note: str
) -> Figure:
    """Draw a row of scores for each label, one for each seed, and a vertical line at the mean of row ``reference``."""
    wrapped, heading = [textwrap.fill(label, 44) for label in labels], textwrap.fill(title, 78)
    footer = "\n".join(textwrap.fill(text, 120) for text in (note, KEY.format(labels[reference])))
    row_height = 0.1 + LINE * max(1 + label.count("\n") for label in wrapped)
    height = len(labels) * row_height + 1.0 + LINE * (heading + footer).count("\n")
    figure = Figure((WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06))
    axes = figure.add_subplot()
    # Not clipped: dots at the end of the axis are drawn in full.
    dots: dict[str, Any] = dict(linestyle="", marker="o", clip_on=False, in_layout=False, zorder=3)
    for row, values in enumerate(scores):
        if len(values) > 1:
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            bar = (min(values), max(values)) if len(values) == 2 else (mean - deviation, mean + deviation)
            axes.plot(bar, [row, row], color=BLUE, linewidth=2, solid_capstyle="butt", zorder=2, gid="bar")
            axes.plot([mean], [row], color=BLUE, markersize=7.5, markeredgewidth=0, gid="mean", **dots)
        seeds = axes.plot(values, [row] * len(values), color=TEXT, markersize=3.6, gid="seeds", **dots)[0]
        seeds.set(markeredgewidth=0.7, markerfacecolor="white")
    if scores[reference]:
        axes.axvline(statistics.fmean(scores[reference]), color=ORANGE, linewidth=0.8, zorder=1, gid="reference")
    axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), wrapped, parse_math=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color="#dddddd", linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.set_xlabel(axis, parse_math=False)
    figure.suptitle(heading, x=0.012, ha="left", fontsize="large", fontweight="bold", parse_math=False)
    figure.supxlabel(footer, x=0.012, ha="left", fontsize="small", color=GREY, parse_math=False)
    return figure
