"""What a worker of the pool does: start the process of a run, wait for it, and tell how it ended.

The run is a process of its own: it may crash, or be killed for its memory, and the pool goes on. Nothing is raised.
"""

import datetime
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from repgraph import __version__
from repgraph.engine.ablation.locks import take
from repgraph.engine.ablation.results import (
    FAILED,
    RECORD,
    RUNS,
    Record,
    Results,
    from_mapping,
    mean_seconds,
    read_record,
)
from repgraph.engine.ablation.worker import METRICS, STOPPED
from repgraph.files import write_text

COMMAND = (sys.executable, "-P", "-m", "repgraph.engine.ablation.worker")
LEFT = "left"  # not begun: no time for it
SLOTS = ".slots"
POLL = 0.1  # seconds
STARTER = os.getppid()  # of this process, which may be one of a pool
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")  # says who we are, not it


@dataclass(frozen=True)
class Task:
    """A run, for a worker that may be on another machine with the same folder.

    ``out`` is the folder of results; ``stop`` a file whose presence asks for an end, with a name that no other call
    has; ``deadline`` as ``time.time()`` has it; ``jobs`` runs are side by side; ``pid`` is the process that
    has them done.
    """

    about: dict[str, Any]  # key, dataset, seed, settings, weights: of the record
    recipe: dict[str, Any]
    out: str
    stop: str
    jobs: int = 1
    keep: bool = False
    deadline: float | None = None
    pid: int = 0
    command: tuple[str, ...] = ()  # in place of the worker's own Python

    @property
    def key(self) -> str:
        return str(self.about["key"])

    @property
    def folder(self) -> Path:
        return Path(self.out) / RUNS / self.key

    @property
    def file(self) -> Path:
        """Is there while the run is, or while it waits to hear that another process is at it."""
        return self.folder.with_name(f".{self.key}-{Path(self.stop).name.strip('.').removesuffix('.stop')}.json")

    @property
    def iterations(self) -> int:
        return int(self.recipe["train"]["iterations"])


@dataclass(frozen=True)
class Ended:
    """How a task ended; a record where there is something to note."""

    key: str
    status: str
    reason: str = ""
    record: Record | None = None


def job(task: Task) -> Ended:
    """Do a task, if there is time for it."""
    try:
        if os.path.exists(task.stop) or _left_behind(task):
            return Ended(task.key, LEFT, "stopped")
        if (found := read_record(task.folder / RECORD)) is not None and found.done:  # meanwhile, by another call
            return Ended(task.key, found.status, found.reason, found)
        if not fits(task):
            return Ended(task.key, LEFT, "no time left for it")
        number, slot = take_slot(Path(task.out))
        try:
            return _run(task, number)
        finally:
            slot.close()
    except Exception as error:
        return _failed(task, f"{type(error).__name__}: {error}")


def fits(task: Task) -> bool:
    """Whether a run is expected to end in time: by the mean of those like it, less what it has done already."""
    if task.deadline is None:
        return True
    records = Results(task.out).read().values()
    mean = mean_seconds(records, task.about["dataset"], task.iterations) or 0.0
    left = 1 - min(1.0, progress(task.folder) / task.iterations)
    return time.time() + mean * left < task.deadline


def progress(folder: Path) -> int:
    """The iteration up to which a run has noted something."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode(errors="replace").splitlines()
        return int(lines[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def take_slot(out: Path) -> tuple[int, TextIO]:
    """The first number that no other run on this machine has, and the lock on it: it decides on the GPU."""
    number = 0
    while True:
        lock = take(out / SLOTS / f"{socket.gethostname()}-{number}")
        if lock is not None:
            return number, lock
        number += 1


def environment(task: Task, slot: int) -> dict[str, str]:
    """Variables of the process: where modules are, its share of the cores, its GPU."""
    found = {name: value for name, value in os.environ.items() if name not in _TORCHRUN}
    found["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    if task.jobs > 1:
        found.setdefault("OMP_NUM_THREADS", str(max(1, cores() // task.jobs)))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus > 1 and task.recipe["train"]["devices"] <= 1:
        names = found.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = names if len(names) >= gpus else [str(i) for i in range(gpus)]
        found["CUDA_VISIBLE_DEVICES"] = names[slot % gpus]
    return found


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(task: Task, slot: int) -> Ended:
    folder, result = task.folder, task.file.with_suffix(".result")
    log = folder.with_name(task.file.with_suffix(".log").name.lstrip("."))
    given: dict[str, Any] = {
        "about": task.about,
        "recipe": task.recipe,
        "folder": str(folder),
        "keep": task.keep,
        "claim": str(folder.with_name(f".{task.key}.lock")),
        "result": str(result),
        "started": time.time(),
    }
    write_text(task.file, json.dumps(given))
    try:
        with log.open("wb") as told:
            stopped, code = _wait(task, told, environment(task, slot))
        ended = _ended(task, result)
    finally:
        task.file.unlink(missing_ok=True)
        result.unlink(missing_ok=True)
    if ended is not None:
        if ended.status != FAILED:
            for old in (log, *(folder.parent.glob(f"{task.key}-*.log") if ended.record else ())):
                old.unlink(missing_ok=True)
        return ended
    if stopped:
        log.unlink(missing_ok=True)
        return Ended(task.key, STOPPED, "stopped")
    return _failed(task, _how(code, log), time.time() - given["started"])


def _wait(task: Task, log: Any, variables: dict[str, str]) -> tuple[bool, int]:
    """Run the process to its end: whether it was asked to stop, and its exit code.

    It has a session of its own: an interrupt from the keyboard reaches it through us alone. It hears of our end by
    that of its standard input.
    """
    asked = False
    with subprocess.Popen(
        [*(task.command or COMMAND), str(task.file)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=variables,
        start_new_session=True,
    ) as process:
        while True:
            try:
                code = process.poll()
                if code is not None:
                    return asked, code
                if not asked and (_is_over(task) or _left_behind(task)):
                    asked = True
                    process.terminate()
                time.sleep(POLL)
            except KeyboardInterrupt:  # in a process of a pool
                asked = True
                process.terminate()


def _is_over(task: Task) -> bool:
    return os.path.exists(task.stop) or (task.deadline is not None and time.time() > task.deadline)


def _left_behind(task: Task) -> bool:
    """Whether this is a process of a pool whose starter is gone; the command itself may outlive its shell."""
    return os.getpid() != task.pid and os.getppid() not in (task.pid, STARTER)


def _ended(task: Task, result: Path) -> Ended | None:
    """What the process left, if it got that far."""
    try:
        found = json.loads(result.read_text(encoding="utf-8"))
        record = None if found["record"] is None else from_mapping(found["record"])
        return Ended(task.key, found["status"], found["reason"], record)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _how(code: int, log: Path) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        how = f"its process was ended by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")
    else:
        how = f"its process ended with exit code {code}"
    try:
        said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        said = []
    return f"{how}; it last said: {said[-1][:200]} ({log})" if said else how


def _failed(task: Task, reason: str, seconds: float = 0.0) -> Ended:
    record = Record(
        **task.about,
        status=FAILED,
        miou=None,
        pixel_accuracy=None,
        mean_accuracy=None,
        iterations=progress(task.folder),
        seconds=round(seconds, 2),
        device="",
        repgraph=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        reason=" ".join(reason.split()),
    )
    return Ended(task.key, FAILED, record.reason, record)
