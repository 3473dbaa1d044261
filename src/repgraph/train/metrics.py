"""The losses and metrics of a run: sums on the device, ``metrics.csv``, and events for TensorBoard."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repgraph.distributed import all_reduce
from repgraph.errors import UsageError
from repgraph.files import check_regular, check_writable, explained, replacing
from repgraph.models.weights import fits

METRICS, EVENTS = "metrics.csv", "tensorboard"
NEVER = 2**53  # no iteration; exact as float64


@dataclass
class LossReport:
    """Losses and events since the last report, over all processes."""

    losses: dict[str, float]  # means
    not_finite: int | None  # the first iteration whose loss was not finite
    stop: bool  # whether any process was asked to stop


class RunningLoss:
    """Sums of the losses by name, kept on the device: iterations do not synchronize.

    ``sums`` of a checkpoint: the number of iterations, and the losses over all processes, which continue in rank 0.
    """

    def __init__(self, names: Sequence[str], device: torch.device, sums: Tensor | None = None, rank: int = 0) -> None:
        self.names = names
        self.sums = torch.zeros(1 + len(names), dtype=torch.float64)
        if sums is not None:
            if not fits(sums, self.sums) or not sums.isfinite().all():
                raise UsageError(f"the checkpoint has no sums of {len(names)} losses; resume from another one")
            self.sums.copy_(sums)
        if rank > 0:
            self.sums[1:] = 0
        self.sums = self.sums.to(device)
        self.amount = torch.zeros((), dtype=torch.float64, device=device)
        self.first_bad = torch.full((), float(NEVER), dtype=torch.float64, device=device)

    def add(self, iteration: int, losses: Tensor, amount: Tensor) -> None:
        """Add an iteration; ``amount`` is as in :meth:`Task.amount`."""
        self.sums[0] += 1
        self.sums[1:] += losses
        self.amount += amount
        self.first_bad = torch.where(losses.isfinite().all(), self.first_bad, self.first_bad.clamp(max=iteration))

    def report(self, stop: bool, *, reset: bool) -> LossReport:
        """Read the sums, and clear them with ``reset``. All processes have to call it after the same iteration.

        ``stop`` is whether this process was asked to stop.
        """
        count, losses = int(self.sums[0]), self.total()[1:].tolist()
        least = torch.stack((self.first_bad, self.first_bad.new_full((), -float(stop))))
        bad, negated_stop = all_reduce(least, dist.ReduceOp.MIN).tolist()
        if reset:
            self.sums.zero_()
        means = {name: loss / max(count, 1) for name, loss in zip(self.names, losses, strict=True)}
        return LossReport(means, None if bad == NEVER else int(bad), negated_stop < 0)

    def total(self) -> Tensor:
        """Return the number of iterations and the losses summed over all processes, for a checkpoint."""
        return torch.cat((self.sums[:1], all_reduce(self.sums[1:].clone())))

    def had_labels(self) -> bool:
        """Return whether any process had labels since the last call; all processes have to call it."""
        found = bool(all_reduce(self.amount.clone()) > 0)
        self.amount.zero_()
        return found


class MetricsLog:
    """``metrics.csv`` and TensorBoard events; values that are logged for the same iteration share a row.

    A run that is resumed after iteration ``start`` drops the rows after it, and appends. If ``folder`` is None, as in
    all processes but the first, nothing is logged.
    """

    def __init__(self, folder: Path | None, columns: Sequence[str], start: int = 0) -> None:
        self.columns = ["iteration", *columns]
        self._row: dict[str, Any] = {}
        self._file: io.TextIOWrapper | None = None
        if folder is None:
            return
        from torch.utils.tensorboard import SummaryWriter

        self._path = folder / METRICS
        check_writable(folder / EVENTS / "events")  # TensorBoard would fail in a thread of its own
        with explained(self._path):
            rows = _read_rows(self._path, self.columns, start)
            with replacing(self._path) as part, part.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([self.columns, *rows])
            self._file = self._path.open("a", newline="", encoding="utf-8")
            self._events = SummaryWriter(str(folder / EVENTS), purge_step=start + 1 if start else None)

    def log(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add values to the row of an iteration; :meth:`flush` writes it."""
        if self._row.get("iteration", iteration) != iteration:
            self.flush()
        self._row |= {"iteration": iteration, **values}

    def flush(self) -> None:
        """Write the row to disk."""
        row, self._row = self._row, {}
        if self._file is None or not row:
            return
        iteration = row.pop("iteration")
        with explained(self._path):
            values = [f"{row[column]:.6g}" if column in row else "" for column in self.columns[1:]]
            csv.writer(self._file).writerow([iteration, *values])
            self._file.flush()
            os.fsync(self._file.fileno())
            for name, value in row.items():
                self._events.add_scalar(name, value, iteration)
            self._events.flush()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            if self._file is not None:
                self._file.close()
                self._events.close()
                self._file = None


def _read_rows(path: Path, columns: Sequence[str], stop: int) -> list[list[str]]:
    """Return the complete rows up to iteration ``stop``; a last line that was cut short is dropped."""
    if not path.exists() or not stop:
        return []
    check_regular(path)
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() or [""]
    header, *rows = [line.split(",") for line in lines]
    if header != list(columns):
        raise UsageError(f"{path} has other columns than this run: {lines[0]:.200}; move the file away to resume")
    return [row for row in rows if len(row) == len(columns) and row[0].isdecimal() and float(row[0]) <= stop]
