"""Checkpoints: their content, written atomically and read without running code."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field

from repgraph.constants import LAST
from repgraph.errors import UsageError, interrupted
from repgraph.files import explained, replacing, validate
from repgraph.models.weights import read_pickle
from repgraph.recipes import to_dict
from repgraph.train.run_folder import BEST, PREVIOUS, versions
from repgraph.train.session import Session


class _Momenta(BaseModel, strict=True, arbitrary_types_allowed=True):
    state: dict[int, dict[str, torch.Tensor]]


class _Content(BaseModel, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False):
    """The types of the values in :func:`content`."""

    state_dict: dict[str, torch.Tensor]
    unaveraged: dict[str, torch.Tensor] = {}
    optimizer_states: list[_Momenta] = Field(min_length=1)
    scaler: dict[str, Any] = {}
    iteration: int = Field(ge=0)
    best: dict[str, float]
    sums: torch.Tensor
    recipe: dict[str, Any]
    config: dict[str, Any]
    data: dict[str, Any] = {}
    versions: dict[str, str | None] = {}


def content(session: Session, **state: Any) -> dict[str, Any]:
    """Return everything needed to resume a run exactly, as tensors and plain data.

    ``state_dict`` has the weights that are validated. If they are averages (``train.ema``), ``unaveraged`` has the
    weights in training. ``state`` has ``optimizer_states``, ``scaler`` (of gradients, in fp16), ``iteration`` (number
    of those done), ``best`` (the best score and its iteration) and ``sums`` (of the losses since the last log).
    """
    return {
        "state_dict": _prefixed(session.network.state_dict()),
        "unaveraged": {} if session.average is None else _prefixed(session.model.state_dict()),
        **state,
        "recipe": to_dict(session.recipe),
        "config": session.model.config,
        "data": session.identity,
        "versions": versions(),
    }


def _prefixed(state: dict[str, Any]) -> dict[str, Any]:
    return {f"model.{name}": tensor for name, tensor in state.items()}


def write(folder: Path, checkpoint: dict[str, Any], *, best: bool) -> None:
    """Write ``last.ckpt``; the previous one becomes ``previous.ckpt``. With ``best`` it is also ``best.ckpt``."""
    path = folder / LAST
    try:
        with explained(path, f"; {path} is unchanged" if path.exists() else "; no checkpoint was written before"):
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                with part.open("wb") as file:
                    torch.save(checkpoint, file)
                if path.exists():
                    link(path, folder / PREVIOUS)
        if best:
            with explained(folder / BEST):
                link(path, folder / BEST)
    except RuntimeError as error:
        if interrupted(error):  # torch.save turns Ctrl-C into a RuntimeError
            raise KeyboardInterrupt from error
        raise


def link(path: Path, other: Path) -> None:
    """Create a hard link to a file, or a copy if the file system has no hard links."""
    with replacing(other) as part:
        try:
            os.link(path, part)
        except OSError:
            shutil.copyfile(path, part)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU; a file that would run code is refused."""
    try:
        found = read_pickle(path)
        required = [name for name, field in _Content.model_fields.items() if field.is_required()]
        missing = [name for name in required if name not in found] if isinstance(found, dict) else required
        if missing:
            raise UsageError(f"{path} is not a training checkpoint: it has no {', '.join(missing)}")
        validate(_Content, found, path)
        return found
    except UsageError as error:
        previous = path.with_name(PREVIOUS)
        if path == previous or not previous.exists():
            raise
        hint = f"the previous checkpoint may be intact: repgraph train --resume {previous}"
        raise UsageError(f"{error}; {hint}") from error
