"""Ablations: plan the runs, train the missing ones, and make the tables."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from repgraph.ablation import runner, summary, tuning
from repgraph.ablation.plan import TUNE, Layout, Plan, lay_out, start_recipe
from repgraph.ablation.results import OK, Record, Results
from repgraph.ablation.runner import run_path
from repgraph.ablation.tables import PlannedRun
from repgraph.errors import UsageError
from repgraph.files import check_writable, write
from repgraph.train.session import make_task


@dataclass
class AblationReport:
    """The result of a plan: tables as Markdown, written files, and runs that failed or are left to do."""

    tables: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)
    left: list[PlannedRun] = field(default_factory=list)
    signal: int = 0  # that stopped the ablation

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
    number = 0
    if todo := _todo(layout, records):
        task = make_task(start_recipe(plan))  # a problem with the data or the network would make every run fail
        task.network(task.splits()[0].labels)
        number = runner.train_all(todo, results, plan.jobs, len(layout.runs), show or io.StringIO())
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
