"""Ablations: plan the runs, train the missing ones, and make the tables."""

import io
import math
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from repgraph.ablation import runner, summary, tuning
from repgraph.ablation.plan import LOCAL_BACKENDS, TUNE, Layout, Plan, check_ready, lay_out
from repgraph.ablation.results import OK, Record, Results
from repgraph.ablation.runner import RunTask, run_path
from repgraph.ablation.tables import PlannedRun
from repgraph.errors import UsageError
from repgraph.files import check_writable, write
from repgraph.progress import Progress
from repgraph.train.signals import stop_signals


@dataclass
class AblationReport:
    """The result of a plan: tables as Markdown, written files, and runs that failed or are left to do.

    ``signal`` is the signal that stopped the ablation, or 0.
    """

    tables: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
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
    ended = (runner.collect(run, run_path(plan.out, run)) for run in _todo(layout, records))
    if found := [record for record in ended if record is not None]:
        records = results.add(found)
    number = 0
    if todo := _todo(layout, records):
        check_ready(plan)
        number = _train(plan, todo, len(layout.runs), results, show or io.StringIO())
        records = results.read()
    report = _make_tables(plan, layout, records, save=True)
    report.signal = number
    return report


def show_tables(plan: Plan) -> AblationReport:
    """Return the tables of a plan from the results so far; nothing is trained or written."""
    results = Results(plan.out)
    records = results.read()
    layout = lay_out(plan, records)
    report = _make_tables(plan, layout, records, save=False)
    if len(report.left) == len(layout.runs):
        missing = f"{results.path} has no run of {plan.table} on {plan.dataset} with these settings"
        raise UsageError(f"{missing}; give --out, --set, --weights, --tuned, --seeds and --data as for training")
    return report


def listing(plan: Plan) -> str:
    """Return the runs of a plan, one per line, and which of them are done."""
    records = Results(plan.out).read()
    layout = lay_out(plan, records)
    lines = []
    for run in layout.runs:
        iteration = runner.progress(run_path(plan.out, run))
        state = f"iteration {iteration}" if iteration else "to do"
        state = records[run.key].status if run.key in records else state
        lines.append(f"{run.key}  {state:12}  {run}: {run.settings or 'as the recipe has it'}")
    lines += layout.notes
    lines += [f"{row.entry.label}: {row.misfit}" for _, rows in layout.tables for row in rows if row.misfit]
    return "\n".join([*lines, f"{len(_todo(layout, records))} of {len(layout.runs)} runs to do"])


def _todo(layout: Layout, records: Mapping[str, Record]) -> list[PlannedRun]:
    return [run for run in layout.runs if run.key not in records or not records[run.key].done]


def _train(plan: Plan, todo: list[PlannedRun], total: int, results: Results, show: TextIO) -> int:
    """Train runs and add their records to the results; return the signal that stopped them, or 0."""
    todo = sorted(todo, key=lambda run: runner.progress(run_path(plan.out, run)) == 0)  # interrupted runs first
    done, jobs, out = total - len(todo), min(plan.jobs, len(todo)), plan.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    stop = out / f".stop-{secrets.token_hex(4)}"
    progress = Progress("ablation", total, show, unit="runs", start=done)
    progress.every = math.inf

    def tasks() -> Iterator[RunTask]:
        for run in todo:
            if stop.exists():
                return
            iteration = runner.progress(run_path(out, run))
            progress.print(f"{run}: resumed near iteration {iteration}" if iteration else f"{run}: started")
            yield RunTask(run, out, stop, jobs if plan.backend in LOCAL_BACKENDS else 1)

    def stop_runs(signal_name: str) -> None:
        stop.touch()
        progress.print(f"{signal_name}: runs write a checkpoint and stop (Ctrl-C again: do not wait for them)")

    try:
        with progress, stop_signals(stop_runs) as received:
            for record, text in runner.train_all(tasks(), jobs, plan.backend, plan.cluster):
                if record is not None:
                    results.add([record])
                    done += record.done
                progress.update(done)
                left = progress.remaining(done) if done < total else ""
                progress.print(f"{text} ({done} of {total} runs done{f', about {left} left' if left else ''})")
    except BaseException:
        stop.touch()
        time.sleep(2 * runner.POLL)  # until the other runs are asked to stop
        raise
    finally:
        stop.unlink(missing_ok=True)
    return max(received, default=0)


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
        from repgraph.ablation.figure import save_figure  # imports matplotlib

        path = plan.out / f"{table.name}-{plan.dataset}"
        report.files.append(write(path.with_suffix(".md"), report.tables[-1]))
        report.files.append(write(path.with_suffix(".csv"), summary.to_csv(table, summarized)))
        report.files.append(save_figure(table, summarized, path.with_suffix(".png"), axis, " ".join(notes[:2])))
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
