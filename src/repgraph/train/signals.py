"""SIGINT and SIGTERM during training."""

import contextlib
import signal
from types import FrameType
from typing import Any

from repgraph.progress import Progress


class StopSignals:
    """Turns SIGINT and SIGTERM into a request to stop after the iteration; a second SIGINT interrupts at once."""

    def __init__(self, progress: Progress) -> None:
        self.received = 0
        self._progress = progress
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        with contextlib.suppress(ValueError):  # only the main thread receives signals
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received == number == signal.SIGINT:  # launchers repeat a SIGTERM
            self.__exit__()
            raise KeyboardInterrupt
        self.received = number
        if self._progress.out is not None:
            self._progress.print(
                f"{signal.Signals(number).name}: stopping after this iteration (Ctrl-C again: at once)"
            )
