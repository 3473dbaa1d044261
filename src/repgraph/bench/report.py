"""The results of a benchmark: CSV file, tables and notes in the terminal, and plots."""

import platform
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from repgraph.bench.harness import run
from repgraph.bench.measure import Effort
from repgraph.bench.table import CANNOT, OK, WRONG, Baseline, Candidate, Row, Setting, Table, number
from repgraph.files import check_writable, to_csv, write
from repgraph.info import device_name, versions
from repgraph.progress import Progress

# Okabe and Ito's colours for colour-blind readers.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKERS, LINES = "osD^", ("-", "--", ":", "-.")
WIDE = 20  # ratio of values above which bars have a logarithmic axis: short ones would all look the same
SETTING = attrgetter("setting", "pass_")


def benchmark(table: Table, settings: Sequence[Any], effort: Effort, candidates: Sequence[Any], folder: Path) -> int:
    """Run a benchmark, show and write its results (the CSV file after each setting), and return the exit code."""
    path = folder / f"{table.name}.csv"
    check_writable(path)
    rows: list[Row] = []

    def keep(found: list[Row]) -> None:
        rows.extend(found)
        grouped = _grouped(rows, SETTING)
        records = [record(table, row, grouped[SETTING(row)], effort) for row in rows]
        columns = list(dict.fromkeys(name for each in records for name in each))
        write(path, to_csv(columns, ([each.get(name) for name in columns] for each in records)))

    code = 0
    try:
        with Progress(f"bench {table.name}", len(settings), sys.stderr, unit="settings") as progress:
            run(table, settings, effort, candidates, progress.update, keep)
    except KeyboardInterrupt:
        code = 130
    console = Console(width=max(80, Console().width))
    for shown in terminal_tables(table, rows):
        console.print(shown, "")
    lines = notes(table, rows)
    if code == 130:
        lines.append(f"interrupted: {len({row.setting for row in rows})} of {len(settings)} settings measured")
    if rows:
        lines.append("written: " + ", ".join(map(str, [path, *write_plots(table, rows, folder)])))
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=line.startswith("written"))
    return code or (0 if any(row.status == OK for row in rows) else 1)


def compare(table: Table, row: Row, rows: Iterable[Row], baseline: Baseline) -> tuple[float | None, str, float | None]:
    """Return a row's speed-up over the fastest of a baseline, the times compared, and the ratio of memory."""
    others = [(other.times.median, other) for other in rows if other.times and other.candidate.name in baseline.names]
    if row.times is None or not others:
        return None, "", None
    median, fastest = min(others, key=lambda pair: pair[0])
    own, its = _extra(table, row), _extra(table, fastest)
    memory = its / own if own and its is not None else None
    if row.graph and fastest.graph:  # if both have one
        median = min(other.graph.median for _, other in others if other.graph)
        return median / row.graph.median, "graph", memory
    return median / row.times.median, "events" if row.setting.device.type == "cuda" else "wall", memory


def _extra(table: Table, row: Row) -> int | None:
    return next(iter(table.memory(row).values()))


def _grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    grouped: dict[Any, list[Row]] = {}
    for row in rows:
        grouped.setdefault(key(row), []).append(row)
    return grouped


def record(table: Table, row: Row, rows: Iterable[Row], effort: Effort) -> dict[str, Any]:
    """Return a row of the CSV file; ``rows`` are all rows of its setting and pass."""
    columns: dict[str, Any] = {table.noun: row.candidate.name, "family": row.candidate.family, "pass": row.pass_}
    columns |= {"status": row.status, "reason": row.reason} | row.setting.columns() | row.facts
    for prefix, times in (("", row.times), ("graph_", row.graph)):
        values = asdict(times) if times else dict.fromkeys(("median", "min", "p20", "p80", "count"))
        columns |= {f"{prefix}{name}" + ("" if name == "count" else "_ms"): value for name, value in values.items()}
    columns |= table.memory(row)
    for baseline in table.baselines:
        speed, basis, memory = compare(table, row, rows, baseline)
        columns |= {f"versus_{baseline.column}": speed, f"versus_{baseline.column}_basis": basis}
        columns[f"memory_versus_{baseline.column}"] = memory
    device = row.setting.device
    columns |= {"device": str(device), "device_name": device_name(device), "threads": torch.get_num_threads()}
    columns |= {"platform": f"{platform.system()} {platform.machine()}", **versions()}
    return columns | asdict(effort)


