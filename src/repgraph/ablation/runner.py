"""Runs as subprocesses: each one is ``repgraph train``, started by joblib on this machine or on a cluster."""

import contextlib
import datetime
import itertools
import json
import math
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch
from filelock import FileLock, Timeout
from joblib import Parallel, delayed, parallel_config

from repgraph import files
from repgraph.ablation.key import weights_name
from repgraph.ablation.results import DIVERGED, FAILED, OK, Record, Results
from repgraph.ablation.tables import PlannedRun
from repgraph.constants import CHECKPOINTS, MODEL, RECIPE
from repgraph.errors import UsageError
from repgraph.evaluation.segmentation import SUMMARY
from repgraph.info import device_name
from repgraph.progress import Progress, format_duration
from repgraph.recipes import RESUMABLE, to_json, with_values
from repgraph.train import run_folder
from repgraph.train.loop import NOT_FINITE
from repgraph.train.metrics import METRICS
from repgraph.train.signals import stop_signals
from repgraph.train.stream import num_workers

COMMAND = "REPGRAPH_COMMAND"  # environment variable: the command that starts repgraph, instead of this Python
POLL = 0.2  # seconds between checks whether a run has ended, or shall stop


def train_all(
    todo: Sequence[PlannedRun], results: Results, jobs: int, total: int, show: TextIO, backend: str, cluster: str
) -> int:
    """Train runs, ``jobs`` at a time, and add their records to the results; return the signal that stopped them, or 0.

    A run is trained in ``runs/KEY`` of the folder of the results; the output of one that fails is in ``KEY.log``.
    ``backend`` is one of joblib's: "threading", "loky", or "dask", for which ``cluster`` is the scheduler's address.
    """
    out, done, jobs = results.folder.absolute(), total - len(todo), min(jobs, len(todo))
    out.mkdir(parents=True, exist_ok=True)
    stop = out / f".stop-{secrets.token_hex(4)}"  # seen by workers on other machines, too
    share = 1 if cluster else jobs  # runs that share the cores of a machine
    bar = Progress("ablation", total, show, unit="runs", start=done)
    bar.every = math.inf

    def tasks() -> Iterator[Any]:
        for run in sorted(todo, key=lambda run: progress(run_path(out, run)) == 0):  # interrupted runs first
            if stop.exists():
                return
            iteration = progress(run_path(out, run))
            bar.print(f"{run}: resumed near iteration {iteration}" if iteration else f"{run}: started")
            yield delayed(_train)(out, share, stop, run)

    def stop_runs(signal_name: str) -> None:
        stop.touch()
        bar.print(f"{signal_name}: waiting for runs to write a checkpoint; press Ctrl-C again to exit at once")

    options = {"scheduler_host": cluster} if cluster else {}
    try:
        with bar, stop_signals(stop_runs) as received, parallel_config(backend, n_jobs=jobs, **options):
            parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
            for record, text in parallel(tasks()):
                if record is not None:
                    results.add([record])
                    done += record.done
                bar.update(done)
                left = bar.remaining(done) if done < total else ""
                bar.print(f"{text} ({done} of {total} runs done{f', about {left} left' if left else ''})")
    except BaseException as error:
        stop.touch()
        time.sleep(2 * POLL)  # until the other runs are asked to stop
        if backend == "threading" or not isinstance(error, Exception):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--backend {backend} failed ({reason}); repeat the command to continue") from error
    finally:
        stop.unlink(missing_ok=True)
    return max(received, default=0)


def _train(out: Path, share: int, stop: Path, run: PlannedRun) -> tuple[Record | None, str]:
    """Train a run, from its checkpoint if it has one, and return its record and a line about it.

    Errors make a failed record. The record is None if the run was stopped or another process is training it.
    """
    folder = run_path(out, run)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{run.key}.lock"), timeout=0):
            if run_folder.is_locked(folder, run_folder.LOCK_TIMEOUT):
                raise Timeout(str(folder))
            record = _collect(run, folder) or _run_process(run, folder, share, stop)
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


def _run_process(run: PlannedRun, folder: Path, share: int, stop: Path) -> Record | None:
    """Run ``repgraph train``, and return the record of the run, or None if it was stopped."""
    command = shlex.split(os.environ.get(COMMAND, "")) or [sys.executable, "-P", "-m", "repgraph"]
    variables = {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // share))} if share > 1 else {}
    log, stopped = folder.with_suffix(".log"), False
    with _gpu(run, folder.parent) as gpu, log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "train", *_arguments(run, folder, share)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**variables, **os.environ, **gpu},
            start_new_session=True,  # Ctrl-C does not reach it directly
        )
        while process.poll() is None:
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                asked = stop.exists()
            except KeyboardInterrupt:  # in a process of a pool, or a second Ctrl-C
                if stopped:
                    raise
                asked = True
            if asked and not stopped:
                process.terminate()
                stopped = True
    code = process.returncode
    folder.with_suffix(".json").unlink(missing_ok=True)
    if record := _collect(run, folder):
        return record
    if code == NOT_FINITE:
        reasons = [session.ended.reason for session in run_folder.sessions(folder) if session.ended]
        return _record(run, folder, DIVERGED, reasons[-1] if reasons else "numbers are not finite")
    if stopped or code in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGTERM):
        return None
    return _record(run, folder, FAILED, _explain(code, log))


def run_path(out: Path, run: PlannedRun) -> Path:
    return out / "runs" / run.key


def _arguments(run: PlannedRun, folder: Path, share: int) -> list[str]:
    """Return the arguments of ``repgraph train`` that resume a run, or start it if it has no checkpoint."""
    recipe = run.recipe
    if share > 1 and recipe.data.workers == -1:
        recipe = with_values(recipe, {"data.workers": num_workers(-1, share)})
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
def _gpu(run: PlannedRun, folder: Path) -> Iterator[dict[str, str]]:
    """Reserve the next free GPU of this machine, if it has several, and yield the variable that selects it."""
    count = torch.cuda.device_count()
    if count < 2 or run.recipe.train.devices > 1:
        yield {}
        return
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = names if len(names) >= count else [str(index) for index in range(count)]
    for slot in itertools.count():
        path = folder / f".{socket.gethostname()}-{slot}.lock"
        with contextlib.suppress(Timeout), FileLock(path, timeout=0):
            yield {"CUDA_VISIBLE_DEVICES": names[slot % count]}
            return


def _collect(run: PlannedRun, folder: Path) -> Record | None:
    """Return the record of a run that has the scores of its last iteration, and remove its networks; else None."""
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
        how = f"killed by {signal.Signals(-code).name}{' (out of memory?)' if code == -signal.SIGKILL else ''}"
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
