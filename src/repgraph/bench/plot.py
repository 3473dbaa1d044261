"""Time and memory against the number of positions, on logarithmic axes."""

import textwrap
from collections.abc import Callable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from repgraph.bench.report import conditions
from repgraph.bench.row import PASSES, Row

# One colour (chosen to be told apart by colour-blind readers) and marker for each candidate, in every figure.
STYLES = {
    "reference": ("#999999", "o"),
    "cpu": ("#d55e00", "o"),
    "triton": ("#d55e00", "D"),
    "composition": ("#0072b2", "s"),
    "composition-compiled": ("#56b4e9", "s"),
    "sdpa-math": ("#000000", "^"),
    "sdpa-flash": ("#009e73", "v"),
    "sdpa-efficient": ("#cc79a7", "<"),
    "sdpa-cudnn": ("#e69f00", ">"),
}


def write(rows: list[Row], folder: Path) -> list[Path]:
    """``operator-shared-kv`` and ``operator-separate-kv`` as PNG and SVG, where there is something."""
    written = []
    for shared in (True, False):
        found = [row for row in rows if row.times and row.setting.shared_kv == shared]
        if not found:
            continue
        chart = figure(found)
        for suffix in ("png", "svg"):
            path = folder / f"operator-{'shared' if shared else 'separate'}-kv.{suffix}"
            chart.savefig(path, dpi=150)
            written.append(path)
    return written


def figure(rows: list[Row]) -> Figure:
    """Four panels: time of forward and backward above, their memory below."""
    chart = Figure(figsize=(10, 8), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.subplots(2, 2, sharex=True, squeeze=False)
    sizes = {row.setting.positions: row.setting.size for row in rows}  # of all panels: they share their ticks
    for column, pass_ in enumerate(PASSES):
        found = [row for row in rows if row.pass_ == pass_]
        _panel(axes[0, column], found, sizes, f"{pass_}: time [ms], median", _time)
        _panel(axes[1, column], found, sizes, f"{pass_}: extra peak memory [MiB]", _memory)
        axes[1, column].set_xlabel("positions N = H W")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    chart.legend(handles, labels, loc="outside upper center", ncols=5, frameon=False)
    chart.supxlabel("\n".join(textwrap.wrap(conditions(rows[0]), 130)), fontsize=8)
    return chart


def _time(row: Row) -> float | None:
    return row.times.median if row.times else None


def _memory(row: Row) -> float | None:
    return row.memory / 2**20 if row.memory else None  # zero has no place on a logarithmic axis


def _panel(
    axis: Axes, rows: list[Row], sizes: dict[int, str], title: str, value: Callable[[Row], float | None]
) -> None:
    for name in dict.fromkeys(row.candidate for row in rows):
        points = [(r.setting.positions, v) for r in rows if r.candidate == name and (v := value(r))]
        colour, marker = STYLES.get(name, ("#666666", "x"))
        axis.plot(*zip(*points, strict=True) if points else ([], []), color=colour, marker=marker, label=name)
    axis.set(xscale="log", title=title)
    axis.set_xticks(sorted(sizes))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{round(n)}\n{sizes.get(round(n), '')}"))
    if not any(map(value, rows)):  # a logarithmic axis cannot do without points
        axis.set_yticks([])
        axis.text(0.5, 0.5, "nothing measurable", transform=axis.transAxes, ha="center", va="center")
        return
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", alpha=0.3)