def terminal_tables(table: Table, rows: Sequence[Row]) -> Iterator[RichTable]:
    """Yield the table's summary, and a table for each setting and pass."""
    if summary := table.summary(rows):
        yield _terminal_table(*summary)
    for (setting, pass_), found in _grouped(rows, SETTING).items():
        lines = [_cells(table, row, found) for row in found if row.status != CANNOT]
        if lines:
            yield _terminal_table(f"{setting.title}: {pass_}", lines)


def _cells(table: Table, row: Row, rows: Sequence[Row]) -> dict[str, str]:
    cells = {table.noun: row.candidate.name}
    if row.times is None:
        return cells | {"ms": row.status}
    cells |= {"ms": number(row.times.median), "graph": number(row.graph.median if row.graph else None)}
    compared = {baseline.head: compare(table, row, rows, baseline) for baseline in table.baselines}
    cells |= {f"x {head}": number(speed) for head, (speed, _, _) in compared.items()}
    memory = _extra(table, row)
    cells["MiB"] = "" if memory is None else f"{memory / 2**20:.1f}"
    return cells | {f"m {head}": number(ratio) for head, (_, _, ratio) in compared.items()}


def _terminal_table(title: str, lines: Sequence[Mapping[str, str]]) -> RichTable:
    """Return a table of all columns that are not empty."""
    heads = [head for head in max(lines, key=len) if any(line.get(head) for line in lines)]
    look: Any = dict(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    new = RichTable(title=title, title_justify="left", **look)
    for index, head in enumerate(heads):  # all tables are equally wide, and fit into 80 columns
        new.add_column(head, justify="right" if index else "left", no_wrap=True, min_width=6 if index else 21)
    for line in lines:
        new.add_row(*(line.get(head, "") for head in heads))
    return new


def notes(table: Table, rows: Sequence[Row]) -> list[str]:
    """Return why candidates could not be measured, the conditions, and the meaning of the columns."""
    found: dict[str, None] = {}  # each note once
    for row in rows:
        if row.reason:
            size = "" if row.status in (CANNOT, WRONG) else f" at {row.setting.size}"
            found[f"{row.candidate.name}{size}: {row.status}: {row.reason}"] = None
    if not any(row.times for row in rows):
        return list(found)
    for baseline in table.baselines:
        names = ("the fastest of " if len(baseline.names) > 1 else "") + ", ".join(baseline.names)
        found[f"x {baseline.head}, m {baseline.head}: time and memory of {names}, divided by those of the row"] = None
    if rows[0].setting.device.type == "cuda":
        found["ms: time between CUDA events; graph: GPU time of a CUDA graph, compared where both have one"] = None
        found[f"MiB: peak of PyTorch's allocator, {table.memory_note}"] = None
    else:
        found[f"MiB: peak of the resident memory, {table.memory_note}"] = None
    settings = dict.fromkeys(row.setting for row in rows)
    return [*found, *dict.fromkeys(map(conditions, settings))]


def conditions(setting: Setting) -> str:
    """Return the conditions except the size: settings, hardware and versions."""
    shown = {n: v for n, v in setting.columns().items() if n not in ("height", "width", "positions", "seed")}
    shown |= {"on": device_name(setting.device)}
    if setting.device.type == "cpu":
        shown["threads"] = torch.get_num_threads()
    return ", ".join(f"{name} {value}" for name, value in (shown | versions()).items() if value is not None)


def write_plots(table: Table, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write a figure for each case, as PNG and SVG, and return the paths."""
    written = []
    for case, found in _grouped((row for row in rows if row.times), attrgetter("setting.case")).items():
        chart = figure(table, found)
        for suffix in ("png", "svg"):
            written.append(folder / f"{table.name}-{case}.{suffix}")
            chart.savefig(written[-1], dpi=150)
    return written


def figure(table: Table, rows: Sequence[Row]) -> Figure:
    """Plot time (above) and memory (below) of each pass: lines over the sizes of the maps, or bars for one size."""
    sizes = {row.setting.positions: row.setting.size for row in rows}
    is_single = len(sizes) == 1
    candidates = list({row.candidate.name: row.candidate for row in rows}.values())
    chart = Figure(figsize=(10, 2.5 + 0.44 * len(candidates) if is_single else 8), layout="constrained")
    axes = chart.subplots(2, len(table.passes), sharex=not is_single, sharey=is_single, squeeze=False)
    times = f"median time{' of a CUDA graph' if any(row.graph for row in rows) else ''} [ms]"
    for pass_, column in zip(table.passes, axes.T, strict=True):
        found = [row for row in rows if row.pass_ == pass_]
        medians = [(row, timed.median) for row in found if (timed := row.graph or row.times)]
        memory = [(row, extra / 2**20) for row in found if (extra := _extra(table, row)) is not None]
        column[0].set_title(f"{pass_}\n{rows[0].setting.title}" if is_single else pass_, fontsize="medium")
        for axis, values, label in zip(column, (medians, memory), (times, "extra peak memory [MiB]"), strict=True):
            (_draw_bars if is_single else _draw_lines)(axis, candidates, values, label)
    for axis in axes[-1] if not is_single else ():
        axis.set_xlabel("size, H x W")
        axis.set_xticks(list(sizes), sizes.values(), rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
        axis.set_xticks([], minor=True)
    chart.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
    chart.supxlabel("\n".join(textwrap.wrap(conditions(rows[0].setting), 130)), fontsize=8)
    return chart


def _draw_bars(axis: Axes, candidates: Sequence[Candidate], values: Sequence[tuple[Row, float]], label: str) -> None:
    """Draw a bar for each candidate, the first one on top, in the colour of its family."""
    names = [candidate.name for candidate in candidates]
    for index, family in enumerate(dict.fromkeys(candidate.family for candidate in candidates)):
        own = {names.index(row.candidate.name): value for row, value in values if row.candidate.family == family}
        bars = axis.barh(list(own), list(own.values()), color=COLOURS[index], label=family)
        axis.bar_label(bars, fmt=number, padding=3, fontsize=8)
    axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6), xlabel=label)
    positive = [value for _, value in values if value > 0]
    if positive and max(positive) > WIDE * min(positive):
        axis.set(xscale="log", xlim=(min(positive) / 2, 3 * max(positive)), xlabel=f"{label}, logarithmic")
        _plain_ticks(axis.xaxis)
    else:
        axis.margins(x=0.12)  # for the labels of the bars
    axis.spines[["top", "right"]].set_visible(False)


def _draw_lines(axis: Axes, candidates: Sequence[Candidate], values: Sequence[tuple[Row, float]], label: str) -> None:
    """Draw a line for each candidate over the number of positions, on logarithmic axes."""
    for index, candidate in enumerate(candidates):
        own = [(row.setting.positions, value) for row, value in values if value and row.candidate == candidate]
        style: Any = dict(color=COLOURS[index % 8], marker=MARKERS[index // 8], linestyle=LINES[index // 8])
        if own:
            axis.plot(*zip(*own, strict=True), label=candidate.name, **style)
    axis.set(xscale="log", yscale="log", ylabel=label)
    _plain_ticks(axis.yaxis)
    axis.grid(True, alpha=0.3)


def _plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
