"""Signals that stop training."""

import contextlib
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopSignals:
    """Turns SIGINT and SIGTERM into a request to stop; a second SIGINT raises KeyboardInterrupt.

    ``received`` is the last signal, or 0; ``notify`` is called with its name.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.received = 0
        self._notify = notify
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
        self._notify(signal.Signals(number).name)
