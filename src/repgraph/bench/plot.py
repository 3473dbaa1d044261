"""Plots of a benchmark: time and memory against the number of positions, or as bars for a single size."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repgraph.bench.table import Row, Table, number


def write_plots(table: Table, rows: Sequence[Row], folder: Path, conditions: str) -> list[Path]:
    """Write a figure (PNG) for each kind of setting, with all its sizes, and return the paths."""
    kinds: dict[Any, list[Row]] = {}
    for row in rows:
        if row.times:
            kinds.setdefault(replace(row.setting, height=1, width=1, batch=1), []).append(row)
    columns = [kind.columns() for kind in kinds]
    written = []
    for own, found in zip(columns, kinds.values(), strict=True):
        differing = [f"{name} {own[name]}" for name in own if any(each[name] != own[name] for each in columns)]
        path = folder / f"{re.sub(r'[^a-z0-9]+', '-', ' '.join([table.name, *differing]).lower())}.png"
        figure(table, found, ", ".join([conditions, *differing])).savefig(path, dpi=130)
        written.append(path)
    return written


def figure(table: Table, rows: Sequence[Row], conditions: str) -> Figure:
    """Plot time (above) and memory (below) of each pass."""
    names = list(dict.fromkeys(row.candidate.name for row in rows))
    settings = sorted({row.setting for row in rows}, key=lambda each: each.height * each.width)
    chart = Figure(figsize=(2 + 4.2 * len(table.passes), 3 + (0.3 * len(names) if len(settings) == 1 else 5)))
    chart.set_layout_engine("constrained")
    axes = chart.subplots(2, len(table.passes), squeeze=False)
    clock = " of a CUDA graph" if any(row.graph for row in rows) else ""
    for pass_, (above, below) in zip(table.passes, axes.T, strict=True):
        found = [row for row in rows if row.pass_ == pass_]
        times = [(row, timed.median) for row in found if (timed := row.graph or row.times)]
        memory = [(row, row.memory / 2**20) for row in found if row.memory is not None]
        above.set_title(f"{pass_}, {settings[0].size}" if len(settings) == 1 else pass_)
        for axis, values, label in ((above, times, f"median time{clock}, ms"), (below, memory, "extra memory, MiB")):
            _draw(axis, values, names, label, lines=len(settings) > 1)
    if len(settings) > 1:
        chart.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    chart.supxlabel(textwrap.fill(conditions, 130), fontsize=8)
    return chart


def _draw(axis: Axes, values: list[tuple[Row, float]], names: list[str], label: str, *, lines: bool) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
    for index, name in enumerate(names):
        own = sorted((row.setting.height * row.setting.width, y) for row, y in values if row.candidate.name == name)
        if lines:
            axis.plot([x for x, _ in own], [y for _, y in own], marker="o", label=name, color=colours[index % 20])
        else:
            bars = axis.barh([name] * len(own), [y for _, y in own], color=colours[index % 20])
            axis.bar_label(bars, fmt=number, padding=3, fontsize=8)
    if lines:
        scale = "log" if any(y > 0 for _, y in values) else "linear"
        axis.set(xlabel="positions", ylabel=label, xscale=scale, yscale=scale)
        return
    sizes = [y for _, y in values] or [1]
    if min(sizes) > 0 and max(sizes) > 20 * min(sizes):
        axis.set_xscale("log")
        label += " (logarithmic)"
    axis.set_xlabel(label)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")
    axis.invert_yaxis()
    axis.margins(x=0.2)
