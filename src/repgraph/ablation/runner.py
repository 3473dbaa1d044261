"""Runs as subprocesses: each one is ``repgraph train``, started by joblib on this machine or on a cluster."""

import contextlib
import datetime
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from joblib import Parallel, cpu_count, delayed, parallel_config

from repgraph import files
from repgraph.ablation.key import weights_name
from repgraph.ablation.results import DIVERGED, FAILED, OK, Record
from repgraph.ablation.tables import PlannedRun
from repgraph.constants import CHECKPOINTS, MODEL, RECIPE
from repgraph.errors import UsageError
from repgraph.evaluation.segmentation import SUMMARY
from repgraph.info import device_name
from repgraph.progress import format_duration
from repgraph.recipes import RESUMABLE, to_json, with_values
from repgraph.train import run_folder
from repgraph.train.loop import NOT_FINITE
from repgraph.train.metrics import METRICS
from repgraph.train.stream import num_workers

RUNS = "runs"
COMMAND = "REPGRAPH_COMMAND"  # environment variable: the command that starts repgraph, instead of this Python
POLL = 0.2  # seconds between checks of the stop file
_STOP_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGTERM)


@dataclass(frozen=True)
class RunTask:
    """A run for a worker, which may be on another machine with the same folders.

    When the file ``stop`` exists, it writes a checkpoint and stops.
    """

    run: PlannedRun
    out: Path
    stop: Path
    jobs: int = 1  # number of runs that share the cores of the machine

    @property
    def folder(self) -> Path:
        return self.out / RUNS / self.run.key

    @property
    def log(self) -> Path:
        """The output of the run; kept if it fails."""
        return self.out / RUNS / f"{self.run.key}.log"


def train_all(tasks: Iterable[RunTask], jobs: int, backend: str, cluster: str) -> Iterator[tuple[Record | None, str]]:
    """Train all tasks, ``jobs`` at a time, and yield the results of :func:`train_one`.

    ``backend`` is one of joblib's: "threading", "loky", or "dask", for which ``cluster`` is the scheduler's address.
    """
    if (backend == "dask") != bool(cluster):
        raise UsageError("--backend dask and --cluster ADDRESS belong together; give both or none")
    parameters = {"scheduler_host": cluster} if cluster else {}
    try:
        with parallel_config(backend, n_jobs=jobs, **parameters):
            parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
            yield from parallel(delayed(train_one)(task) for task in tasks)
    except Exception as error:
        if backend == "threading":
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--backend {backend} failed ({reason}); repeat the command to continue") from error


def train_one(task: RunTask) -> tuple[Record | None, str]:
    """Train a run in a subprocess, from its checkpoint if it has one; errors make a failed record and are not raised.

    Returns the record and a line about it; the record is None if the run was stopped or another process is training it.
    """
    try:
        task.folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(task.folder.with_name(f".{task.run.key}.lock"), timeout=0):
            if run_folder.is_locked(task.folder, run_folder.LOCK_TIMEOUT):
                raise Timeout(str(task.folder))
            record = collect(task) or _train(task)
    except Timeout:
        return None, f"{task.run}: skipped, another process is training it"
    except Exception as error:
        record = _record(task, FAILED, f"{type(error).__name__}: {error}")
    if record is None or record.done:
        task.log.unlink(missing_ok=True)
    if record is None:
        return None, f"{task.run}: stopped"
    if record.miou is None:
        return record, f"{task.run}: {record.status}: {record.reason}"
    return record, f"{task.run}: mIoU {100 * record.miou:.2f} in {format_duration(record.seconds)}"


def _train(task: RunTask) -> Record | None:
    """Run the subprocess and return its record, or None if it was stopped."""
    code, stopped = _run_process(task)
    if record := collect(task):
        return record
    if code == NOT_FINITE:
        reasons = [session.ended.reason for session in run_folder.sessions(task.folder) if session.ended]
        return _record(task, DIVERGED, reasons[-1] if reasons else "numbers are not finite")
    if stopped or code in _STOP_CODES:
        return None
    return _record(task, FAILED, _explain(code, task.log))


def collect(task: RunTask) -> Record | None:
    """Return the record of a run whose folder has the scores of its last iteration, or None.

    The checkpoints and the network are removed.
    """
    try:
        scores = files.read_json(task.folder / run_folder.SCORES)
        done = isinstance(scores, dict) and scores.get("iteration") == task.run.recipe.train.iterations
        if not done or run_folder.is_locked(task.folder):
            return None
        record = _record(task, OK, scores=scores)
    except ValueError:  # the file or a score is missing or damaged
        return None
    for heavy in (CHECKPOINTS, MODEL):
        shutil.rmtree(task.folder / heavy, ignore_errors=True)
    return record


