"""Files that are written as a whole or not at all."""

import contextlib
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
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return path
