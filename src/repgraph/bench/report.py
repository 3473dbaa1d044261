"""A benchmark's rows as tables on the screen and as CSV."""

import contextlib
import csv
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from repgraph.bench.operator import Progress as Report
from repgraph.bench.row import CANNOT, PASSES, WRONG, Row
from repgraph.bench.setting import Setting
from repgraph.info import device_name, versions


@contextlib.contextmanager
def progress() -> Iterator[Report]:
    """A progress bar on the error stream, and the function that moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=None)

        def move(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield move


def by_setting(rows: Iterable[Row]) -> dict[Setting, list[Row]]:
    grouped: dict[Setting, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.setting, []).append(row)
    return grouped


def conditions(row: Row) -> str:
    """What a row was measured under, apart from the size: written under tables and plots."""
    setting, known = row.setting, versions()
    parts = [
        f"B {setting.batch}, C {setting.channels}, S {setting.nodes}",
        f"groups {setting.groups}, grid {setting.grid}",
        f"offsets normal, sigma {setting.sigma:g} px",
        str(setting.dtype).removeprefix("torch."),
        "channels last" if setting.channels_last else "contiguous",
        "value is key" if setting.shared_kv else "value is not key",
        device_name(setting.device) + (f", {row.threads} threads" if setting.device.type == "cpu" else ""),
        ", ".join(f"{name} {known[name]}" for name in ("repgraph", "torch", "triton", "numba") if known[name]),
    ]
    return "; ".join(parts)


SHORT = {"forward": "fwd", "backward": "bwd"}


def tables(rows: Iterable[Row]) -> Iterator[Table]:
    """A table for each setting, a line for each candidate that was measured."""
    for setting, found in by_setting(rows).items():
        graphs = any(row.graph for row in found)
        title = f"{setting.height} x {setting.width} (N = {setting.positions})"
        table = Table(
            title=title,
            caption=conditions(found[0]),
            title_justify="left",
            caption_justify="left",
            box=box.SIMPLE,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        table.add_column("\ncandidate", no_wrap=True)
        for pass_ in PASSES:
            graph = ["graph\nms"] if graphs else []
            for head in (f"{SHORT[pass_]}\nms", *graph, "\nx comp.", "\nx SDPA", "extra\nMiB"):
                table.add_column(head, justify="right")
        for name in dict.fromkeys(row.candidate for row in found if row.times):
            cells = []
            for row in (row for row in found if row.candidate == name):
                cells += _cells(row, graphs)
            table.add_row(name, *cells)
        yield table


def _cells(row: Row, graphs: bool) -> list[str]:
    if row.times is None:
        return [row.status] + [""] * (4 if graphs else 3)
    cells = [number(row.times.median)]
    if graphs:
        cells.append(number(row.graph.median) if row.graph else "")
    cells += [f"{ratio:.2f}" if ratio else "" for ratio in (row.versus_composition, row.versus_sdpa)]
    return [*cells, "" if row.memory is None else f"{row.memory / 2**20:.1f}"]


def number(value: float) -> str:
    """Three significant digits and no exponent.

    >>> [number(x) for x in (0.01234, 1.234, 123.4, 12345.0)]
    ['0.0123', '1.23', '123', '12345']
    """
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def notes(rows: list[Row]) -> list[str]:
    """Who could not be measured and why, each reason once, and what the memory column means."""
    found = []
    for row in rows:
        if row.reason:
            everywhere = row.status in (CANNOT, WRONG)
            size = "" if everywhere else f" at {row.setting.height}x{row.setting.width}"
            found.append(f"{row.candidate}{size}: {row.status}: {row.reason}")
    timed = [row for row in rows if row.times]
    if timed:
        found.append("x comp., x SDPA: how many times faster than composition and than the fastest SDPA kernel here")
    if timed and timed[0].setting.device.type == "cuda":
        found.append("extra MiB: highest allocation beyond what was there before and beyond the result")
    elif any(row.memory is not None for row in timed):
        found.append("extra MiB: growth of the process's resident memory at its highest, beyond the result")
    elif timed:
        found.append("extra MiB: left out, this system does not tell a process its resident peak")
    return list(dict.fromkeys(found))


def as_record(row: Row) -> dict[str, Any]:
    """A row as flat, named values."""
    s = row.setting
    record: dict[str, Any] = {
        "candidate": row.candidate,
        "family": row.family,
        "pass": row.pass_,
        "status": row.status,
        "reason": row.reason,
        "shared_kv": s.shared_kv,
        "batch": s.batch,
        "channels": s.channels,
        "height": s.height,
        "width": s.width,
        "positions": s.positions,
        "nodes": s.nodes,
        "groups": s.groups,
        "grid": s.grid,
        "sigma": s.sigma,
        "dtype": str(s.dtype).removeprefix("torch."),
        "memory_format": "channels_last" if s.channels_last else "contiguous",
        "seed": s.seed,
    }
    for name, times in (("", row.times), ("graph_", row.graph)):
        record[f"{name}median_ms"] = times.median if times else None
        record[f"{name}min_ms"] = times.least if times else None
        record[f"{name}p20_ms"] = times.p20 if times else None
        record[f"{name}p80_ms"] = times.p80 if times else None
        record[f"{name}count"] = times.count if times else None
    record |= {
        "memory_bytes": row.memory,
        "kept_bytes": row.kept,
        "versus_composition": row.versus_composition,
        "versus_best_sdpa": row.versus_sdpa,
        "device": str(s.device),
        "device_name": device_name(s.device),
        "threads": row.threads,
        "platform": platform.platform(),
    }
    return record | versions()


def write_csv(rows: list[Row], path: Path, **more: object) -> Path:
    """One line for each measurement, with all that is needed to read it alone; ``more`` is added to each."""
    records = [as_record(row) | more for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path
