"""Ablations: expand a plan into runs, train the missing ones, and make the tables."""

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, cast

from repgraph import recipes
from repgraph.ablation import runner, summary, tables, tuning
from repgraph.ablation.key import differences, key
from repgraph.ablation.results import OK, Record, Results
from repgraph.ablation.runner import run_path
from repgraph.ablation.tables import EntryRuns, PlannedRun, Table, resolve
from repgraph.data import NAMES as DATASETS
from repgraph.errors import UsageError, nearest
from repgraph.files import check_writable, write
from repgraph.recipes import Recipe, with_settings, with_values
from repgraph.train.session import make_task

ALL, TUNE = "all", "tune"


@dataclass(frozen=True)
class Plan:
    """The options of ``repgraph ablate``; see its help."""

    table: str
    dataset: str = "voc"
    data: str = ""
    weights: str = ""
    seeds: tuple[int, ...] = (0, 1, 2)
    out: Path = Path("results")
    settings: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    jobs: int = 1
    backend: str = "threading"
    cluster: str = ""
    tuned: Path | None = None
    of: tuple[str, ...] = ()
    trials: int = len(tuning.TRIALS)
    reference: str = ""

    def __post_init__(self) -> None:
        if len(set(self.seeds)) < max(1, len(self.seeds)):
            raise UsageError(f"--seeds is {self.seeds}; expected different seeds")
        if self.table == TUNE and not self.of:
            raise UsageError(f"'tune' needs --of with one or more of {', '.join(tables.KINDS)}")
        if self.of and self.table != TUNE:
            raise UsageError("--of is only for 'tune'")
        if (self.entries or self.reference) and self.table in (ALL, TUNE):
            raise UsageError("--entries and --reference are for one table only")
        if (self.backend == "dask") != bool(self.cluster):
            raise UsageError("--backend dask and --cluster ADDRESS belong together; pass both or none")


@dataclass(frozen=True)
class Layout:
    """The runs of a plan, by table. ``start`` is the base recipe of all entries."""

    start: Recipe
    tables: list[tuple[Table, list[EntryRuns]]]
    notes: list[str]

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run once; all entries with the first seed come first."""
        found: dict[str, PlannedRun] = {}
        for run in (run for _, rows in self.tables for row in rows for run in row.runs):
            found.setdefault(run.key, run)
        seeds = list(dict.fromkeys(run.seed for run in found.values()))
        return sorted(found.values(), key=lambda run: seeds.index(run.seed))


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

    The same call resumes after an interruption. Data and weights are only needed if there are runs to do.
    """
    results = Results(plan.out)
    records = results.read()
    layout = lay_out(plan, records)
    check_writable(results.path)
    number = 0
    if todo := _todo(layout, records):
        if not plan.cluster:  # there, the files may exist on the workers only
            task = make_task(start_recipe(plan))  # a problem with the data or the network would make every run fail
            task.network(task.splits()[0].labels)
        options = (plan.jobs, len(layout.runs), show or io.StringIO(), plan.backend, plan.cluster)
        number = runner.train_all(todo, results, *options)
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
        raise UsageError(f"{missing}; pass --out, --set, --weights, --tuned, --seeds and --data as for training")
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
        lines.append(f"{run.key}  {state:12}  {run}: {run.settings or 'recipe defaults'}")
    lines += layout.notes
    lines += [f"{row.entry.label}: {row.misfit}" for _, rows in layout.tables for row in rows if row.misfit]
    return "\n".join([*lines, f"{len(_todo(layout, records))} of {len(layout.runs)} runs to do"])


