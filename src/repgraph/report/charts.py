"""Curves of runs as SVG from Matplotlib, in the CSS colours of the page, light and dark."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.style
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repgraph.report.run_log import SCORES, Points, finite, metric_name

# Classes of report.css, distinct for colour-blind readers, and dashes: 42 combinations.
COLOURS = ("first", "second", "third", "fourth", "fifth", "sixth")
DASHES = ("", "7 4", "2 3", "11 4 2 4", "5 2", "1 4", "13 5")

ON_VALIDATION = " on the validation images"
SHOWN = {  # title and unit; the mean reach of nodes comes before the last two, and other columns are folded away
    "loss": ("Training loss", "loss"),
    "val_miou": (f"mIoU{ON_VALIDATION}", "%"),
    "val_mask_ap": (f"AP of masks{ON_VALIDATION}", "%"),
    "val_box_ap": (f"AP of boxes{ON_VALIDATION}", "%"),
    "images_per_second": ("Training speed", "images/s"),
    "rate": ("Learning rate", "learning rate"),
}
REACH = {"reach_mean": "Mean reach", "reach_p95": "95th percentile of the reach"}  # before the path of the layer

# Colours for Matplotlib that are replaced by CSS variables.
_INK, _LINE, *_RUNS = (f"#0100{number:02x}" for number in range(2 + len(COLOURS)))
_VARIABLES = dict(zip((_INK, _LINE, *_RUNS), ("soft", "line", *COLOURS), strict=True))
_STYLE = {
    **{"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "repgraph", "lines.scale_dashes": False},
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor", "grid.color"), _LINE),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.spines.left"), False),
}


@dataclass(frozen=True)
class Chart:
    """A drawn column of the metrics."""

    title: str
    svg: Markup
    note: str


def style_of(run: int) -> tuple[str, str]:
    """Return the CSS class and the dashes of a run, by its index."""
    return COLOURS[run % len(COLOURS)], DASHES[run % len(DASHES)]


def draw_charts(runs: Sequence[Mapping[str, Points]]) -> tuple[list[Chart], list[Chart]]:
    """Draw all columns of the runs' metrics; return the charts to show, and the charts to fold away."""
    columns = list(dict.fromkeys(name for series in runs for name in series if finite(series[name])))
    reach = [name for name in columns if name.startswith("reach_mean/")]
    *first, speed, rate = SHOWN
    shown = [name for name in (*first, *reach, speed, rate) if name in columns]
    zero = [name for name in columns if not any(value for series in runs for _, value in series.get(name, ()))]
    folded = [name for name in columns if name not in (*shown, *zero)]
    return [draw_chart(runs, name) for name in shown], [draw_chart(runs, name) for name in folded]


def draw_chart(runs: Sequence[Mapping[str, Points]], column: str) -> Chart:
    """Draw one column of the runs that have it; the only text of the SVG is numbers and the unit.

    The y axis starts at zero unless all values are far from it; a few very large values are cut off.
    """
    title, unit = _title(column)
    scale, note = 100 if unit == "%" else 1, ""
    lines = {i: [(x, scale * y) for x, y in finite(run.get(column, ()))] for i, run in enumerate(runs)}
    lines = {i: points for i, points in lines.items() if points}
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
            style: dict[str, Any] = dict(color=_RUNS[run % len(_RUNS)], linewidth=1.8, markersize=4)
            dashes = [float(number) for number in style_of(run)[1].split()]
            style |= dict(linestyle=(0, dashes) if dashes else "-", marker="o" if len(points) == 1 else "")
            axis.plot(*zip(*points, strict=True), **style)
        axis.set_ylim(0 if 0 <= low < 0.6 * high or low == high > 0 else low - margin, high + margin)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.grid(axis="y")
        axis.set(xlabel="iteration", ylabel=unit)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r"<(metadata|style).*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for colour, name in _VARIABLES.items():
        text = text.replace(colour, f"var(--{name})")
    return Chart(title, Markup(text), note)


def _title(column: str) -> tuple[str, str]:
    if column in SHOWN:
        return SHOWN[column]
    kind, _, layer = column.partition("/")
    if kind in REACH:
        return f"{REACH[kind]} of the nodes of {layer or 'the network'}", "positions of the map"
    name = metric_name(column)
    is_score = column.startswith(SCORES)
    return name[:1].upper() + name[1:] + ON_VALIDATION * is_score, "%" if is_score else ""
