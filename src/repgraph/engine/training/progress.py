"""How training shows how far it is: a bar in a terminal, lines elsewhere, nothing in processes but the first."""

import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from repgraph.engine.progress import duration
from repgraph.engine.training.module import Report

SECONDS_BETWEEN_LINES = 10.0  # in a test


class Display:
    """Progress from iteration ``start`` to ``last``; a context manager, which is entered when training begins.

    Args:
        start, last: iterations done, and to do.
        batch: images in an iteration.
        out: where to; quiet where it is None.
    """

    def __init__(self, start: int, last: int, batch: int, out: TextIO | None = None) -> None:
        self.last, self.batch, self.out = last, batch, out
        self.done = start
        self._rate = 0.0  # iterations in a second, smoothed
        self._said = 0.0  # when a line last told of a test
        self._bar: Progress | None = None
        if out is not None and out.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}", markup=False),
                console=Console(file=out),
            )
            self._task = self._bar.add_task("training", total=last, completed=start, note="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, iteration: int) -> None:
        """An iteration was started; cheap enough for each."""
        self.done = iteration
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration)

    def report(self, iteration: int, report: Report, seconds: float) -> None:
        """What was measured over the last iterations, which took so long."""
        now = report.iterations / max(seconds, 1e-9)
        self._rate = now if not self._rate else 0.7 * self._rate + 0.3 * now
        left = duration((self.last - iteration) / self._rate) if self._rate else "?"
        note = f"loss {report.loss:.4f}  {now * self.batch:.3g} images/s  {left} left"
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration, note=note)
        else:
            self.say(f"{iteration}/{self.last}  {note}")

    def testing(self, done: float, images: int) -> None:
        """How far a test is; called for each image or window."""
        note = f"testing {int(done)}/{images} images"
        if self._bar is not None:
            self._bar.update(self._task, note=note)
        elif time.monotonic() - self._said > SECONDS_BETWEEN_LINES:
            if self._said:
                self.say(f"{self.done}/{self.last}  {note}")
            self._said = time.monotonic()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self.out is not None:
            print(text, file=self.out, flush=True)


class Clock:
    """Seconds since it was last read or started, without pauses."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._kept = 0.0

    def pause(self) -> None:
        self._kept += time.perf_counter() - self._since

    def resume(self) -> None:
        self._since = time.perf_counter()

    def read(self) -> float:
        now = time.perf_counter()
        spent, self._since, self._kept = self._kept + now - self._since, now, 0.0
        return spent
