"""A benchmark's rows as tables on the screen and as CSV."""

import contextlib
import csv
import os
import platform
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from repgraph.bench.operator import Progress as Report
from repgraph.bench.row import CANNOT, NO_MEMORY, PASSES, TOO_SLOW, WRONG, Row
from repgraph.bench.setting import Setting
from repgraph.info import device_name, versions


@contextlib.contextmanager
def progress() -> Iterator[Report]:
    """A progress bar on the error stream, and the function that moves it."""
    # A short bar: on 80 columns the text has to fit beside it.
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=8), MofNCompleteColumn(), TimeElapsedColumn())
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


HEADS = {"ms": "ms", "graph": "graph ms", "comp": "x comp.", "sdpa": "x SDPA", "memory": "extra MiB"}
# In a table a failed backward is told in the width of a number; the notes have the whole story.
SHORT = {NO_MEMORY: "no memory", TOO_SLOW: "too slow"}


def tables(rows: Iterable[Row]) -> Iterator[Table]:
    """For each setting a table of forward and one of backward, a line for each candidate that was measured."""
    for setting, found in by_setting(rows).items():
        heads = [head for name, head in HEADS.items() if name != "graph" or any(row.graph for row in found)]
        value = "value is key" if setting.shared_kv else "value is not key"
        names = {row.candidate for row in found if row.times}
        for pass_ in PASSES:
            table = Table(
                title=f"{setting.height} x {setting.width} (N = {setting.positions}), {value}: {pass_}",
                caption=conditions(found[0]) if pass_ == PASSES[-1] else None,
                title_justify="left",
                caption_justify="left",
                box=box.SIMPLE_HEAD,
                show_edge=False,
                pad_edge=False,
                padding=(0, 1, 0, 0),
            )
            # At least so wide that both tables of a setting line up: 75 columns with graphs, of a console's 80.
            table.add_column("candidate", no_wrap=True, min_width=20)
            for head in heads:
                table.add_column(head, justify="right", no_wrap=True, min_width=9)
            for row in found:
                if row.pass_ == pass_ and row.candidate in names:
                    cells = _cells(row)
                    table.add_row(row.candidate, *(cells[head] for head in heads))
            yield table


def show(rows: Iterable[Row], console: Console) -> None:
    """Print the tables. Where the console is too narrow for one, its lines are broken: nothing is cut off."""
    for table in tables(rows):
        table.width = Measurement.get(console, console.options.update(width=1000), table).maximum
        console.print(table, crop=False)
        console.print()


def _cells(row: Row) -> dict[str, str]:
    """What stands under each head."""
    if row.times is None:
        return dict.fromkeys(HEADS.values(), "") | {HEADS["ms"]: SHORT.get(row.status, row.status)}
    graph = row.graph.median if row.graph else None
    values = (row.times.median, graph, row.versus_composition, row.versus_sdpa)
    cells = ["" if value is None else number(value) for value in values]
    memory = "" if row.memory is None else f"{row.memory / 2**20:.1f}"
    return dict(zip(HEADS.values(), [*cells, memory], strict=True))


def number(value: float) -> str:
    """Three significant digits, all digits before the point, and no exponent.

    >>> [number(x) for x in (0.00001234, 0.01234, 1.234, 99.96, 123.4, 12345.0)]
    ['0.0000123', '0.0123', '1.23', '100', '123', '12345']
    """
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:.{max(0, 2 - exponent)}f}"


def notes(rows: list[Row]) -> list[str]:
    """Who could not be measured and why, each reason once, and what the columns mean."""
    found = []
    for row in rows:
        if row.reason:
            everywhere = row.status in (CANNOT, WRONG)
            size = "" if everywhere else f" at {row.setting.size}"
            found.append(f"{row.candidate}{size}: {row.status}: {row.reason}")
    timed = [row for row in rows if row.times]
    if timed:
        basis = "ratio of wall-clock medians"
        if timed[0].setting.device.type == "cuda":
            basis = "ratio of CUDA graph medians (GPU time alone) where both have one, else of event medians"
        found.append(
            f"x comp., x SDPA: how many times faster than composition and than the fastest SDPA kernel here; {basis}"
        )
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
        "versus_composition_basis": row.versus_composition_basis,
        "versus_best_sdpa": row.versus_sdpa,
        "versus_best_sdpa_basis": row.versus_sdpa_basis,
        "device": str(s.device),
        "device_name": device_name(s.device),
        "threads": row.threads,
        "platform": f"{platform.system()} {platform.machine()}",
    }
    return record | versions()


def write_csv(rows: list[Row], path: Path, **more: object) -> Path:
    """One line for each measurement, with all that is needed to read it alone; ``more`` is added to each.

    The file is replaced as a whole: whoever is stopped in here leaves the one before.
    """
    records = [as_record(row) | more for row in rows]
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(records[0]))
            writer.writeheader()
            writer.writerows(records)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path
