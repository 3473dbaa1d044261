"""Ablations from beginning to end: lay out the runs, do what is not done, and make the tables."""

import contextlib
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from repgraph.engine.ablation import picture, pool, summary, tuning
from repgraph.engine.ablation.job import Ended, Task, progress
from repgraph.engine.ablation.plan import TUNE, Layout, Plan, about, check_ready, lay_out, recipe_of
from repgraph.engine.ablation.results import DIVERGED, OK, RUNS, Record, Results, mean_seconds
from repgraph.engine.ablation.runs import Run
from repgraph.engine.progress import duration
from repgraph.errors import UsageError
from repgraph.files import check_folder, write_text

FAILED_CODE = 1


@dataclass
class Report:
    """What came of a plan: tables as Markdown, files, what is to be said of them, and runs that failed or are left."""

    tables: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)
    left: list[Run] = field(default_factory=list)
    signal: int = 0  # by which it was stopped

    @property
    def code(self) -> int:
        """The exit code: 0, 1 if a run failed, 130 or 143 if stopped by SIGINT or SIGTERM."""
        return 128 + self.signal if self.signal else FAILED_CODE if self.failed else 0


def ablate(plan: Plan, show: TextIO | None = None) -> Report:
    """Do all runs of a plan that are not done, and make its tables from all results there are.

    Progress goes to ``show``; None for nowhere. What is done stays done: the same call goes on after a stop. Data and
    weights have to be there only if a run is to be done.
    """
    results = Results(plan.out)
    lay_out(plan, results.read())  # mistakes in the plan come first
    check_folder(plan.out)
    records = results.collect()
    layout = lay_out(plan, records)
    ours = {run.key for run in layout.runs} if plan.again else set()
    gone = [key for key, record in records.items() if key in ours and record.status == DIVERGED]
    records = {key: record for key, record in records.items() if key not in gone}
    if to_do(layout, records, plan.out):
        check_ready(plan)
    _forget(plan, results, gone)  # only now: a mistake forgets nothing
    todo = to_do(layout, records, plan.out)
    ended, number = _schedule(plan, layout, todo, records, results, show)
    report = make_tables(plan, layout, results.collect())
    done = {one.key for one in ended if one.status in (OK, DIVERGED)}
    failed = {record.key for record in report.failed}
    report.left = [run for run in todo if run.key not in done | failed]
    report.signal = number
    return report


def show_tables(plan: Plan) -> Report:
    """The tables of what is there; nothing is trained, and nothing written."""
    results = Results(plan.out)
    if not results.path.exists():
        raise UsageError(f"there are no results in {plan.out}: no {results.path}; give their folder with --out")
    records = results.read()
    layout = lay_out(plan, records)
    report = make_tables(plan, layout, records, save=False)
    report.left = [run for run in layout.runs if run.key not in records]
    if len(report.left) == len(layout.runs):
        others = sum(record.dataset == plan.dataset for record in records.values())
        raise UsageError(
            f"{results.path} has no run of {plan.table} on {plan.dataset} with these settings ({others} with others); "
            "give --set, --weights, --tuned, --seeds and, for a folder of your own, --data as for training"
        )
    return report


def to_do(layout: Layout, records: Mapping[str, Record], out: Path) -> list[Run]:
    """Runs without a result, first those that have a checkpoint to go on from."""
    left = [run for run in layout.runs if run.key not in records or not records[run.key].done]
    return sorted(left, key=lambda run: progress(out / RUNS / run.key) == 0)


