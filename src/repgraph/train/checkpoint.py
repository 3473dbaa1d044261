"""Checkpoints: their content, written atomically and read without running code."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from pydantic import BaseModel, Field
from torch import Tensor

from repgraph.constants import CHECKPOINTS, LAST
from repgraph.errors import UsageError
from repgraph.files import explained, replacing, validate
from repgraph.models.weights import read_pickle
from repgraph.recipes import to_dict
from repgraph.train.run_folder import BEST, PREVIOUS, versions
from repgraph.train.session import Session


class _Momenta(BaseModel, strict=True, arbitrary_types_allowed=True):
    state: dict[int, dict[str, Tensor]]


class _Content(BaseModel, strict=True, arbitrary_types_allowed=True, allow_inf_nan=False):
    """The types of a checkpoint's values."""

    state_dict: dict[str, Tensor]
    unaveraged: dict[str, Tensor]
    optimizer_states: list[_Momenta] = Field(min_length=1)
    scaler: dict[str, Any]
    iteration: int = Field(ge=0)
    best: dict[str, float]
    sums: Tensor
    recipe: dict[str, Any]
    config: dict[str, Any]
    data: dict[str, Any]
    versions: dict[str, str | None]


def save(
    session: Session, fabric: Fabric, optimizer: Any, folder: Path, now: int, best: dict[str, Any], sums: Tensor
) -> None:
    """Write everything needed to resume a run exactly after iteration ``now``; if it fails, it fails in every process.

    ``state_dict`` has the weights that are validated. If they are averages (``train.ema``), ``unaveraged`` has the
    weights in training. ``best`` is the best score and its iteration, ``sums`` the losses since they were last logged.
    """
    error = ""
    if session.devices.is_first:
        content = {
            "state_dict": session.network.state_dict(),
            "unaveraged": {} if session.average is None else session.model.state_dict(),
            "optimizer_states": [optimizer.optimizer.state_dict()],
            "scaler": fabric.strategy.precision.state_dict(),
            "iteration": now,
            "best": best,
            "sums": sums.cpu(),
            "recipe": to_dict(session.recipe),
            "config": session.model.config,
            "data": session.identity,
            "versions": versions(),
        }
        try:
            write(folder / CHECKPOINTS, content, best=best["iteration"] == now)
        except UsageError as problem:
            error = str(problem)
    if error := fabric.broadcast(error):
        raise UsageError(error)


def write(folder: Path, checkpoint: dict[str, Any], *, best: bool) -> None:
    """Write ``last.ckpt``; the previous one becomes ``previous.ckpt``. With ``best`` it is also ``best.ckpt``."""
    path = folder / LAST
    with explained(path, f"; {path} is unchanged" if path.exists() else ""):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            with part.open("wb") as file:
                torch.save(checkpoint, file)
            if path.exists():
                link(path, folder / PREVIOUS)
    if best:
        with explained(folder / BEST):
            link(path, folder / BEST)


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
        validate(_Content, found, f"{path} is not a checkpoint of training")
        return found  # type: ignore[no-any-return]
    except UsageError as error:
        previous = path.with_name(PREVIOUS)
        if path == previous or not previous.exists():
            raise
        hint = f"the previous checkpoint may be intact: repgraph train --resume {previous}"
        raise UsageError(f"{error}; {hint}") from error
