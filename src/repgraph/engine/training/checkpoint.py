"""Checkpoints that are either whole or not there, and that run nothing when they are read."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

from repgraph.errors import UsageError
from repgraph.files import replacing
from repgraph.models.weights import read_pickle

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
NEEDED = ("state_dict", "optimizer_states", "iteration", "recipe", "best", "sums", "config")


class SaveError(UsageError):
    """A file that could not be written; the message says which, why, and what is left."""


def write(path: Path, content: Any, previous: Path | None = None) -> None:
    """Save with ``torch.save``: under another name first, then, when all is on the disk, under its own.

    Whatever happens on the way, the file that was there before is still there; in the end it is ``previous``.
    """
    with replacing(path) as part:
        with open(part, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            also_known_as(path, previous)


def also_known_as(path: Path, other: Path) -> None:
    """Give a file a second name, in place of what had it: a link where the disk can, else a copy."""
    with replacing(other) as part:
        try:
            os.link(path, part)
        except OSError:
            shutil.copyfile(path, part)


class AtomicIO(CheckpointIO):
    """Lightning's door to the disk. Only the first process saves; the others learn from ``error`` how it went."""

    def __init__(self) -> None:
        self.error = ""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Save, and keep the file that had the name as the previous one. Errors are noted, not raised."""
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, checkpoint, path.with_name(PREVIOUS))
            self.error = ""
        except (OSError, RuntimeError) as error:  # torch.save turns a full disk into a RuntimeError
            self.error = _failed(path, error)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return read(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        Path(path).unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """A checkpoint that training wrote, on the CPU. Anything in it that would run code is refused."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such checkpoint")
    try:
        found = read_pickle(path)
    except UsageError as error:
        raise UsageError(f"{error}{_remedy(path)}") from error
    missing = [name for name in NEEDED if name not in found] if isinstance(found, dict) else NEEDED
    if missing:
        raise UsageError(f"{path} is no checkpoint of training: it has no {', '.join(missing)}{_remedy(path)}")
    return found


def _remedy(path: Path) -> str:
    previous = path.with_name(PREVIOUS)
    if path.name != PREVIOUS and previous.exists():
        return f"; the one before it may be whole: repgraph train --resume {previous}"
    return ""


def _failed(path: Path, error: Exception) -> str:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
    if isinstance(error.__context__, OSError) and error.__context__.strerror:
        reason = error.__context__.strerror
    left = f"{path} is as it was before" if path.exists() else "no checkpoint was written before"
    return f"cannot write {path}: {reason}; {left}"
