"""What is to be done: tables, data, seeds, and how; checked, and laid out as runs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from repgraph import data as datasets
from repgraph.engine.ablation import pool, tables, tuning
from repgraph.engine.ablation.job import cores
from repgraph.engine.ablation.key import weights_name
from repgraph.engine.ablation.results import Record
from repgraph.engine.ablation.runs import Line, Run, base, check_settings, lines, unique
from repgraph.engine.ablation.tables import Table
from repgraph.errors import UsageError
from repgraph.recipes import Recipe, to_dict

ALL, TUNE = "all", "tune"


@dataclass(frozen=True)
class Plan:
    """What :func:`repgraph.engine.ablation.ablate` is to do.

    Args:
        table: a name in :data:`repgraph.engine.ablation.TABLES`, "all" of them, or "tune".
        dataset: whose recipe entries start from.
        data: its folder; not for the embedded scenes.
        weights: where the backbone starts, as for training.
        seeds: each entry is trained with each.
        out: the folder of results.
        settings: such as ``"train.iterations=300"``, of all entries.
        entries: names of those to do, of a table; all if empty.
        jobs: runs at a time.
        backend, cluster: see :func:`repgraph.engine.ablation.pool.ended`.
        tuned: a file that "tune" wrote; entries take the settings chosen in it.
        of, trials: for "tune": which competitors, and how often each is tried.
        keep: whether checkpoints and networks of finished runs stay.
        again: whether runs that diverged are done again.
        time_limit: seconds. No run is begun that would not fit, and those that run when it is over are stopped with a
            checkpoint.
        reference: the entry that differences are taken to; the table's own if empty.
    """

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
    trials: int = tuning.TRIALS
    keep: bool = False
    again: bool = False
    time_limit: float | None = None
    reference: str = ""


@dataclass(frozen=True)
class Layout:
    """A plan as tables of runs, and what to say about it."""

    start: Recipe
    tables: tuple[tuple[Table, tuple[Line, ...]], ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> list[Run]:
        """Every run once."""
        return unique(line for _, found in self.tables for line in found)


def lay_out(plan: Plan, records: Mapping[str, Record]) -> Layout:
    """The runs of a plan. Weights that are not given are those of the results on these data, if all have the same."""
    _check(plan)
    wanted = _tables(plan)
    check_settings(plan.settings, wanted, _said(plan, wanted))
    start = _with_weights(_start(plan), plan, records)
    if plan.table == TUNE:
        wanted = tuning.tables(plan.of, start, plan.trials)
    if plan.entries:
        wanted = [_part(table, plan.entries) for table in wanted]
    kinds = list(dict.fromkeys(entry.kind for table in wanted for entry in table.entries))
    tuned = tuning.load(plan.tuned, plan.dataset, kinds) if plan.tuned else None
    found, notes = [], []
    for table in wanted:
        try:
            found.append((table, tuple(lines(table, start, plan.seeds, tuned))))
        except UsageError as error:
            if plan.table != ALL:
                raise
            notes.append(str(error))
    _check_reference(plan, found)
    return Layout(start, tuple(found), tuple(notes))


def _check(plan: Plan) -> None:
    repeated = sorted({seed for seed in plan.seeds if plan.seeds.count(seed) > 1})
    if repeated:
        raise UsageError(f"--seeds has {repeated[0]} twice; give each once")
    if not plan.seeds:
        raise UsageError("--seeds has none; give at least one")
    if plan.jobs < 1:
        raise UsageError(f"--jobs is {plan.jobs}; at least 1 is needed")
    if plan.table == TUNE and not plan.of:
        raise UsageError(f"tune needs --of: which to tune, of {', '.join(tuning.SPACES)}")
    if plan.table != TUNE and plan.of:
        raise UsageError(f"--of is for tune, not for {plan.table}; leave it out")
    if plan.table == TUNE and plan.tuned:
        raise UsageError("--tuned is for tables, not for tune; leave it out")
    if plan.table in (ALL, TUNE) and plan.entries:
        raise UsageError(f"--entries is for one table, not for {plan.table}; leave it out")
    if not isinstance(plan.reference, str):
        raise UsageError(f"--reference is {plan.reference!r}; give the name of an entry, or '' for the table's own")
    if plan.table in (ALL, TUNE) and plan.reference:
        raise UsageError(f"--reference is for one table, not for {plan.table}; leave it out")


def _check_reference(plan: Plan, found: Sequence[tuple[Table, Sequence[Line]]]) -> None:
    for _, entries in found:
        for line in entries:
            if line.misfit and line.entry.name == plan.reference:
                raise UsageError(f"--reference {plan.reference} does not fit {plan.dataset}: {line.misfit}")


def _said(plan: Plan, wanted: Sequence[Table]) -> dict[str, str]:
    """Settings that something besides the tables says, and what."""
    if plan.table == TUNE:
        return {"data.hold_out": TUNE}
    kinds = {entry.kind for table in wanted for entry in table.entries} if plan.tuned else set()
    return {name: "--tuned" for kind in sorted(kinds) for name in tuning.SPACES[kind]}


def _tables(plan: Plan) -> list[Table]:
    if plan.table == TUNE:
        return []
    if plan.table == ALL:
        return list(tables.TABLES.values())
    table = tables.get(plan.table)
    return [replace(table, reference=table.entry(plan.reference).name) if plan.reference else table]


def _part(table: Table, names: Sequence[str]) -> Table:
    """Some entries only; differences are still to the reference, if it is among them or has been done."""
    chosen = {table.entry(name).name for name in names} | {table.reference}
    return replace(table, entries=tuple(entry for entry in table.entries if entry.name in chosen))


def _start(plan: Plan) -> Recipe:
    given = list(plan.settings)
    if plan.data:
        given.append(f"data.root={os.path.abspath(os.path.expanduser(plan.data))}")
    if plan.weights:
        given.append(f"model.weights={_whole(plan.weights)}")
    if plan.table == TUNE:
        given.append(f"data.hold_out={tuning.HOLD_OUT}")
    return base(plan.dataset, given)


def _whole(weights: str) -> str:
    """The whole path of a file, which processes may look for from elsewhere."""
    if weights in ("none", "pretrained") or weights.startswith("timm:"):
        return weights
    return os.path.abspath(os.path.expanduser(weights))


def _with_weights(start: Recipe, plan: Plan, records: Mapping[str, Record]) -> Recipe:
    if start.model.weights:
        return start
    known = sorted({record.weights for record in records.values() if record.dataset == plan.dataset})
    if len(known) > 1:
        raise UsageError(f"the results on {plan.dataset} began with different weights: --weights {' or '.join(known)}?")
    return replace(start, model=replace(start.model, weights=known[0])) if known else start


def check_ready(plan: Plan) -> None:
    """Find out now, once, what would make every run fail."""
    start = _start(plan)
    if not start.model.weights:
        raise UsageError(
            f"say where the backbone {start.model.backbone} starts: --weights FILE, 'pretrained', 'timm:NAME' or 'none'"
        )
    if not start.data.root and start.data.name != "scenes":
        raise UsageError(f"where is {start.data.name}? Give its folder: --data ROOT")
    if plan.backend not in pool.LOCAL:
        return  # files may be there only where runs are
    for split in (start.data.split, start.data.val_split):
        datasets.load(start.data.name, start.data.root or None, split, **start.data.options)
    if os.sep in start.model.weights and not Path(start.model.weights).is_file():
        raise UsageError(f"--weights {start.model.weights}: there is no such file")


def about(run: Run, dataset: str) -> dict[str, Any]:
    """What a record says about the run that it is of."""
    weights = weights_name(run.recipe.model.weights)
    return {"key": run.key, "dataset": dataset, "seed": run.seed, "settings": run.settings, "weights": weights}


def recipe_of(run: Run, plan: Plan) -> dict[str, Any]:
    """The recipe of a run beside others: each has its share of the cores."""
    data = run.recipe.data
    if plan.backend in pool.LOCAL and data.workers == -1 and plan.jobs > 1:
        data = replace(data, workers=max(1, min(16, cores() // plan.jobs)))
    return to_dict(replace(run.recipe, data=data))
