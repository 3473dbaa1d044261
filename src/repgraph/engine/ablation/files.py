"""Files that several processes write: whole or not there, and one writer at a time."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from repgraph.errors import UsageError


def write(path: Path, text: str) -> None:
    """Write under another name first, and rename when all of it is on the disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}-", delete=False, encoding="utf-8", newline=""
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o644)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; give another folder with --out") from error


def check_writable(folder: Path) -> None:
    """Find out now, not after training, whether the folder can be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"cannot write to --out {folder} ({error.strerror}); give another folder") from error


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
