"""Files that are written as a whole or not at all."""

import contextlib
import errno
import os
from pathlib import Path

from repgraph.errors import UsageError


def write(path: Path, data: bytes) -> Path:
    """Write a file such that whoever is stopped, or runs out of space, leaves what was there before.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write(folder / "a" / "b.txt", b"text").read_bytes()
    b'text'
    >>> write(folder / "a", b"text")
    Traceback (most recent call last):
    repgraph.errors.UsageError: cannot write ...a: Is a directory
    """
    part = _part(path)
    try:
        _make_room(path)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise _cannot(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return path


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written, before the work that leads to it; its folder is made."""
    part = _part(path)
    try:
        _make_room(path)
        part.touch()
        part.unlink()
    except OSError as error:
        raise _cannot(path, error) from error


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _make_room(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _cannot(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path}: {error.strerror or error}")
