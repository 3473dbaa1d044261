"""The results of a benchmark: a CSV file, tables and notes in the terminal, and plots."""

import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from repgraph.bench.harness import run
from repgraph.bench.plot import write_plots
from repgraph.bench.table import CANNOT, OK, WRONG, Candidate, Row, Setting, Table, number
from repgraph.files import check_writable, to_csv, write
from repgraph.info import device_name, versions
from repgraph.progress import Progress

LEGEND = "ms: median time; graph: of a CUDA graph; x: times as fast as the baseline; MiB: additional peak memory"


def benchmark(
    table: Table, settings: Sequence[Any], candidates: Sequence[Candidate], folder: Path, **effort: float
) -> int:
    """Run a benchmark, show and write its results (the CSV file after each setting), and return the exit code."""
    path = folder / f"{table.name}.csv"
    check_writable(path)
    rows: list[Row] = []

    def keep(found: list[Row]) -> None:
        rows.extend(found)
        records = [record(table, row) | effort for row in rows]
        columns = list(dict.fromkeys(name for each in records for name in each))
        write(path, to_csv(columns, ([each.get(name) for name in columns] for each in records)))

    code = 0
    try:
        with Progress(f"bench {table.name}", len(settings), sys.stderr, unit="settings") as progress:
            run(table, settings, candidates, **effort, progress=progress.update, finished=keep)
    except KeyboardInterrupt:
        code = 130
    console = Console(width=max(80, Console().width), highlight=False, markup=False)
    for shown in terminal_tables(table, rows):
        console.print(shown, "")
    console.print(*notes(rows), sep="\n")
    if code == 130:
        console.print(f"interrupted: {len({row.setting for row in rows})} of {len(settings)} settings measured")
    if rows:
        paths = [path, *write_plots(table, rows, folder, conditions(rows))]
        console.print(f"wrote {', '.join(map(str, paths))}", soft_wrap=True)
    return code or (0 if any(row.status == OK for row in rows) else 1)


def record(table: Table, row: Row) -> dict[str, Any]:
    """Return a row of the CSV file."""
    columns: dict[str, Any] = {table.noun: row.candidate.name, "pass": row.pass_, "status": row.status}
    columns |= {"reason": row.reason} | row.setting.columns() | row.facts
    for prefix, times in (("", row.times), ("graph_", row.graph)):
        values = asdict(times) if times else dict.fromkeys(("median", "min", "p20", "p80", "count"))
        columns |= {f"{prefix}{name}" + ("" if name == "count" else "_ms"): value for name, value in values.items()}
    device = row.setting.device
    columns |= {table.memory_column: row.memory, "device": str(device), "device_name": device_name(device)}
    system = f"{platform.system()} {platform.machine()}"
    return columns | {"threads": torch.get_num_threads(), "platform": system} | versions()


def speed_up(row: Row, rows: Sequence[Row], baseline: Sequence[str]) -> float | None:
    """Return how many times as fast as the fastest of a baseline a row is: by CUDA graphs if both have one."""
    others = [(other.times.median, other) for other in rows if other.times and other.candidate.name in baseline]
    if row.times is None or not others:
        return None
    median, fastest = min(others, key=lambda pair: pair[0])
    if row.graph and fastest.graph:
        return min(other.graph.median for _, other in others if other.graph) / row.graph.median
    return median / row.times.median


def terminal_tables(table: Table, rows: Sequence[Row]) -> Iterator[RichTable]:
    """Yield a table for each setting and pass, with all columns that are not empty."""
    grouped: dict[tuple[Setting, str], list[Row]] = {}
    for row in rows:
        if row.status != CANNOT:
            grouped.setdefault((row.setting, row.pass_), []).append(row)
    for (setting, pass_), found in grouped.items():
        lines = [_cells(table, row, found) for row in found]
        heads = [head for head in max(lines, key=len) if any(line.get(head) for line in lines)]
        title = f"{setting.title}: {pass_}"
        shown = RichTable(title=title, title_justify="left", min_width=len(title), box=box.SIMPLE_HEAD, padding=0)
        shown.show_edge = False
        for index, head in enumerate(heads):  # tables fit into 80 columns
            shown.add_column(head, justify="right" if index else "left", no_wrap=True, min_width=6 if index else 20)
        for line in lines:
            shown.add_row(*(line.get(head, "") for head in heads))
        yield shown


def _cells(table: Table, row: Row, rows: Sequence[Row]) -> dict[str, str]:
    cells = {table.noun: row.candidate.name}
    if row.times is None:
        return cells | {"ms": row.status}
    cells |= {"ms": number(row.times.median), "graph": number(row.graph.median if row.graph else None)}
    cells |= {f"x {name}": number(speed_up(row, rows, names)) for name, names in table.baselines.items()}
    return cells | {"MiB": "" if row.memory is None else f"{row.memory / 2**20:.1f}"} | table.cells(row)


def notes(rows: Sequence[Row]) -> list[str]:
    """Return why candidates could not be measured, the meaning of the columns, and the conditions of all rows."""
    found: dict[str, None] = {}  # each note once
    for row in rows:
        if row.reason:
            size = "" if row.status in (CANNOT, WRONG) else f" at {row.setting.size}"
            found[f"{row.candidate.name}{size}: {row.status}: {row.reason}"] = None
    if not any(row.times for row in rows):
        return list(found)
    return [*found, LEGEND, conditions(rows)]


def conditions(rows: Sequence[Row]) -> str:
    """Return the settings that all rows share, hardware and versions."""
    columns = [row.setting.columns() for row in rows]
    shown = {name: value for name, value in columns[0].items() if all(each[name] == value for each in columns)}
    shown |= {"on": device_name(rows[0].setting.device), "threads": torch.get_num_threads()} | versions()
    return ", ".join(f"{name} {value}" for name, value in shown.items() if value is not None)
