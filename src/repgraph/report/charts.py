"""Curves of runs as SVG from Matplotlib, in the CSS colors of the page, light and dark."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.style
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from repgraph.report.run_log import SCORES, Points, finite

# Classes of report.css, distinct for color-blind readers, and dashes: 42 combinations.
COLOURS = ("first", "second", "third", "fourth", "fifth", "sixth")
DASHES = ("", "7 4", "2 3", "11 4 2 4", "5 2", "1 4", "13 5")

TITLES = {  # of the columns that are shown, and the mean distance of nodes
    "loss": "Training loss",
    "val_miou": "mIoU on the validation images",
    "val_mask_ap": "AP of masks on the validation images",
    "val_box_ap": "AP of boxes on the validation images",
    "images_per_second": "Images per second",
    "rate": "Learning rate",
}
REACH = "reach_mean/"  # before the path of the layer

# Colors for Matplotlib that are replaced by CSS variables.
_INK, _LINE, *_RUNS = (f"#0100{number:02x}" for number in range(2 + len(COLOURS)))
_VARIABLES = dict(zip((_INK, _LINE, *_RUNS), ("soft", "line", *COLOURS), strict=True))
_STYLE = {
    **{"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "repgraph", "lines.scale_dashes": False},
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor", "grid.color"), _LINE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
}


def style_of(run: int) -> tuple[str, str]:
    """Return the CSS class and the dashes of a run, by its index."""
    return COLOURS[run % len(COLOURS)], DASHES[run % len(DASHES)]


def draw_charts(runs: Sequence[Mapping[str, Points]]) -> list[dict[str, str]]:
    """Draw the main columns of the runs' metrics."""
    columns = dict.fromkeys(name for series in runs for name in series if finite(series[name]))
    reach = [name for name in columns if name.startswith(REACH)]
    return [draw_chart(runs, name) for name in (*TITLES, *reach) if name in columns]


def draw_chart(runs: Sequence[Mapping[str, Points]], column: str) -> dict[str, str]:
    """Return title, SVG and note of one column, drawn for the runs that have it; the only text of the SVG is numbers.

    The y axis starts at zero unless all values are far from it; a few very large values are cut off.
    """
    reach = f"Mean distance of the nodes of {column.removeprefix(REACH)}, in positions of its map"
    note, title = "", TITLES.get(column, reach)
    lines = {i: points for i, run in enumerate(runs) if (points := finite(run.get(column, ())))}
    values = np.array([y for points in lines.values() for _, y in points])
    limit = 5 * float(np.quantile(values, 0.95))
    if len(values) >= 10 and 0 < limit < values.max():
        values, note = values[values <= limit], "Values above the axis are not shown."
    low, high = float(values.min()), float(values.max())
    margin = 0.05 * max(high - low, abs(high) / 10, 1e-9)
    with matplotlib.style.context(["default", _STYLE]):
        figure = Figure(figsize=(4.6, 2.5), layout="constrained")
        axis = figure.add_subplot()
        for run, points in lines.items():
            dashes = tuple(map(float, style_of(run)[1].split())) or None
            style: dict[str, Any] = dict(color=_RUNS[run % len(_RUNS)], linewidth=1.8, linestyle=(0, dashes))
            axis.plot(*zip(*points, strict=True), marker="o" if len(points) == 1 else "", markersize=4, **style)
        axis.set_ylim(0 if 0 <= low < 0.6 * high or low == high > 0 else low - margin, high + margin)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(5))
        if column.startswith(SCORES):
            axis.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        axis.grid(axis="y")
        axis.set(xlabel="iteration")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<(metadata|style).*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    return {"title": title, "svg": Markup(text), "note": note}
