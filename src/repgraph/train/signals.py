"""Signals that stop training."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_signals(notify: Callable[[str], None]) -> Iterator[list[int]]:
    """Yield the SIGINTs and SIGTERMs received, and call ``notify`` with their names; a second SIGINT interrupts."""
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in received:  # launchers repeat a SIGTERM
            raise KeyboardInterrupt
        received.append(number)
        notify(signal.Signals(number).name)

    previous = {}
    try:
        with contextlib.suppress(ValueError):  # only the main thread receives signals
            for number in (signal.SIGINT, signal.SIGTERM):
                previous[number] = signal.signal(number, handle)
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
