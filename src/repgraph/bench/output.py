"""What benchmarks leave behind on the screen and on disk: progress, tables, CSV."""

import contextlib
import csv
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from repgraph.bench import runner
from repgraph.bench.row import CANNOT, NO_MEMORY, TOO_SLOW, WRONG, Row
from repgraph.files import replacing
from repgraph.info import device_name, versions

# In a table a failure is told in the width of a number; the notes have the whole story.
SHORT = {NO_MEMORY: "no memory", TOO_SLOW: "too slow"}


@contextlib.contextmanager
def progress() -> Iterator[runner.Progress]:
    """A progress bar on the error stream, and the function that moves it."""
    # A short bar: on 80 columns the text has to fit beside it.
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=8), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checking", total=None)

        def move(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield move


def new_table(title: str, caption: str | None, first: str, heads: Iterable[str], widths: tuple[int, int]) -> Table:
    """A table of numbers with names on the left; ``widths`` are the least ones of the names and of the numbers."""
    table = Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column(first, no_wrap=True, min_width=widths[0])
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True, min_width=widths[1])
    return table


def show(tables: Iterable[Table], console: Console) -> None:
    """Print tables. Where the console is too narrow for one, its lines are broken: nothing is cut off."""
    for table in tables:
        table.width = Measurement.get(console, console.options.update(width=1000), table).maximum
        console.print(table, crop=False)
        console.print()


def number(value: float | None) -> str:
    """Three significant digits, all digits before the point, and no exponent; nothing for None.

    >>> [number(x) for x in (0.00001234, 0.01234, 1.234, 99.96, 123.4, 12345.0, None)]
    ['0.0000123', '0.0123', '1.23', '100', '123', '12345', '']
    """
    if value is None:
        return ""
    exponent = int(f"{value:.2e}".partition("e")[2])
    return f"{value:.{max(0, 2 - exponent)}f}"


def mebibytes(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:.1f}"


def conditions(device: torch.device, threads: int) -> str:
    """Hardware and versions, as they stand under tables and plots."""
    known = versions()
    name = device_name(device) + (f", {threads} threads" if device.type == "cpu" else "")
    return f"{name}; " + ", ".join(f"{n} {known[n]}" for n in ("repgraph", "torch", "triton", "numba") if known[n])


def machine_record(device: torch.device, threads: int) -> dict[str, Any]:
    """Hardware and versions, as they stand in every line of a CSV."""
    record: dict[str, Any] = {
        "device": str(device),
        "device_name": device_name(device),
        "threads": threads,
        "platform": f"{platform.system()} {platform.machine()}",
    }
    return record | versions()


def reasons(rows: Iterable[Row]) -> list[str]:
    """Who could not be measured and why, each reason once."""
    found = []
    for row in rows:
        if row.reason:
            everywhere = row.status in (CANNOT, WRONG)
            size = "" if everywhere else f" at {row.setting.size}"
            found.append(f"{row.candidate}{size}: {row.status}: {row.reason}")
    return list(dict.fromkeys(found))


def write_csv(records: Sequence[Mapping[str, object]], path: Path) -> Path:
    """One line for each record; the first one's names are the head.

    The file is replaced as a whole: whoever is stopped in here leaves the one before.
    """
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path
