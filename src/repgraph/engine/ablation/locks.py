"""Files that several processes write: one at a time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


def take(path: Path, wait: bool = False) -> TextIO | None:
    """A lock, held until the file is closed or the process ends, however; None if another has it.

    Where the system or the disk has no locks, everyone gets it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a")
    try:
        import fcntl
    except ImportError:  # not on Windows
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    except OSError:
        pass  # a disk that has no locks
    return file


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock, and keep it for the block."""
    file = take(path, wait=True)
    try:
        yield
    finally:
        if file is not None:
            file.close()
