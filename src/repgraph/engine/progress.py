"""How far a command is, and the time that is left: a bar in a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 30.0  # seconds between lines


def _bar(out: TextIO) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=Console(file=out),
        transient=True,
    )


class Meter:
    """Progress through ``total`` images; a context manager. ``out`` is where to, None for nowhere.

    ``at(done)`` may be a fraction: half of the second image is 1.5.
    """

    def __init__(self, what: str, total: int, out: TextIO | None) -> None:
        self.what, self.total, self.out = what, total, out
        self.start = self.told = time.monotonic()
        self.bar: Progress | None = None
        if out is not None and out.isatty():
            self.bar = _bar(out)
            self.task = self.bar.add_task(what, total=total, note="")

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def at(self, done: float) -> None:
        """So many images are done."""
        if self.out is None:
            return
        now = time.monotonic()
        left = (now - self.start) / done * (self.total - done) if done else None
        note = f"{int(done)} of {self.total} images" + (f", {duration(left)} left" if left is not None else "")
        if self.bar is not None:
            self.bar.update(self.task, completed=done, note=note)
        elif now - self.told >= EVERY:
            self.told = now
            print(f"{self.what}: {note}", file=self.out, flush=True)

    def say(self, text: str) -> None:
        """A line that stays, above the bar; on the error stream where there is nowhere else."""
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self.out or sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(42), duration(400), duration(40000)
    ('42 s', '7 min', '11 h 07 min')
    """
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
