"""Time and memory against the number of positions, on logarithmic axes."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from repgraph.bench.row import Row

Style = tuple[str, str, str]  # colour, marker, line; one for each candidate, in every figure
OTHER: Style = ("#666666", "x", "-")
Value = Callable[[Row], float | None]


def event_time(row: Row) -> float | None:
    """Between events on CUDA, of the clock on the CPU."""
    return row.times.median if row.times else None


def graph_time(row: Row) -> float | None:
    """Of CUDA graphs where there is one: without the time for launching."""
    return row.graph.median if row.graph else event_time(row)


def save(chart: Figure, folder: Path, name: str) -> list[Path]:
    """A figure as PNG and SVG."""
    written = []
    for suffix in ("png", "svg"):
        path = folder / f"{name}.{suffix}"
        chart.savefig(path, dpi=150)
        written.append(path)
    return written


def figure(
    rows: Sequence[Row],
    passes: Sequence[str],
    memory: Value,
    styles: Mapping[str, Style],
    caption: str,
    columns: int = 5,
    guides: bool = False,
    time: tuple[str, Value] = ("time [ms], median", event_time),
) -> Figure:
    """Panels: time of each pass above, memory below; ``guides`` adds lines that grow as N and as N squared.

    ``time`` is what the panels above are called and what they show.
    """
    chart = Figure(figsize=(10, 8), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.subplots(2, len(passes), sharex=True, squeeze=False)
    sizes = {row.setting.positions: row.setting.size for row in rows}  # of all panels: they share their ticks
    for column, pass_ in enumerate(passes):
        found = [row for row in rows if row.pass_ == pass_]
        for line, (title, value) in enumerate((time, ("extra peak memory [MiB]", memory))):
            _panel(axes[line, column], found, sizes, f"{pass_}: {title}", value, styles, guides)
        axes[1, column].set_xlabel("positions N = H W")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    chart.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)
    chart.supxlabel("\n".join(textwrap.wrap(caption, 130)), fontsize=8)
    return chart


def _panel(
    axis: Axes,
    rows: Sequence[Row],
    sizes: Mapping[int, str],
    title: str,
    value: Value,
    styles: Mapping[str, Style],
    guides: bool,
) -> None:
    found: list[tuple[int, float]] = []
    for name in dict.fromkeys(row.candidate for row in rows):
        # Zero has no place on a logarithmic axis.
        points = [(r.setting.positions, v) for r in rows if r.candidate == name and (v := value(r))]
        colour, marker, line = styles.get(name, OTHER)
        x, y = zip(*points, strict=True) if points else ((), ())
        axis.plot(x, y, color=colour, marker=marker, linestyle=line, label=name)
        found += points
    axis.set_xscale("log")
    axis.set_title(title, fontsize="medium")  # the longest just fits
    axis.set_xticks(sorted(sizes))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{round(n)}\n{sizes.get(round(n), '')}"))
    axis.tick_params(axis="x", labelsize=6 if len(sizes) > 5 else 9)
    if not found:  # a logarithmic axis cannot do without points
        axis.set_yticks([])
        axis.text(0.5, 0.5, "nothing measurable", transform=axis.transAxes, ha="center", va="center")
        return
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", alpha=0.3)
    if guides and len(sizes) > 1:
        _guides(axis, sizes, found)


def _guides(axis: Axes, sizes: Mapping[int, str], found: Sequence[tuple[int, float]]) -> None:
    """Lines of slope 1 and 2 from the lowest point of the smallest size, behind everything else."""
    bottom, top = axis.get_ylim()
    first = min(n for n, _ in found)
    start = min(v for n, v in found if n == first)
    ends = (first, max(sizes))
    for power, line, label in ((1, ":", "grows as N"), (2, "--", "grows as N squared")):
        values = [start * (n / first) ** power for n in ends]
        axis.plot(ends, values, color="#bbbbbb", linestyle=line, linewidth=1.5, zorder=0, label=label)
    axis.set_ylim(bottom, top)
