"""A benchmark called from the command line: measure, keep what is finished on disk, show, and say how it ended."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.table import Table

from repgraph.bench import output
from repgraph.bench.row import OK, Row
from repgraph.bench.runner import Effort, Progress
from repgraph.files import check_folder

R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class Session(Generic[R]):
    """What a benchmark measures, shows and writes; ``name`` is that of its files."""

    name: str
    effort: Effort
    settings: Sequence[object]  # all that were asked for
    measure: Callable[[Progress, Callable[[list[R]], None]], object]
    record: Callable[[R], dict[str, Any]]  # a row as flat, named values
    tables: Callable[[list[R]], Iterable[Table]]
    notes: Callable[[list[R]], list[str]]
    plot: Callable[[list[R], Path], list[Path]]

    def write(self, rows: list[R], path: Path) -> Path:
        how_long = {"seconds": self.effort.seconds, "repeat": self.effort.repeat, "limit": self.effort.limit}
        return output.write_csv([self.record(row) | how_long for row in rows], path)


def conduct(session: Session[R], folder: Path) -> int:
    """Run a benchmark; the exit code is 0 if anything was measured, 130 when it was interrupted."""
    check_folder(folder)  # else found out when something has been measured
    console = Console()
    rows: list[R] = []
    table = folder / f"{session.name}.csv"
    done = 0

    def keep(found: list[R]) -> None:
        nonlocal done
        rows.extend(found)
        done += 1
        session.write(rows, table)

    interrupted = False
    try:
        with output.progress() as progress:
            session.measure(progress, keep)
    except KeyboardInterrupt:
        interrupted = True
    output.show(session.tables(rows), console)
    lines = session.notes(rows)
    if interrupted:
        wanted = len(session.settings)
        lines.append(f"interrupted: {done} of {wanted} settings measured" + ("" if rows else ", nothing written"))
    for line in lines:
        console.print(line, highlight=False, markup=False)
    if rows:
        written = [session.write(rows, table), *session.plot(rows, folder)]
        console.print("written: " + ", ".join(map(str, written)), highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        return 130
    return 0 if any(row.status == OK for row in rows) else 1
