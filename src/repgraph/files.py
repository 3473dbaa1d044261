"""Files that are written completely or not at all, and JSON files that are read with clear errors."""

import contextlib
import csv
import io
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from repgraph.errors import UsageError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it becomes ``path`` if the block succeeds and is removed otherwise."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        os.replace(part, path)
        with contextlib.suppress(OSError):  # the directory entry too, where the file system can
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def write(path: Path, content: bytes | str) -> Path:
    """Write a file, creating its folder; on failure the previous file is still there."""
    with _explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part, part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
    return path


def inside(folder: Path, name: str) -> Path:
    """Return the path of the file ``name`` in ``folder``; raise an error if it is outside, also by a symbolic link."""
    path = folder / name
    if path.name == ".." or not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"cannot write {path}: it is outside of {folder} ('..' or a symbolic link)")
    return path


def check_writable(path: Path) -> None:
    """Raise an error if ``path`` cannot be written, before the work that leads to it. Nothing is created."""
    with _explained(path, "; give another --out"):
        if path.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        folder = next(folder for folder in path.parents if folder.exists())
        part = folder / f".{secrets.token_hex(8)}.part"
        part.touch()
        part.unlink()


def read_json(path: Path, remedy: str = "", error_type: type[UsageError] = UsageError) -> Any:
    """Read a JSON file; errors name the file, and say what to do (``remedy``)."""
    hint = f"; {remedy}" if remedy else ""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise error_type(f"{path}: {error.strerror or error}{hint}") from error
    except (ValueError, RecursionError) as error:
        raise error_type(f"{path} is not a JSON file: {str(error).splitlines()[0]}{hint}") from error


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([columns, *rows])
    return out.getvalue()


@contextlib.contextmanager
def _explained(path: Path, hint: str = "") -> Iterator[None]:
    """Raise errors about a file to write as one line."""
    try:
        yield
    except OSError as error:
        reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror or error
        raise UsageError(f"cannot write {path}: {reason}{hint}") from error
