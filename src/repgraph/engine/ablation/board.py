"""How far the runs are: a table that is kept up to date in a terminal, lines elsewhere."""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from repgraph.engine.ablation.job import LEFT, Ended, Task, progress
from repgraph.engine.ablation.results import OK, Record
from repgraph.engine.ablation.runs import Run
from repgraph.engine.ablation.worker import BUSY, STOPPED
from repgraph.engine.progress import duration

TICK = 1.0  # seconds
WAITING, RUNNING = "waiting", "running"
SAID = {LEFT: "left for later", STOPPED: "stopped", BUSY: "another process is at it"}


class Board:
    """States of runs, watched by a thread of its own: a context manager.

    A run is known to have begun by the file of its task, and to have got somewhere by its metrics.

    Args:
        runs: all of them, of which those in ``tasks`` are to be done.
        records: of those done before.
        usual: seconds that a run took before, or None.
        jobs: how many are done at a time.
        out: where to; None for nowhere.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        tasks: Sequence[Task],
        records: Mapping[str, Record],
        usual: float | None,
        jobs: int,
        out: TextIO | None,
    ) -> None:
        self.runs, self.tasks, self.jobs, self.out = runs, {task.key: task for task in tasks}, jobs, out
        self.labels = {run.key: f"{run.label}, seed {run.seed}" for run in runs}
        self.states = {run.key: _state(records.get(run.key)) for run in runs}
        self.states |= dict.fromkeys(self.tasks, WAITING)
        self.begun: dict[str, float] = {}
        self.took: list[float] = [] if usual is None else [usual]
        self.total, self.ended = len(self.tasks), 0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._live: Live | None = None
        if out is not None and out.isatty():
            self._live = Live(console=Console(file=out), auto_refresh=False, vertical_overflow="ellipsis")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._live is not None:
            self._live.update(self.table(), refresh=True)
            self._live.stop()

    def end(self, ended: Ended) -> None:
        """A task came back."""
        with self._lock:
            self.ended += 1
            started = self.begun.pop(ended.key, None)
            if ended.record is not None and ended.status == OK:
                self.took.append(ended.record.seconds)
                self.states[ended.key] = _state(ended.record)
                spent = "" if started is None else f" in {duration(time.monotonic() - started)}"
                self._line(f"{self.labels[ended.key]}: mIoU {self.states[ended.key]}{spent}; {self.note()}")
            else:
                self.states[ended.key] = ended.status
                told = f"{self.labels[ended.key]}: {SAID.get(ended.status, f'{ended.status}: {ended.reason}')}"
                self._line(told) if ended.status in SAID else self.say(told)

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._line(text)

    def note(self) -> str:
        """How many are done, and the time left, by the mean of those that ended."""
        told = f"{self.ended} of {self.total} runs done"
        if not self.took or self.ended == self.total:
            return told
        mean = sum(self.took) / len(self.took)
        spent = sum(min(mean, time.monotonic() - begun) for begun in self.begun.values())
        left = ((self.total - self.ended) * mean - spent) / max(1, min(self.jobs, self.total - self.ended))
        return f"{told}, about {duration(left)} left"

    def look(self) -> None:
        """See which runs have begun, and how far they are."""
        with self._lock:
            for key, task in self.tasks.items():
                if self.states[key] == WAITING and task.file.exists():
                    self.begun[key] = time.monotonic()
                    self.states[key] = RUNNING
                    self._line(f"{self.labels[key]}: begins{_from(task.folder)}")
                if key in self.begun:
                    share = progress(task.folder) / task.iterations
                    self.states[key] = f"{RUNNING}, {100 * share:.0f} %"
            if self._live is not None:
                self._live.update(self.table(), refresh=True)

    def table(self) -> Group:
        """How far all is, and a row for each entry with a column for each seed."""
        seeds = list(dict.fromkeys(run.seed for run in self.runs))
        labels = list(dict.fromkeys(run.label for run in self.runs))
        at = {(run.label, run.seed): self.states[run.key] for run in self.runs}
        shown = Table()
        shown.add_column("entry")
        for seed in seeds:
            shown.add_column(f"seed {seed}", justify="right")
        for label in labels:
            shown.add_row(label, *(at.get((label, seed), "") for seed in seeds))
        return Group(Text(self.note()), shown)

    def _watch(self) -> None:
        while not self._over.wait(TICK):
            self.look()

    def _line(self, text: str) -> None:
        if self._live is None and self.out is not None:
            print(text, file=self.out, flush=True)


def _state(record: Record | None) -> str:
    if record is None:
        return WAITING
    return f"{100 * record.miou:.2f}" if record.status == OK and record.miou is not None else record.status


def _from(folder: Path) -> str:
    iteration = progress(folder)
    return f", from iteration {iteration} or a little before" if iteration else ""
