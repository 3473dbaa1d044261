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
from joblib import Parallel, delayed, parallel_config

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
POLL = 0.2  # seconds between checks whether a run has ended, or shall stop
_STOP_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGTERM)


@dataclass(frozen=True)
class RunTask:
    """A run for a worker, which may be on another machine with the same folders.

    It is trained in ``out/runs/KEY``; the output of one that fails is in ``KEY.log``. Once the file ``stop`` exists, it
    writes a checkpoint and stops.
    """

    run: PlannedRun
    out: Path
    stop: Path
    jobs: int  # number of runs that share the cores of the machine


def train_all(tasks: Iterable[RunTask], jobs: int, backend: str, cluster: str) -> Iterator[tuple[Record | None, str]]:
    """Train all tasks, ``jobs`` at a time, and yield the results of :func:`train_one`.

    ``backend`` is one of joblib's: "threading", "loky", or "dask", for which ``cluster`` is the scheduler's address.
    """
    options = {"scheduler_host": cluster} if cluster else {}
    try:
        with parallel_config(backend, n_jobs=jobs, **options):
            parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
            yield from parallel(delayed(train_one)(task) for task in tasks)
    except Exception as error:
        if backend == "threading":
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--backend {backend} failed ({reason}); repeat the command to continue") from error


def train_one(task: RunTask) -> tuple[Record | None, str]:
    """Train a run, from its checkpoint if it has one, and return its record and a line about it.

    Errors make a failed record and are not raised. The record is None if the run was stopped or another process is
    training it.
    """
    run, folder = task.run, run_path(task.out, task.run)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{run.key}.lock"), timeout=0):
            if run_folder.is_locked(folder, run_folder.LOCK_TIMEOUT):
                raise Timeout(str(folder))
            record = collect(run, folder) or _run_process(task, folder)
    except Timeout:
        return None, f"{run}: skipped, another process is training it"
    except Exception as error:
        record = _record(run, folder, FAILED, f"{type(error).__name__}: {error}")
    if record is None or record.done:
        folder.with_suffix(".log").unlink(missing_ok=True)
    if record is None:
        return None, f"{run}: stopped"
    if record.miou is None:
        return record, f"{run}: {record.status}: {record.reason}"
    return record, f"{run}: mIoU {100 * record.miou:.2f} in {format_duration(record.seconds)}"


def _run_process(task: RunTask, folder: Path) -> Record | None:
    """Run ``repgraph train``, and return the record of the run, or None if it was stopped."""
    run, jobs, stopped = task.run, task.jobs, False
    command = shlex.split(os.environ.get(COMMAND, "")) or [sys.executable, "-P", "-m", "repgraph"]
    variables = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // jobs))} if jobs > 1 else {}
    with _gpu(task) as gpu, folder.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "train", *_arguments(run, folder, jobs)],
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
            if stop and not stopped:
                process.terminate()
                stopped = True
    folder.with_suffix(".json").unlink(missing_ok=True)
    if record := collect(run, folder):
        return record
    if process.returncode == NOT_FINITE:
        reasons = [session.ended.reason for session in run_folder.sessions(folder) if session.ended]
        return _record(run, folder, DIVERGED, reasons[-1] if reasons else "numbers are not finite")
    if stopped or process.returncode in _STOP_CODES:
        return None
    return _record(run, folder, FAILED, _explain(process.returncode, folder.with_suffix(".log")))


def run_path(out: Path, run: PlannedRun) -> Path:
    """Return the folder of a run."""
    return out / RUNS / run.key


def _arguments(run: PlannedRun, folder: Path, jobs: int) -> list[str]:
    """Return the arguments of ``repgraph train`` that resume a run, or start it if it has no checkpoint."""
    recipe = run.recipe
    if jobs > 1 and recipe.data.workers == -1:
        recipe = with_values(recipe, {"data.workers": num_workers(-1, jobs)})
    if not (folder / RECIPE).is_file() or run_folder.last_checkpoint(folder) is None:
        shutil.rmtree(folder, ignore_errors=True)
        files.write(folder.with_suffix(".json"), to_json(recipe))
        return [str(folder.with_suffix(".json")), "--out", str(folder)]
    values, settings = recipe.model_dump(mode="json"), []
    for name in RESUMABLE:
        section, field = name.split(".")
        value = values[section][field]
        settings.append(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
    return ["--resume", str(folder), "--set", *settings]


@contextlib.contextmanager
def _gpu(task: RunTask) -> Iterator[dict[str, str]]:
    """Reserve the next free GPU of this machine, if it has several, and yield the variable that selects it."""
    count = torch.cuda.device_count()
    if count < 2 or task.run.recipe.train.devices > 1:
        yield {}
        return
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = names if len(names) >= count else [str(index) for index in range(count)]
    for slot in itertools.count():
        path = task.out / RUNS / f".{socket.gethostname()}-{slot}.lock"
        with contextlib.suppress(Timeout), FileLock(path, timeout=0):
            yield {"CUDA_VISIBLE_DEVICES": names[slot % count]}
            return


def collect(run: PlannedRun, folder: Path) -> Record | None:
    """Return the record of a run whose folder has the scores of its last iteration, or None.

    The checkpoints and the network are removed.
    """
    try:
        scores = files.read_json(folder / run_folder.SCORES)
        done = isinstance(scores, dict) and scores.get("iteration") == run.recipe.train.iterations
        if not done or run_folder.is_locked(folder):
            return None
        record = _record(run, folder, OK, scores=scores)
    except ValueError:  # the file or a score is missing or damaged
        return None
    for heavy in (CHECKPOINTS, MODEL):
        shutil.rmtree(folder / heavy, ignore_errors=True)
    return record


def progress(folder: Path) -> int:
    """Return the last iteration in a run's metrics; 0 if there is none."""
    try:
        files.check_regular(folder / METRICS)
        return int((folder / METRICS).read_text(encoding="utf-8").splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return 0


def _explain(code: int, log: Path) -> str:
    """Return why a run failed: its exit code or signal, and the last line of its output."""
    how = f"exit code {code}" if code else "it finished without scores"
    if code < 0:
        how = f"killed by {signal.Signals(-code).name}"
        how += " (out of memory?)" if code == -signal.SIGKILL else ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no output"]
    return f"{how}: {lines[-1].strip()[:300]} ({log})"


def _record(
    run: PlannedRun, folder: Path, status: str, reason: str = "", scores: Mapping[str, float] | None = None
) -> Record:
    """Return the record of a run, with the versions, device and time recorded in its folder."""
    sessions = run_folder.sessions(folder)
    versions = sessions[-1].versions if sessions else {}
    gpu = versions.get("gpu") if run.recipe.train.accelerator != "cpu" else None
    return Record(
        key=run.key,
        dataset=run.recipe.data.name,
        seed=run.seed,
        status=status,  # type: ignore[arg-type]  # validated
        **{name: (scores or {}).get(name) for name in SUMMARY},
        iterations=progress(folder),
        seconds=sum((each.ended.at - each.started).total_seconds() for each in sessions if each.ended),
        settings=run.settings,
        weights=weights_name(run.recipe.model.weights),
        device=gpu or device_name(torch.device("cpu")),
        **{name: versions.get(name) or "" for name in ("repgraph", "torch", "python")},
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        reason=" ".join(reason.split()),
    )