def lay_out(plan: Plan, records: Mapping[str, Record]) -> Layout:
    """Expand a plan into runs; by default, weights are those of all ``records`` on the data set."""
    wanted = _tables(plan)
    _check_settings(plan, wanted)
    start = start_recipe(plan)
    if not start.model.weights:
        known = sorted({record.weights for record in records.values() if record.dataset == plan.dataset})
        if len(known) > 1:
            raise UsageError(f"runs on {plan.dataset} started from {', '.join(known)}; choose one with --weights")
        start = with_values(start, {"model.weights": known[0]}) if known else start
    if plan.table == TUNE:
        wanted = tuning.tables(plan.of, start, plan.trials)
    kinds = [entry.kind for table in wanted for entry in table.entries]
    tuned = tuning.load(plan.tuned, plan.dataset, kinds) if plan.tuned else {}
    usual = with_values(_dataset_recipe(plan.dataset), {"model.weights": start.model.weights})
    found, notes = [], []
    for table in wanted:
        rows = []
        for entry in table.entries:
            recipe, misfit = resolve(entry, start, tuned.get(entry.kind))
            if misfit and entry.name == plan.reference:
                raise UsageError(f"--reference {plan.reference} does not fit {plan.dataset}: {misfit}")
            # Seed and weights have their own columns.
            settings = differences(with_values(recipe, {"train.seed": usual.train.seed}), usual)
            seeded = [with_values(recipe, {"train.seed": seed}) for seed in plan.seeds if not misfit]
            runs = tuple(PlannedRun(entry.label, each, key(each), settings) for each in seeded)
            rows.append(EntryRuns(entry, runs, misfit))
        own = [row for row in rows if row.entry.name not in (table.reference, "baseline", "control")] or rows
        if not all(row.misfit for row in own):
            found.append((table, rows))
            continue
        notes.append(f"table {table.name} does not fit {start.data.name}: {own[0].misfit}")
        if plan.table != ALL:
            raise UsageError(notes[-1])
    return Layout(start, found, notes)


def _tables(plan: Plan) -> list[Table]:
    """Return the tables of a plan with the chosen entries and reference; tables of "tune" depend on the recipe."""
    if plan.table in (ALL, TUNE):
        return list(tables.TABLES.values()) if plan.table == ALL else []
    if plan.table not in tables.TABLES:
        raise UsageError(f"there is no table {plan.table!r}{nearest(plan.table, [*tables.TABLES, ALL, TUNE])}")
    table = tables.TABLES[plan.table]
    reference = table.entry(plan.reference or table.reference).name
    names = [table.entry(name).name for name in plan.entries] or [entry.name for entry in table.entries]
    chosen = [entry for entry in table.entries if entry.name in (*names, reference)]
    return [Table(table.name, table.title, reference, *chosen)]


def _check_settings(plan: Plan, wanted: Sequence[Table]) -> None:
    """Raise an error if ``--set`` changes a setting that the table varies, or that has its own option."""
    entries = [(table, entry) for table in wanted for entry in table.entries]
    varied = {name: f"table {table.name}, which varies" for table, entry in entries for name in entry.settings}
    if "model.inserted" in varied:
        varied["model.inserted_options"] = varied["model.inserted"]
    varied |= {"train.seed": "--seeds, which sets", "data.name": "--dataset, which sets"}
    varied["model.context"] = "the tables, which vary"
    if plan.table == TUNE:
        varied["data.hold_out"] = "'tune', which sets"
    if plan.tuned:
        varied |= dict.fromkeys(tuning.TRIALS[0], "--tuned, which sets")
    for setting in plan.settings:
        name = setting.partition("=")[0].strip()
        for other, owner in varied.items():
            if name == other or other.startswith(f"{name}.") or name.startswith(f"{other}."):
                raise UsageError(f"--set {name} conflicts with {owner} {other}; remove it from --set")


def start_recipe(plan: Plan) -> Recipe:
    """Return the base recipe: RGNet on a data set, validated at the end, with images in memory."""
    settings = ["data.cache=true", "train.validate_every=0", *plan.settings]
    if plan.data:
        settings.append(f"data.root={os.path.abspath(os.path.expanduser(plan.data))}")
    if plan.weights:
        settings.append(f"model.weights={plan.weights}")
    if plan.table == TUNE:
        settings.append(f"data.hold_out={tuning.HOLD_OUT}")
    return with_settings(_dataset_recipe(plan.dataset), settings)


def _dataset_recipe(dataset: str) -> Recipe:
    if dataset not in DATASETS:
        raise UsageError(f"--dataset {dataset!r} has no recipe to start from{nearest(dataset, DATASETS)}")
    name = f"{dataset}-r50-rgnet"
    return cast(Recipe, recipes.get(name if name in recipes.NAMES else f"{dataset}-rgnet"))


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
    devices, torch = (", ".join(sorted({getattr(each, name) for each in used} - {""})) for name in ("device", "torch"))
    settings = f" --set {' '.join(plan.settings)}" if plan.settings else ""
    tuned = f" --tuned {plan.tuned}" if plan.tuned else ""
    return [
        f"{plan.dataset}: {recipe.model.backbone} from {Path(recipe.model.weights).name or 'unknown weights'}, "
        f"{recipe.train.iterations} iterations of {recipe.train.batch} images, {recipe.train.precision}; "
        f"tested on {images}, at scale 1.",
        f"Seeds {' '.join(map(str, plan.seeds))}.{settings}{tuned}",
        *([f"On {devices}; torch {torch}."] if devices else []),
    ]
