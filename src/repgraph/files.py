"""Atomic writes, folder walks that handle links, and JSON with clear errors."""

import codecs
import contextlib
import csv
import io
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repgraph.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound="BaseModel")


def in_clone(name: str) -> Path | None:
    """Return a file or folder of the repository that is not part of the package; None outside of a clone."""
    roots = (Path(), *Path.cwd().parents, Path(__file__).resolve().parents[2])  # the last is that of the package
    return next((root / name for root in roots if (root / name).exists()), None)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it becomes ``path`` if the block succeeds and is removed otherwise."""
    check_regular(path)
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        with contextlib.suppress(OSError):  # sync the directory entry too, where the file system supports it
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def check_regular(path: Path) -> None:
    """Raise an OSError for a folder, and for a pipe or a device, which may block when it is read."""
    if os.path.isdir(path):
        raise IsADirectoryError("Is a directory")
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError("Not a regular file")


def write(path: Path, content: bytes | str) -> Path:
    """Write a file, creating its folder; on failure the previous file is still there."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def inside(folder: Path, name: str) -> Path:
    """Return the path of the file ``name`` in ``folder``; raise an error if ``..`` or a symbolic link leads outside."""
    path = folder / name
    if path.name == ".." or not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"cannot write {path}: it is outside of {folder} ('..' or a symbolic link)")
    return path


def check_writable(path: Path) -> None:
    """Raise an error if ``path`` cannot be written; call it before the work. Nothing is created."""
    with explained(path, "; choose another --out"):
        check_regular(path)
        folder = next(folder for folder in path.parents if folder.exists())
        with tempfile.TemporaryFile(dir=folder):
            pass


def walk(folder: Path, on_loop: Callable[[Path], None] = lambda link: None) -> list[Path]:
    """Return the files in a folder and its subfolders, without hidden ones.

    Every folder is searched once; ``on_loop`` is called with links that are therefore not followed.
    """
    found: list[Path] = []
    seen: set[Path] = set()
    waiting = [folder]  # grows by links to folders, last: a file that is found twice gets the path without links
    for start in waiting:
        for path, folders, names in os.walk(start, onerror=_raise):
            top, real = Path(path), Path(path).resolve()
            if real in seen or (top != folder and top.parent.resolve().is_relative_to(real)):
                on_loop(top)
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            waiting += [top / name for name in folders if os.path.islink(top / name)]
            found += [top / name for name in sorted(names) if not name.startswith(".")]
    return found


def _raise(error: OSError) -> None:
    raise UsageError(f"cannot read the folder {error.filename}: {error.strerror}") from error


def read_json(path: Path, remedy: str = "", error_type: type[UsageError] = UsageError) -> Any:
    """Read a JSON file; errors name the file and the ``remedy``."""
    try:
        check_regular(path)
        content = path.read_bytes()
    except OSError as error:
        raise error_type(f"{path}: {error.strerror or error}{remedy and f'; {remedy}'}") from error
    return parse_json(content.removeprefix(codecs.BOM_UTF8), path, remedy, error_type)


def parse_json(text: str | bytes, source: object, remedy: str = "", error_type: type[UsageError] = UsageError) -> Any:
    """Parse JSON, nested at most 200 deep; errors name the ``source``."""
    from pydantic_core import from_json

    try:
        return from_json(text)
    except ValueError as error:
        raise error_type(f"{source} is not valid JSON: {error}{remedy and f'; {remedy}'}") from error


def validate(kind: type[M], content: object, source: object, error_type: type[UsageError] = UsageError) -> M:
    """Return plain data as a pydantic model; errors are one line that begins with ``source`` (see :func:`explain`)."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise error_type(f"{source}: {explain(error)}") from None


def explain(error: "ValidationError") -> str:
    """Return the first error of a validation in one line that names the value."""
    first = error.errors()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".") or "it"
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} is {first['input']!r:.60}; {first['msg'][0].lower()}{first['msg'][1:]}"


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([columns, *rows])
    return out.getvalue()


@contextlib.contextmanager
def explained(path: Path, hint: str = "") -> Iterator[None]:
    """Turn errors in writing a file into a one-line :class:`UsageError`."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__context__  # torch.save raises a RuntimeError
        if not isinstance(cause, OSError):
            raise
        reason = "Not a directory" if isinstance(cause, FileExistsError) else cause.strerror or cause
        raise UsageError(f"cannot write {path}: {reason}{hint}") from error
