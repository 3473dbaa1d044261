"""The folder of a run: its files, its lock, and the record of the sessions that trained in it."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from pydantic import AwareDatetime, BaseModel

from repgraph import files, info
from repgraph.constants import CHECKPOINTS, LAST, MODEL, RECIPE
from repgraph.errors import UsageError
from repgraph.recipes import RESUMABLE, AnyRecipe, to_dict

VERSIONS, SCORES = "versions.json", "scores.json"
PREVIOUS, BEST, LOCK = "previous.ckpt", "best.ckpt", ".lock"  # in the folder of checkpoints
LOCK_TIMEOUT = 10.0  # seconds: workers of a killed process hold the lock for a moment
PACKAGES = ("torchvision", "timm", "lightning_fabric", "huggingface_hub", "safetensors")  # and those of repgraph info


class End(BaseModel):
    at: AwareDatetime
    reason: str


class SessionRecord(BaseModel):
    """A session in ``versions.json``."""

    command: str = ""
    started: AwareDatetime
    from_iteration: int = 0
    seed: int = 0
    versions: dict[str, str | None]
    ended: End | None = None


class _Versions(BaseModel):
    sessions: list[SessionRecord]


def check_free(folder: Path) -> None:
    """Raise an error unless a folder is empty or does not exist."""
    with files.explained(folder, "; choose another --out"):
        if not os.path.lexists(folder) or not any(folder.iterdir()):
            return
    resume = f", or resume the run: --resume {folder}" if (folder / RECIPE).exists() else ""
    raise UsageError(f"{folder} is not empty; delete it or choose another --out{resume}")


def find(path: Path) -> tuple[Path, Path | None]:
    """Return the folder of a run and the checkpoint to resume from, or None; ``path`` is either of them."""
    checkpoint = path if path.suffix == ".ckpt" else last_checkpoint(path)
    folder = path.parent.parent if path.suffix == ".ckpt" else path
    if not os.path.isfile(folder / RECIPE):
        raise UsageError(f"{path} is neither the folder of a run nor a checkpoint in it: there is no {folder / RECIPE}")
    if checkpoint is None and (path / MODEL).exists():
        raise UsageError(f"{path} has no checkpoint; start another run from its network with --weights {path}")
    return folder, checkpoint


def last_checkpoint(folder: Path) -> Path | None:
    """Return the last checkpoint in the folder of a run, or None."""
    found = (folder / CHECKPOINTS / name for name in (LAST, PREVIOUS))
    return next((checkpoint for checkpoint in found if os.path.isfile(checkpoint)), None)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; of several processes, the first holds it for all."""
    path = folder / CHECKPOINTS / LOCK
    lock = FileLock(path, timeout=LOCK_TIMEOUT)
    with files.explained(path):
        path.parent.mkdir(exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise UsageError(f"another process is training in {folder}; wait until it ends, or stop it") from None
        except NotImplementedError:  # a file system without locks
            pass
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path, timeout: float = 0.0) -> bool:
    """Return whether a process is training in a folder and does not finish within ``timeout`` seconds."""
    path = folder / CHECKPOINTS / LOCK
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=timeout):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False


@contextlib.contextmanager
def recorded_session(folder: Path, recipe: AnyRecipe, start: int) -> Iterator[End]:
    """Record this session in ``versions.json``, and when it ends, the reason, which the block may change."""
    end = End(at=datetime.now(UTC), reason="finished")
    about = {"command": info.command_line(), "from_iteration": start, "seed": recipe.train.seed}
    session = SessionRecord(started=end.at, versions=versions(), **about)
    found = _Versions(sessions=[*sessions(folder), session])
    files.write(folder / VERSIONS, found.model_dump_json(indent=2) + "\n")
    try:
        yield end
    except BaseException as error:
        end.reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise
    finally:
        end.at, session.ended = datetime.now(UTC), end
        with contextlib.suppress(UsageError):  # the record is for information only
            files.write(folder / VERSIONS, found.model_dump_json(indent=2) + "\n")


def sessions(folder: Path) -> list[SessionRecord]:
    """Return the recorded sessions; empty if the file cannot be read."""
    path = folder / VERSIONS
    try:
        return files.validate(_Versions, files.read_json(path), path).sessions
    except UsageError:
        return []


def versions() -> dict[str, str | None]:
    """Return everything that changes the last bits of results: versions, the GPU, and the number of threads."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    packages = {name: info.installed(name) for name in PACKAGES}
    return info.versions() | packages | {"gpu": gpu, "threads": str(torch.get_num_threads())}


def changes(stored: AnyRecipe, recipe: AnyRecipe, checkpoint: dict[str, Any]) -> Iterator[str]:
    """Describe the differences from the session that wrote a checkpoint."""
    then, now = checkpoint["versions"], versions()
    if changed := [f"{name} {then[name]} -> {now[name]}" for name in now if then.get(name) not in (None, now[name])]:
        yield f"the environment changed ({', '.join(changed)}): resume will not be bit-exact"
    done, before, total = int(checkpoint["iteration"]), stored.train.iterations, recipe.train.iterations
    if total == done:
        yield f"this run has finished; to continue it, pass --iterations N with N > {total}"
    elif total != before:
        rate = recipe.optim.lr * recipe.rate(done)
        yield f"{total} iterations instead of {before}: the schedule is stretched; the learning rate is now {rate:.3g}"


def identity(**splits: Any) -> dict[str, str]:
    """Describe data independently of their path: the classes, and number and names of each split's images."""
    found = {}
    for use, data in splits.items():
        if data is not None:
            digest = hashlib.blake2b("\n".join(item.name for item in data.items).encode(), digest_size=8).hexdigest()
            found[use] = f"{len(data.items)} images (hash of their names: {digest})"
            found["classes"] = ", ".join(data.labels.names)
    return found


def check_same_data(now: dict[str, str], checkpoint: dict[str, Any], root: str) -> None:
    """Raise an error if a run is resumed with other data."""
    for use, before in checkpoint["data"].items():
        if now.get(use) != before:
            change = f"{use}: was {before}, now {now.get(use, 'missing')}"
            raise UsageError(
                f"{root or 'the data'}: not the data of this run ({change}); pass the original with --data"
            )


def check_same_recipe(recipe: AnyRecipe, stored: AnyRecipe, source: Path) -> None:
    """Raise an error if a setting of a run that is resumed differs from the recipe stored in a file and matters."""
    now, then = to_dict(recipe), to_dict(stored)
    for section in ("data", "model", "optim", "train", "test"):
        for name, value in now[section].items():
            before, setting = then[section].get(name), f"{section}.{name}"
            if value != before and setting not in (*RESUMABLE, "model.weights", "train.iterations"):
                allowed = ", ".join(("train.iterations", *RESUMABLE))
                raise UsageError(
                    f"cannot resume with {setting}={value}: {source} has {before}. Only {allowed} can change"
                )
