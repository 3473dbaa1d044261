"""The folder of a run: what is in it, who may use it, and what it says about how it was made."""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from repgraph import __version__, files
from repgraph.engine.training.checkpoint import LAST, PREVIOUS, SaveError
from repgraph.errors import UsageError
from repgraph.recipes import AnyRecipe, from_dict, to_json

RECIPE, VERSIONS, CHECKPOINTS, MODEL = "recipe.json", "versions.json", "checkpoints", "model"
LOCK = ".lock"  # in the folder of checkpoints
_PACKAGES = ("torchvision", "timm", "lightning", "numpy", "huggingface_hub", "safetensors")
# Where, not what: these may be others when a run goes on.
FREE = ("data.root", "data.workers", "data.cache", "train.graph", "train.devices", "train.accelerator")


def check_free(folder: Path) -> None:
    """Refuse a folder that has something in it."""
    try:
        if folder.is_dir() and not any(folder.iterdir()):
            return
        if not os.path.lexists(folder):
            return
    except OSError as error:
        raise SaveError(f"cannot use {folder}: {error.strerror or error}; give another folder with --out") from error
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give another one with --out")
    again = f", or go on with it: --resume {folder}" if (folder / RECIPE).exists() else ""
    raise UsageError(f"{folder} is not empty; give another folder with --out{again}")


def create(folder: Path, recipe: AnyRecipe) -> None:
    """A new run's folder with its recipe and versions."""
    check_free(folder)
    try:
        (folder / CHECKPOINTS).mkdir(parents=True)
    except OSError as error:
        raise SaveError(f"cannot write {folder}: {error.strerror or error}; give another folder with --out") from error
    write_text(folder / RECIPE, to_json(recipe))
    note_session(folder, recipe, 0)


@contextlib.contextmanager
def locked(folder: Path, first: bool = True) -> Iterator[None]:
    """Keep other runs of the command out of a run's folder; the system unlocks it when this process ends, however.

    Of several processes that train together, the ``first`` has the lock. Workers do not inherit it, as they would with
    ``flock``: one that outlives a killed process for a moment must not keep the run from going on.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows
        fcntl = None  # type: ignore[assignment]
    if fcntl is None or not first:
        yield
        return
    path = folder / CHECKPOINTS / LOCK
    try:
        path.parent.mkdir(exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise UsageError(f"another process is training in {folder}; wait until it ends, or stop it") from None
        except OSError:
            pass  # a disk that has no locks
        yield


def note_session(folder: Path, recipe: AnyRecipe, start: int) -> None:
    """Versions, seed and command of this attempt, in ``versions.json``, after those of earlier ones."""
    session = {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "from_iteration": start,
        "seed": recipe.train.seed,
        "versions": versions(),
    }
    _write_sessions(folder, [*_sessions(folder), session])


def note_end(folder: Path, reason: str) -> None:
    """How this attempt ended, into its entry; nothing depends on it, and so it never fails."""
    sessions = _sessions(folder)
    if sessions:
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        with contextlib.suppress(SaveError, TypeError, AttributeError):
            sessions[-1] |= {"ended": {"at": at, "reason": reason}}
            _write_sessions(folder, sessions)


def _sessions(folder: Path) -> list[Any]:
    try:
        return list(json.loads((folder / VERSIONS).read_text(encoding="utf-8"))["sessions"])
    except (OSError, ValueError, KeyError, TypeError):
        return []  # only told, never needed


def _write_sessions(folder: Path, sessions: list[Any]) -> None:
    write_text(folder / VERSIONS, json.dumps({"sessions": sessions}, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    try:
        files.write_text(path, text)
    except UsageError as error:
        raise SaveError(str(error)) from error


def versions() -> dict[str, str | None]:
    """What numbers depend on in their last bits: versions, the GPU, and the number of threads."""
    found: dict[str, str | None] = {
        "repgraph": __version__,
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
    }
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    found["cuda"] = torch.version.cuda if torch.cuda.is_available() else None
    found["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    found["threads"] = str(torch.get_num_threads())
    return found


def changed(checkpoint: dict[str, Any]) -> str:
    """What is not as it was when a checkpoint was written, such as ``torch 2.11.0 then, 2.12.0 now``."""
    then, now = checkpoint.get("versions", {}), versions()
    return "; ".join(
        f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name) not in (None, now[name])
    )


def find(path: Path) -> tuple[Path, Path | None]:
    """The folder of a run to resume, and the checkpoint to go on from; ``path`` is either of them.

    None if the run has not got as far as its first checkpoint.
    """
    if path.suffix == ".ckpt" and not path.exists():
        raise UsageError(f"{path}: there is no such checkpoint")
    if path.is_file():
        if path.suffix != ".ckpt":
            raise UsageError(f"{path} is no checkpoint: a file .ckpt, or the folder of a run, is needed")
        folder = path.parent.parent
        if not (folder / RECIPE).is_file():
            raise UsageError(f"{path} is not in a run: there is no {folder / RECIPE}")
        return folder, path
    if not (path / RECIPE).is_file():
        raise UsageError(f"{path} is not the folder of a run: there is no {path / RECIPE}")
    for name in (LAST, PREVIOUS):
        if (path / CHECKPOINTS / name).exists():
            return path, path / CHECKPOINTS / name
    return path, None


def identity(**splits: Any) -> dict[str, Any]:
    """What tells data from others, wherever they are: the classes, and each split's images by number and names.

    Args:
        splits: such as :class:`~repgraph.data.dataset.SegmentationData`, by what they are for; None for none.
    """
    there = {use: data for use, data in splits.items() if data is not None}
    found: dict[str, Any] = {"classes": list(next(iter(there.values())).labels.names)}
    for use, data in there.items():
        names = "\n".join(item.name for item in data.items)
        found[use] = {"images": len(data.items), "names": hashlib.blake2b(names.encode(), digest_size=16).hexdigest()}
    return found


def check_same_data(now: dict[str, Any], checkpoint: dict[str, Any], root: str) -> None:
    """Refuse other data than those a run began with; checkpoints of earlier versions do not say which they were."""
    then = checkpoint.get("data", now)
    for what, value in then.items():
        if now.get(what) == value:
            continue
        found = now.get(what) or {"images": 0}
        if what == "classes":
            how = f"the classes were {', '.join(value)}, and are {', '.join(found)}"
        elif found["images"] != value["images"]:
            how = f"there were {value['images']} images for {what}, and are {found['images']}"
        else:
            how = f"the images for {what} have other names"
        raise UsageError(f"{root or 'the data'}: not what the run began with: {how}; give that with --data ROOT")


def check_same(recipe: AnyRecipe, checkpoint: dict[str, Any], path: Path) -> None:
    """Refuse a checkpoint of another recipe than the run's."""
    theirs = from_dict(checkpoint["recipe"], str(path))
    if theirs.task != recipe.task:
        raise UsageError(f"{path} is of a run for {theirs.task}, and {RECIPE} says {recipe.task}; give another run")
    for section in ("data", "model", "optim", "train", "test"):
        for field in dataclasses.fields(getattr(recipe, section)):
            ours, then = getattr(getattr(recipe, section), field.name), getattr(getattr(theirs, section), field.name)
            if ours != then and f"{section}.{field.name}" not in (*FREE, "model.weights"):
                raise UsageError(
                    f"{path} was made with {section}.{field.name} = {then!r}, and {RECIPE} says {ours!r}; "
                    "a run goes on with the recipe that it began with"
                )
