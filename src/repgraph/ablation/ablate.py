"""Ablations: plan the runs, train the missing ones, and make the tables."""

import contextlib
import io
import math
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from repgraph.ablation import runner, summary, tuning
from repgraph.ablation.plan import LOCAL_BACKENDS, TUNE, Layout, Plan, check_ready, lay_out
from repgraph.ablation.results import OK, Record, Results
from repgraph.ablation.runner import RUNS, RunTask
from repgraph.ablation.tables import PlannedRun
from repgraph.errors import UsageError
from repgraph.files import check_writable, write
from repgraph.progress import Progress
from repgraph.train.signals import StopSignals

SIGNALS = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}  # SIGHUP is ignored under nohup


@dataclass
class AblationReport:
    """The result of a plan: tables as Markdown, written files, notes, and runs that failed or are left to do.

    ``signal`` is the signal that stopped the ablation, or 0.
    """

    tables: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)
    left: list[PlannedRun] = field(default_factory=list)
    signal: int = 0

    @property
    def code(self) -> int:
        """The exit code: 0, 1 if a run failed or diverged, 130 or 143 if stopped by SIGINT or SIGTERM."""
        return 128 + self.signal if self.signal else int(bool(self.failed))


def ablate(plan: Plan, show: TextIO | None = None) -> AblationReport:
    """Train all runs of a plan that are not done, and make its tables from all results.

    The same call resumes after an interruption. Data and weights are only required if there are runs to do. Progress is
    printed to ``show``, such as ``sys.stderr``.
    """
    results = Results(plan.out)
    records = results.read()
    layout = lay_out(plan, records)
    check_writable(results.path)
    out = Path(os.path.abspath(plan.out))
    stop = out / f".stop-{uuid.uuid4().hex[:8]}"
    tasks = [RunTask(run, out, stop) for run in layout.runs]
    if finished := list(filter(None, map(runner.collect, _todo(tasks, records)))):
        records = results.add(finished)
    todo = _todo(tasks, records)
    number = 0
    if todo:
        check_ready(plan)
        out.mkdir(parents=True, exist_ok=True)
        todo.sort(key=lambda task: runner.progress(task.folder) == 0)  # interrupted runs first
        number = _train(plan, todo, len(tasks), results, show or io.StringIO())
        records = results.read()
    report = _make_tables(plan, layout, records, save=True)
    report.signal = number
    return report


def show_tables(plan: Plan) -> AblationReport:
    """Return the tables of a plan from the results so far; nothing is trained or written."""
    results = Results(plan.out)
    if not os.path.exists(results.path):
        raise UsageError(f"there are no results in {plan.out}: no {results.path}; give their folder with --out")
    records = results.read()
    layout = lay_out(plan, records)
    report = _make_tables(plan, layout, records, save=False)
    if len(report.left) == len(layout.runs):
        others = sum(record.dataset == plan.dataset for record in records.values())
        raise UsageError(
            f"{results.path} has no run of {plan.table} on {plan.dataset} with these settings ({others} with others); "
            "give --set, --weights, --tuned, --seeds and, for a folder of images, --data as for training"
        )
    return report


def listing(plan: Plan) -> str:
    """Return the runs of a plan, one per line, and which of them are done."""
    records = Results(plan.out).read()
    layout = lay_out(plan, records)
    lines = []
    for run in layout.runs:
        iteration = runner.progress(plan.out / RUNS / run.key)
        state = f"iteration {iteration}" if iteration else "to do"
        state = records[run.key].status if run.key in records else state
        lines.append((run.key, state, f"seed {run.seed}", run.label, run.settings or "as the recipe has it"))
    states, labels = (max(len(line[column]) for line in lines) for column in (1, 3))
    shown = [f"{key}  {state:{states}}  {seed}  {label:{labels}}  {text}" for key, state, seed, label, text in lines]
    misfits = [f"{row.entry.label}: {row.misfit}" for _, rows in layout.tables for row in rows if row.misfit]
    count = len(lines) - sum(run.key in records and records[run.key].done for run in layout.runs)
    return "\n".join([*shown, *layout.notes, *misfits, f"{count} of {len(lines)} runs to do"])


def _todo(tasks: Sequence[RunTask], records: Mapping[str, Record]) -> list[RunTask]:
    return [task for task in tasks if task.run.key not in records or not records[task.run.key].done]


