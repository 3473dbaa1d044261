"""Files that are written as a whole or not at all, and places where they can be."""

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from repgraph.errors import UsageError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new name in the same folder, which becomes ``path`` when the block ends well, and else goes away."""
    part = _part(path)
    try:
        yield part
        os.replace(part, path)
        _sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def write(path: Path, data: bytes) -> Path:
    """Write a file such that whoever is stopped, or runs out of space, leaves what was there before.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder) / "a" / "b.txt", b"text").read_bytes()
    b'text'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder), b"text")
    Traceback (most recent call last):
    repgraph.errors.UsageError: cannot write ...: Is a directory
    """
    try:
        _make_room(path)
        with replacing(path) as part, part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise _cannot(path, error) from error
    return path


def write_text(path: Path, text: str) -> Path:
    """The same for text, in UTF-8."""
    return write(path, text.encode())


def check_writable(path: Path) -> None:
    """Refuse a path that could not be written, before the work that leads to it; its folder is made."""
    part = _part(path)
    try:
        _make_room(path)
        part.touch()
        part.unlink()
    except OSError as error:
        raise _cannot(path, error) from error


def check_folder(folder: Path) -> None:
    """Refuse a folder, given with ``--out``, that could not be written to; it is made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"cannot write to --out {folder} ({error.strerror}); give another folder") from error


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}-{secrets.token_hex(4)}.part")


def _make_room(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _sync_folder(folder: Path) -> None:
    """The new name is on the disk too, where the system can say so."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _cannot(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path}: {error.strerror or error}")
