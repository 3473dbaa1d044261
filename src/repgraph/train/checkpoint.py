"""Checkpoints: their content, written atomically and read without running code."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field

from repgraph.constants import LAST
from repgraph.errors import UsageError, interrupted
from repgraph.files import replacing, validate
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


def content(
    session: Session,
    optimizer: torch.optim.Optimizer,
    scaler: dict[str, Any],
    iteration: int,
    best: dict[str, Any],
    sums: torch.Tensor,
) -> dict[str, Any]:
    """Return everything needed to resume a run exactly, as tensors and plain data.

    ``state_dict`` has the weights that are validated. If they are averages (``train.ema``), ``unaveraged`` has the
    weights in training.

    Args:
        scaler: State of the gradient scaler; empty except in fp16.
        iteration: Iterations done.
        best: The best validation score and its iteration.
        sums: Sums of the losses since they were last logged.
    """
    return {
        "state_dict": _prefixed(session.network.state_dict()),
        "unaveraged": {} if session.average is None else _prefixed(session.model.state_dict()),
        "optimizer_states": [optimizer.state_dict()],
        "scaler": scaler,
        "iteration": iteration,
        "best": best,
        "sums": sums.cpu(),
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
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            with open(part, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                link(path, folder / PREVIOUS)
        if best:
            path = folder / BEST
            link(folder / LAST, path)
    except (OSError, RuntimeError) as error:  # torch.save turns a full disk, and Ctrl-C, into a RuntimeError
        if interrupted(error):
            raise KeyboardInterrupt from error
        cause = error if isinstance(error, OSError) else error.__context__
        reason = (cause.strerror if isinstance(cause, OSError) else None) or str(error).splitlines()[0]
        state = f"{path} is unchanged" if path.exists() else "no checkpoint was written before"
        raise UsageError(f"cannot write {path}: {reason}; {state}") from error


def link(path: Path, other: Path) -> None:
    """Create a hard link to a file, or a copy if the file system has no hard links."""
    with replacing(other) as part:
        try:
            os.link(path, part)
        except OSError:
            shutil.copyfile(path, part)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU; a file that would run code is refused."""
    previous = path.with_name(PREVIOUS)
    hint = ""
    if path.name != PREVIOUS and previous.exists():
        hint = f"; the previous checkpoint may be intact: repgraph train --resume {previous}"
    try:
        found = read_pickle(path)
        required = [name for name, field in _Content.model_fields.items() if field.is_required()]
        missing = [name for name in required if name not in found] if isinstance(found, dict) else required
        if missing:
            raise UsageError(f"{path} is not a training checkpoint: it has no {', '.join(missing)}")
        validate(_Content, found, path)
    except UsageError as error:
        raise UsageError(f"{error}{hint}") from error
    return found