def _train(plan: Plan, todo: Sequence[RunTask], total: int, results: Results, show: TextIO) -> int:
    """Train runs and add their records to the results; return the signal that stopped them, or 0."""
    jobs, done = min(plan.jobs, len(todo)), total - len(todo)
    if plan.backend in LOCAL_BACKENDS:
        todo = [replace(task, jobs=jobs) for task in todo]

    def report_line(text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal
            progress.print(text)

    def pending() -> Iterator[RunTask]:
        for task in todo:
            if task.stop.exists():
                return
            iteration = runner.progress(task.folder)
            report_line(f"{task.run}: resumed near iteration {iteration}" if iteration else f"{task.run}: started")
            yield task

    def stop_runs(signal_name: str) -> None:
        todo[0].stop.touch()
        report_line(f"{signal_name}: runs write a checkpoint and stop (Ctrl-C again: do not wait for them)")

    watched = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    progress = Progress("ablation", total, show, unit="runs", start=done)
    progress.every = math.inf
    try:
        with progress, StopSignals(stop_runs, watched) as signals:
            for record, text in runner.train_all(pending(), jobs, plan.backend, plan.cluster):
                if record is not None:
                    results.add([record])
                    done += record.done
                progress.update(done)
                left = progress.remaining(done) if done < total else ""
                report_line(f"{text} ({done} of {total} runs done{f', about {left} left' if left else ''})")
    except BaseException:  # also stops the other runs
        todo[0].stop.touch()
        time.sleep(2 * runner.POLL)
        raise
    finally:
        todo[0].stop.unlink(missing_ok=True)
    return signals.received


def _make_tables(plan: Plan, layout: Layout, records: Mapping[str, Record], *, save: bool) -> AblationReport:
    """Make each table as CSV, Markdown and picture, and ``tuning.csv`` for "tune"; ``save`` writes them."""
    report = AblationReport()
    data, notes = layout.start.data, [*_conditions(plan, layout, records), *layout.notes]
    axis = f"mIoU on {f'held-out images of {data.split}' if data.hold_out else data.val_split}, %"
    tuned: dict[str, list[summary.EntrySummary]] = {}
    for table, rows in layout.tables:
        own = list(notes)
        summarized = summary.summarize(table, rows, records)
        if plan.table == TUNE:
            tuned[table.entries[0].kind] = summarized
            chosen = tuning.best(summarized)
            own.append(f"Chosen: {chosen.entry.label}." if chosen else "Nothing is chosen before all trials are done.")
        report.tables.append(summary.markdown(table, summarized, own))
        if not save:
            continue
        path = plan.out / f"{table.name}-{plan.dataset}"
        report.files.append(write(path.with_suffix(".md"), report.tables[-1]))
        report.files.append(write(path.with_suffix(".csv"), summary.to_csv(table, summarized)))
        try:
            from repgraph.ablation.figure import save_figure

            report.files.append(save_figure(table, summarized, path.with_suffix(".png"), axis, " ".join(notes[:2])))
        except Exception as error:  # tables do not need matplotlib
            reason = " ".join(f"{type(error).__name__}: {error}".split()).removeprefix("UsageError: ")
            report.notes.append(f"no picture of {table.name}: {reason}")
    if save and tuned:
        report.files.append(tuning.save(plan.out, plan.dataset, tuned))
    report.failed = [records[run.key] for run in layout.runs if run.key in records and records[run.key].status != OK]
    report.left = [run for run in layout.runs if run.key not in records]
    return report


def _conditions(plan: Plan, layout: Layout, records: Mapping[str, Record]) -> list[str]:
    recipe, data = layout.start, layout.start.data
    images = f"one image of {data.split} in {data.hold_out}, held out of training" if data.hold_out else data.val_split
    used = [records[run.key] for run in layout.runs if run.key in records]
    devices = ", ".join(sorted({record.device for record in used if record.device}))
    torch = ", ".join(sorted({record.torch for record in used if record.torch}))
    settings = f" --set {' '.join(plan.settings)}" if plan.settings else ""
    tuned = f" --tuned {plan.tuned}" if plan.tuned else ""
    return [
        f"{plan.dataset}: {recipe.model.backbone} from {Path(recipe.model.weights).name or 'unknown weights'}, "
        f"{recipe.train.iterations} iterations of {recipe.train.batch} images, {recipe.train.precision}; "
        f"tested on {images}, at scale 1.",
        f"Seeds {' '.join(map(str, plan.seeds))}.{settings}{tuned}",
        *([f"On {devices}; torch {torch}."] if devices else []),
    ]