def listing(plan: Plan) -> str:
    """What would be done, and what is done, a line for each run."""
    records = Results(plan.out).read()
    layout = lay_out(plan, records)
    todo = to_do(layout, records, plan.out)
    lines = []
    for run in layout.runs:
        record, part = records.get(run.key), progress(plan.out / RUNS / run.key)
        state = record.status if record else f"iteration {part}" if part else "to do"
        lines.append((run.key, state, f"seed {run.seed}", run.label, run.settings or "as the recipe has it"))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    shown = ["  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]) for line in lines]
    mean = mean_seconds(records.values(), plan.dataset, layout.start.train.iterations)
    told = f", about {duration(mean * len(todo) / plan.jobs)}" if mean and todo else ""
    misfits = [f"{line.entry.label}: {line.misfit}" for _, found in layout.tables for line in found if line.misfit]
    return "\n".join([*shown, *layout.notes, *misfits, f"{len(todo)} of {len(lines)} runs to do{told}"])


def make_tables(plan: Plan, layout: Layout, records: Mapping[str, Record], save: bool = True) -> Report:
    """Each table as CSV, Markdown and picture, and what was chosen where trials were made; ``save`` writes them."""
    report = Report()
    made = []
    notes = [*_conditions(plan, layout, records), *layout.notes]
    for table, lines in layout.tables:
        found = summary.rows(table, lines, records)
        own = list(notes)
        if plan.table == TUNE:
            chosen = tuning.best(lines, records)
            own.append(f"Chosen: {chosen.entry.label}." if chosen else "Nothing is chosen before all trials are done.")
        text = summary.markdown(table, found, own)
        for suffix, content in ((".md", text), (".csv", summary.to_csv(table, found))):
            if save:
                path = plan.out / f"{table.name}-{plan.dataset}{suffix}"
                write_text(path, content)
                report.files.append(path)
        report.tables.append(text)
        made.append((table, found))
    if plan.table == TUNE and save:
        tuned = {table.entries[0].kind: lines for table, lines in layout.tables}
        report.files.append(tuning.save(plan.out, plan.dataset, tuned, records))
    if save:  # after all that needs no matplotlib
        files, told = picture.save(plan, layout.start, made)
        report.files += files
        report.notes += told
    ended = [records[run.key] for run in layout.runs if run.key in records]
    report.failed = [record for record in ended if record.status != OK]
    return report


def _conditions(plan: Plan, layout: Layout, records: Mapping[str, Record]) -> list[str]:
    recipe = layout.start
    held = recipe.data.hold_out
    images = f"one image of {recipe.data.split} in {held}, held out of training" if held else ""
    used = [records[run.key] for run in layout.runs if run.key in records]
    devices = ", ".join(sorted({r.device for r in used if r.device}))
    torch = ", ".join(sorted({r.torch for r in used}))
    given = [f"--set {' '.join(plan.settings)}" if plan.settings else "", f"--tuned {plan.tuned}" if plan.tuned else ""]
    return [
        f"{plan.dataset}: {recipe.model.backbone} from {Path(recipe.model.weights).name or 'weights not said'}, "
        f"{recipe.train.iterations} iterations of {recipe.train.batch} images, {recipe.train.precision}; "
        f"tested on {images or recipe.data.val_split}, at scale 1.",
        f"Seeds {' '.join(map(str, plan.seeds))}. {' '.join(filter(None, given))}".strip(),
        *([f"On {devices}; torch {torch}."] if devices else []),
    ]


def _forget(plan: Plan, results: Results, keys: list[str]) -> None:
    if keys:
        results.forget(keys)
        for key in keys:
            shutil.rmtree(plan.out / RUNS / key, ignore_errors=True)


def _schedule(
    plan: Plan, layout: Layout, todo: list[Run], records: Mapping[str, Record], results: Results, show: TextIO | None
) -> tuple[list[Ended], int]:
    """Do the runs: how each ended, and the signal by which all was stopped, or 0."""
    if not todo:
        return [], 0
    plan = replace(plan, jobs=min(plan.jobs, len(todo)))  # cores are divided among those that there are
    stop = plan.out / f".{uuid.uuid4().hex[:8]}.stop"
    deadline = None if plan.time_limit is None else time.time() + plan.time_limit
    tasks = [_task(run, plan, stop, deadline) for run in todo]
    usual = mean_seconds(records.values(), plan.dataset, layout.start.train.iterations)
    ended: list[Ended] = []
    with _asked(stop) as asked, _board(layout, tasks, records, usual, plan, show) as board:
        if len(todo) < len(layout.runs):
            board.say(f"{len(layout.runs) - len(todo)} of {len(layout.runs)} runs are done already")
        asked.say = board.say
        try:
            for one in pool.ended(tasks, plan.jobs, plan.backend, plan.cluster):
                ended.append(one)
                if one.record is not None:
                    results.add([one.record])
                board.end(one)
        except UsageError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"the pool of --backend {plan.backend} broke ({reason}); runs that ended are kept: repeat the command"
            ) from error
    return ended, asked.signal


def _task(run: Run, plan: Plan, stop: Path, deadline: float | None) -> Task:
    return Task(
        about=about(run, plan.dataset),
        recipe=recipe_of(run, plan),
        out=str(plan.out.absolute()),
        stop=str(stop.absolute()),
        jobs=plan.jobs,
        keep=plan.keep,
        deadline=deadline,
        pid=os.getpid(),
    )


def _board(
    layout: Layout,
    tasks: list[Task],
    records: Mapping[str, Record],
    usual: float | None,
    plan: Plan,
    show: TextIO | None,
) -> Any:
    from repgraph.engine.ablation.board import Board

    return Board(layout.runs, tasks, records, usual, plan.jobs, show)


class _Asked:
    """Whether a signal asked for an end; the first leaves a file that tells the runs, the second does not wait."""

    def __init__(self, stop: Path) -> None:
        self.stop, self.signal, self.say = stop, 0, print

    def hear(self, number: int, frame: Any) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        self.stop.touch()
        name = signal.Signals(number).name
        self.say(f"{name}: runs write a checkpoint and stop (once more: at once, from the checkpoint before)")


@contextlib.contextmanager
def _asked(stop: Path) -> Iterator[_Asked]:
    asked = _Asked(stop)
    before = {}
    if threading.current_thread() is threading.main_thread():  # others cannot hear signals
        before = {number: signal.signal(number, asked.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.unlink(missing_ok=True)


def left_over(report: Report) -> str:
    """What is left, in a line; empty if nothing is."""
    if not report.left:
        return ""
    named = ", ".join(f"{run.label}, seed {run.seed}" for run in report.left[:3])
    more = f" and {len(report.left) - 3} more" if len(report.left) > 3 else ""
    return f"{len(report.left)} runs are left ({named}{more}); the same command goes on with them, without --show"
