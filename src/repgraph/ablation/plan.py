"""The plan of an ablation: tables, data and settings, expanded into runs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from repgraph import recipes
from repgraph.ablation import tables, tuning
from repgraph.ablation.key import differences, key
from repgraph.ablation.results import Record
from repgraph.ablation.tables import EntryRuns, PlannedRun, Table, resolve
from repgraph.data import NAMES as DATASETS
from repgraph.errors import UsageError, nearest
from repgraph.recipes import Recipe, with_settings, with_values

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
    tuned: Path | None = None
    of: tuple[str, ...] = ()
    trials: int = len(tuning.TRIALS)
    reference: str = ""

    def __post_init__(self) -> None:
        is_tune = self.table == TUNE
        if len(set(self.seeds)) < max(1, len(self.seeds)):
            raise UsageError(f"--seeds is {self.seeds}; expected different seeds")
        if is_tune != bool(self.of):
            raise UsageError(f"tune, and only tune, needs --of: one or several of {', '.join(tables.KINDS)}")
        if (self.entries or self.reference) and self.table in (ALL, TUNE):
            raise UsageError("--entries and --reference are for one table only")


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


def lay_out(plan: Plan, records: Mapping[str, Record]) -> Layout:
    """Expand a plan into runs.

    Weights that the plan does not give are taken from ``records`` on the same data set, if they all agree.
    """
    wanted = _tables(plan)
    _check_settings(plan, wanted)
    start = start_recipe(plan)
    if not start.model.weights:
        known = sorted({record.weights for record in records.values() if record.dataset == plan.dataset})
        if len(known) > 1:
            raise UsageError(f"the results on {plan.dataset} have different weights: --weights {' or '.join(known)}?")
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
    varied = {name: table.name for table, entry in entries for name in entry.settings}
    if "model.inserted" in varied:
        varied["model.inserted_options"] = varied["model.inserted"]
    varied |= {"model.context": "every table", "train.seed": "--seeds", "data.name": "--dataset"}
    if plan.table == TUNE:
        varied["data.hold_out"] = TUNE
    if plan.tuned:
        varied |= dict.fromkeys(tuning.TRIALS[0], "--tuned")
    for setting in plan.settings:
        name = setting.partition("=")[0].strip()
        for other, owner in varied.items():
            if name == other or other.startswith(f"{name}.") or name.startswith(f"{other}."):
                raise UsageError(f"--set {name}: {owner} sets {other}; leave it out")


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