def progress(folder: Path) -> int:
    """Return the last iteration in a run's metrics; 0 if there is none."""
    try:
        files.check_regular(folder / METRICS)
        return int((folder / METRICS).read_text(encoding="utf-8").splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _run_process(task: RunTask) -> tuple[int, bool]:
    """Return the exit code of ``repgraph train``, and whether it was asked to stop."""
    recipe, folder = task.run.recipe, task.folder
    if task.jobs > 1 and recipe.data.workers == -1:
        recipe = with_values(recipe, {"data.workers": num_workers(-1, task.jobs)})
    path = folder.with_name(f".{task.run.key}.json")
    if (folder / RECIPE).is_file() and run_folder.last_checkpoint(folder) is not None:
        values = recipe.model_dump(mode="json")
        changes = [(name, values[section][field]) for name in RESUMABLE for section, field in [name.split(".")]]
        settings = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in changes]
        arguments = ["--resume", str(folder), "--set", *settings]
    else:  # new, or killed before the first checkpoint
        shutil.rmtree(folder, ignore_errors=True)
        files.write(path, to_json(recipe))
        arguments = [str(path), "--out", str(folder)]
    command = shlex.split(os.environ.get(COMMAND, "")) or [sys.executable, "-P", "-m", "repgraph"]
    variables = {"OMP_NUM_THREADS": str(max(1, cpu_count() // task.jobs))} if task.jobs > 1 else {}
    stopped = False
    with _gpu(task) as gpu, task.log.open("wb") as log:
        process = subprocess.Popen(
            [*command, "train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**variables, **os.environ, **gpu},
            start_new_session=True,  # Ctrl-C does not reach it directly
        )
        while process.poll() is None:
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                stop = task.stop.exists()
            except KeyboardInterrupt:  # in a process of a pool, or a second Ctrl-C
                if stopped:
                    raise
                stop = True
            if stop and not stopped and process.poll() is None:
                process.terminate()
                stopped = True
    path.unlink(missing_ok=True)
    return process.returncode, stopped


@contextlib.contextmanager
def _gpu(task: RunTask) -> Iterator[dict[str, str]]:
    """Reserve the next free GPU of this machine, if it has several, and yield the variables that select it."""
    count = torch.cuda.device_count()
    if count < 2 or task.run.recipe.train.devices > 1:
        yield {}
        return
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = names if len(names) >= count else [str(index) for index in range(count)]
    folder = task.out / ".slots"
    folder.mkdir(exist_ok=True)
    for slot in itertools.count():
        with contextlib.suppress(Timeout), FileLock(folder / f"{socket.gethostname()}-{slot}", timeout=0):
            yield {"CUDA_VISIBLE_DEVICES": names[slot % count]}
            return


def _explain(code: int, log: Path) -> str:
    """Return why a run failed: its exit code or signal, and the last line of its output."""
    how = f"exit code {code}" if code else "it finished without scores"
    if code < 0:
        how = f"killed by {signal.Signals(-code).name}"
        how += " (out of memory?)" if code == -signal.SIGKILL else ""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"{how}: {last[:300]} ({log})"


def _record(task: RunTask, status: str, reason: str = "", scores: Mapping[str, float] | None = None) -> Record:
    """Return the record of a run, with the versions, device and time recorded in its folder."""
    run, sessions = task.run, run_folder.sessions(task.folder)
    versions = sessions[-1].versions if sessions else {}
    gpu = versions.get("gpu") if run.recipe.train.accelerator != "cpu" else None
    return Record(
        key=run.key,
        dataset=run.recipe.data.name,
        seed=run.seed,
        status=status,  # type: ignore[arg-type]  # validated
        **{name: (scores or {}).get(name) for name in SUMMARY},
        iterations=progress(task.folder),
        seconds=sum((each.ended.at - each.started).total_seconds() for each in sessions if each.ended),
        settings=run.settings,
        weights=weights_name(run.recipe.model.weights),
        device=gpu or device_name(torch.device("cpu")),
        **{name: versions.get(name) or "" for name in ("repgraph", "torch", "python")},
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        reason=" ".join(reason.split()),
    )
