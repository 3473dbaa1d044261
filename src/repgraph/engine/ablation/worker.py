"""The process of one run: ``python -m repgraph.engine.ablation.worker TASK.json``.

It trains, or goes on from the last checkpoint, and writes how that ended where the task says. It stops, with a
checkpoint, on SIGTERM, and when the process that started it is gone. Lightning may start it once more for each further
GPU of a run: the first process speaks for all.
"""

import csv
import dataclasses
import datetime
import json
import math
import os
import platform
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from repgraph.engine.ablation.locks import take
from repgraph.engine.ablation.results import DIVERGED, FAILED, OK, RECORD, SCORES, Record, read_record
from repgraph.errors import UsageError
from repgraph.files import write_text
from repgraph.recipes import Recipe, from_dict
from repgraph.recipes.settings import only

if TYPE_CHECKING:
    from repgraph.engine.train import Outcome

STOPPED, BUSY = "stopped", "busy"  # to go on later; another process is at it
PATIENCE = 15.0  # seconds
RECIPE, METRICS, SECONDS = "recipe.json", "metrics.csv", "seconds"
HEAVY = ("checkpoints", "model")  # what goes when a run has ended well
FREE = ("data.root", "data.workers", "data.cache", "train.devices", "train.accelerator")


def work(task: Mapping[str, Any], show: TextIO | None = None) -> tuple[str, Record | str]:
    """Do a task: its end (a status), and the record of it, or a reason where there is none to keep."""
    folder = Path(task["folder"])
    claim = _claim(Path(task["claim"])) if first() else None
    if first() and claim is None:
        return BUSY, "another process is training it"
    try:
        if (found := read_record(folder / RECORD)) is not None and found.done:
            return found.status, found
        return _trained(task, only(from_dict(task["recipe"]), Recipe, str(folder)), folder, show)
    finally:
        if claim is not None:
            claim.close()


def _claim(path: Path) -> TextIO | None:
    """The lock of a run; None if another process has it, and does not end in a while, as one that was stopped would."""
    for _ in range(max(1, round(PATIENCE / 0.5))):
        if (lock := take(path)) is not None:
            return lock
        time.sleep(0.5)
    return None


def _trained(task: Mapping[str, Any], recipe: Recipe, folder: Path, show: TextIO | None) -> tuple[str, Record | str]:
    start = task["started"]
    try:
        outcome = train(recipe, folder, show)
    except Exception as error:
        traceback.print_exc()
        reason = str(error) if isinstance(error, UsageError) else _one_line(error)
        return FAILED, _record(task, FAILED, reason, {}, 0, _spent(folder, start))
    seconds = _spent(folder, start)
    if not outcome.first:
        return STOPPED, ""
    if outcome.stop is not None and outcome.stop.signal:
        return STOPPED, outcome.stop.reason
    if outcome.stop is not None:
        record = _record(task, DIVERGED, outcome.stop.reason, {}, outcome.iteration, seconds)
        _write_record(folder, record)
        return DIVERGED, record
    scores = {name: getattr(outcome.scores, name) for name in SCORES} if outcome.scores else _noted(folder)
    if not scores or any(map(math.isnan, scores.values())):
        reason = f"the run ended without a test: there are no scores in {folder / METRICS}"
        if scores:
            reason = "the test has no scores: no pixel of its images is labelled"
        return FAILED, _record(task, FAILED, reason, {}, outcome.iteration, seconds)
    record = _record(task, OK, "", scores, outcome.iteration, seconds)
    more = {"classes": outcome.scores.to_dict()["iou"]} if outcome.scores else {}
    _write_record(folder, record, **more)
    if not task["keep"]:
        for name in HEAVY:
            shutil.rmtree(folder / name, ignore_errors=True)
    return OK, record


def _write_record(folder: Path, record: Record, **more: Any) -> None:
    """What is done stays done, whether or not anyone hears of it."""
    write_text(folder / RECORD, json.dumps({**dataclasses.asdict(record), **more}, indent=2) + "\n")


def train(recipe: Recipe, folder: Path, show: TextIO | None) -> "Outcome":
    """Train in a new folder, or go on from a checkpoint; without one there is nothing to go on from but old paths."""
    from repgraph.engine.train import resume
    from repgraph.engine.train import train as begin
    from repgraph.engine.training.folder import find

    if (folder / RECIPE).exists() and find(folder)[1] is not None:
        return resume(folder, [f"{name}={_text(recipe, name)}" for name in FREE], show=show)
    if folder.exists() and first():
        shutil.rmtree(folder)  # killed before there was a checkpoint
    return begin(recipe, folder, show=show)


def first() -> bool:
    """Whether this is the first process of a run, or its only one."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def _text(recipe: Recipe, name: str) -> str:
    section, _, field = name.partition(".")
    value = getattr(getattr(recipe, section), field)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _record(
    task: Mapping[str, Any], status: str, reason: str, scores: Mapping[str, float], iterations: int, seconds: float
) -> Record:
    import torch

    from repgraph import __version__
    from repgraph.info import device_name

    on_gpu = torch.cuda.is_available() and task["recipe"]["train"]["accelerator"] != "cpu"
    return Record(
        **task["about"],
        status=status,
        miou=scores.get("miou"),
        pixel_accuracy=scores.get("pixel_accuracy"),
        mean_accuracy=scores.get("mean_accuracy"),
        iterations=iterations,
        seconds=round(seconds, 2),
        device=device_name(torch.device("cuda" if on_gpu else "cpu")),
        repgraph=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        reason=" ".join(reason.split()),
    )


def _noted(folder: Path) -> dict[str, float]:
    """The scores in the last line of the metrics, of a run that had ended before it was started again."""
    try:
        with (folder / METRICS).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {name: float(rows[-1][f"val_{name}"]) for name in SCORES}
    except (OSError, ValueError, KeyError, IndexError):
        return {}


def _spent(folder: Path, start: float) -> float:
    """Seconds since ``start``, and those of attempts before."""
    path = folder / SECONDS
    try:
        before = float(path.read_text())
    except (OSError, ValueError):
        before = 0.0
    total = before + time.time() - start
    if folder.is_dir() and first():
        path.write_text(f"{total}\n")
    return total


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _watch() -> None:
    """Ask this process to stop when the one at the other end of its standard input is gone."""

    def wait() -> None:
        os.read(0, 1)  # not sys.stdin, whose lock processes that load images would inherit, held
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main(path: str) -> int:
    task = json.loads(Path(path).read_text(encoding="utf-8"))
    if first():
        _watch()
    status, found = work(task, sys.stderr)
    if first():
        record = dataclasses.asdict(found) if isinstance(found, Record) else None
        reason = found.reason if isinstance(found, Record) else found
        write_text(Path(task["result"]), json.dumps({"status": status, "reason": reason, "record": record}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
