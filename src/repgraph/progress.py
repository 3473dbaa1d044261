"""Progress bars in a terminal, and occasional lines elsewhere."""

import sys
import time
from collections import deque
from typing import Any, Self, TextIO

from repgraph.errors import one_line


class Progress:
    """Context manager that shows progress through ``total`` steps, ``start`` of them already done, and the time left.

    ``out`` gets a bar if it is a terminal, otherwise occasional lines; None shows nothing.
    """

    every = 30.0  # seconds between lines

    def __init__(
        self, description: str, total: int, out: TextIO | None, *, unit: str = "images", start: int = 0
    ) -> None:
        self.description, self.total, self.out, self.unit = description, total, out, unit
        self._last_line, self._note = time.monotonic(), ""
        self._recent = deque([(time.monotonic(), float(start))], maxlen=64)  # (time, steps done)
        self._bar: Any = None  # of rich, in a terminal
        if out is not None and out.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            name, note = (TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[note]}"))
            columns = (name, BarColumn(bar_width=None), TaskProgressColumn(), note)
            self._bar = Progress(*columns, console=Console(file=out), transient=True)
            self._task = self._bar.add_task(description, total=total, completed=start, note="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: float, note: str | None = None, *, line: bool = False) -> None:
        """Show that ``done`` steps are done, and ``note`` in place of the time left; ``line`` prints a line at once."""
        if self.out is None:
            return
        now = time.monotonic()
        if done > self._recent[-1][1]:
            self._recent.append((now, done))
        left = self.remaining(done)
        self._note = self._note if note is None else note
        note = note or f"{int(done)}/{self.total} {self.unit}" + (f", {left} left" if left else "")
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=self._note or note)
        elif line or now - self._last_line >= self.every:
            self._last_line = now
            print(f"{self.description}: {note}", file=self.out, flush=True)

    def remaining(self, done: float) -> str:
        """Return the estimated time left, from the speed of the last steps; empty before the first step is done."""
        begin, before = self._recent[0]
        seconds = (time.monotonic() - begin) * (self.total - done)
        return format_duration(seconds / (done - before)) if done > before else ""

    def print(self, text: str) -> None:
        """Print a permanent line above the bar; to stderr if ``out`` is None."""
        text = one_line(text)
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(f"{text}\n", end="", file=self.out or sys.stderr, flush=True)  # at once: threads may print


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(42), format_duration(400), format_duration(40000), format_duration(900000)
    ('42 s', '7 min', '11 h 07 min', '10 days')
    """
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole >= 72 * 3600:
        return f"{round(whole / 86400)} days"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
