"""What a run notes down: ``metrics.csv`` and events for TensorBoard."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from repgraph.engine.training.checkpoint import SaveError
from repgraph.errors import UsageError
from repgraph.files import replacing

METRICS, EVENTS = "metrics.csv", "tensorboard"
FIRST = "iteration"


class Records(Logger):
    """One row for each iteration that something is noted of; what comes for the same iteration goes into one row.

    A run that goes on after iteration ``start`` drops what an earlier attempt noted later than that, and goes on below.

    Args:
        folder: of the run.
        columns: besides the iteration.
        start: iterations done before.
    """

    def __init__(self, folder: Path, columns: Sequence[str], start: int = 0) -> None:
        super().__init__()
        self.folder, self.columns, self.start = folder, [FIRST, *columns], start
        self._pending: dict[str, Any] = {}
        self._file: io.TextIOWrapper | None = None
        self._events: Any = None

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def version(self) -> str:
        return ""

    def log_hyperparams(self, *arguments: Any, **keywords: Any) -> None:
        """The recipe is in a file of its own."""

    @rank_zero_only
    def open(self) -> None:
        """Take up an earlier run's files, or start new ones."""
        from torch.utils.tensorboard import SummaryWriter

        path = self.folder / METRICS
        try:
            keep = kept_rows(path, self.columns, self.start)
            with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([self.columns, *keep])
            self._file = path.open("a", newline="", encoding="utf-8")
            purge = self.start + 1 if self.start else None
            self._events = SummaryWriter(str(self.folder / EVENTS), purge_step=purge)
        except OSError as error:
            raise SaveError(f"cannot write {path}: {error.strerror or error}") from error

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        assert step is not None
        if self._pending.get(FIRST, step) != step:
            self.save()
        self._pending |= {FIRST: step, **metrics}

    @rank_zero_only
    def save(self) -> None:
        """Write the row, and make sure that it is on the disk."""
        row, self._pending = self._pending, {}
        if self._file is None or not row:
            return
        try:
            csv.writer(self._file).writerow([_text(row.get(column)) for column in self.columns])
            self._file.flush()
            os.fsync(self._file.fileno())
            for name, value in row.items():
                if name != FIRST:
                    self._events.add_scalar(name, value, row[FIRST])
            self._events.flush()
        except OSError as error:
            raise SaveError(f"cannot write {self.folder / METRICS}: {error.strerror or error}") from error

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()
        if self._file is not None:
            self._file.close()
            self._events.close()
            self._file = None


def kept_rows(path: Path, columns: Sequence[str], start: int) -> list[list[str]]:
    """The rows of an earlier attempt up to iteration ``start``; a last line that was cut short is not one."""
    if not path.exists() or not start:
        return []
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    if header != list(columns):
        raise UsageError(f"{path} has other columns than this run: {', '.join(header)}; move it away to go on")
    return [row for row in rows if len(row) == len(columns) and row[0].isdecimal() and int(row[0]) <= start]


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.6g}"
