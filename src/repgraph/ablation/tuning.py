"""Tuning: the same trials for every competitor, on images that are held out of the training split."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from filelock import FileLock

from repgraph import files
from repgraph.ablation.results import LOCK, read_csv
from repgraph.ablation.summary import EntrySummary
from repgraph.ablation.tables import KINDS, Table, TableEntry, resolve
from repgraph.errors import UsageError, nearest
from repgraph.recipes import Recipe

NAME = "tuning.csv"
HOLD_OUT = 5  # every fifth image of the training split
COLUMNS = ["dataset", "kind", "trial", "chosen", "miou", "seeds", "iterations", "settings", "key"]


def _trial(optimizer: str, lr: float, head: float) -> dict[str, Any]:
    """Return settings of recipes; offsets have the learning rate of the head, ``head`` times the backbone's."""
    rest = {"weight_decay": 1e-4, "warmup": 0} if optimizer == "sgd" else {"weight_decay": 0.05, "warmup": 50}
    values = {"optimizer": optimizer, "lr": lr, "head": head, "offset": head, **rest}
    return {f"optim.{name}": value for name, value in values.items()}


# The first of these are tried; each is a complete description of the optimizer.
TRIALS = (
    _trial("sgd", 0.01, 3.0),
    _trial("sgd", 0.01, 10.0),
    _trial("adamw", 1e-4, 10.0),
    _trial("adamw", 2e-4, 5.0),
    _trial("sgd", 0.02, 3.0),
    _trial("adamw", 5e-5, 10.0),
    _trial("sgd", 0.005, 10.0),
    _trial("adamw", 4e-4, 3.0),
)


def tables(kinds: Sequence[str], start: Recipe, trials: int = len(TRIALS)) -> list[Table]:
    """Return a table of trials for each competitor; the reference is the first trial."""
    if trials > len(TRIALS):
        raise UsageError(f"--trials is {trials}; expected at most {len(TRIALS)}")
    found = []
    for kind in dict.fromkeys(kinds):
        if kind not in KINDS:
            raise UsageError(f"--of {kind!r} cannot be tuned{nearest(kind, KINDS)}")
        if misfit := resolve(TableEntry("", "", kind), start)[1]:
            raise UsageError(f"--of {kind} does not fit {start.data.name}: {misfit}")
        entries = []
        for number, settings in enumerate(TRIALS[:trials]):
            optimizer, lr, head = (settings[f"optim.{name}"] for name in ("optimizer", "lr", "head"))
            label = f"{number}: {optimizer}, rate {lr:g}, new layers x {head:g}"
            entries.append(TableEntry(f"{kind}-{number}", label, kind, settings))
        found.append(Table(f"tune-{kind}", f"Trials of the {KINDS[kind].title}", f"{kind}-0", *entries))
    return found


def best(trials: Sequence[EntrySummary]) -> EntrySummary | None:
    """Return the trial with the best mean mIoU; None while runs are left, or if no trial has scores of every seed."""
    if any(trial.missing or not all(record.done for record in trial.failed) for trial in trials):
        return None
    complete = [trial for trial in trials if trial.miou and not trial.failed]
    return max(complete, key=lambda trial: fmean(trial.miou.values()), default=None)


def save(folder: Path, dataset: str, tuned: Mapping[str, Sequence[EntrySummary]]) -> Path:
    """Write the trials of competitors on a data set to ``tuning.csv``; earlier trials of these are replaced."""
    path = folder / NAME
    with FileLock(folder / LOCK):
        before = [row for _, row in read_csv(path, COLUMNS)] if path.exists() else []
        rows = [[*row.values()] for row in before if row["dataset"] != dataset or row["kind"] not in tuned]
        for kind, trials in tuned.items():
            chosen = best(trials)
            for number, trial in enumerate(trials):
                mark, miou = "chosen" if trial is chosen else "", fmean(trial.miou.values()) if trial.miou else ""
                seeds, keys = " ".join(map(str, trial.miou)), " ".join(run.key for run in trial.runs)
                iterations, settings = trial.runs[0].recipe.train.iterations, json.dumps(dict(trial.entry.settings))
                rows.append([dataset, kind, str(number), mark, str(miou), seeds, str(iterations), settings, keys])
        return files.write(path, files.to_csv(COLUMNS, rows))


def load(path: Path, dataset: str, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the chosen settings of competitors on a data set; raise an error if their budgets differ."""
    rows = [(place, row) for place, row in read_csv(path, COLUMNS) if row["dataset"] == dataset]
    trials = Counter(row["kind"] for _, row in rows)
    found: dict[str, dict[str, Any]] = {}
    budgets: dict[str, str] = {}
    for place, row in rows:
        kind = row["kind"]
        if not row["chosen"] or kind not in kinds:
            continue
        settings = files.parse_json(row["settings"], f"{place}, settings of {kind},", f"tune {kind} again")
        allowed = all(name.startswith(("optim.", "model.context_options.")) for name in settings)
        if not isinstance(settings, dict) or not allowed or kind in found:
            raise UsageError(f"{place} is damaged: {kind} with settings {row['settings']!r}; tune {kind} again")
        found[kind] = settings
        seeds = " ".join(sorted(row["seeds"].split()))
        budgets[kind] = f"{trials[kind]} trial(s) of {row['iterations']} iterations with seeds {seeds}"
    missing = [kind for kind in dict.fromkeys(kinds) if kind not in found]
    if missing:
        command = f"repgraph ablate tune --of {' '.join(missing)} --dataset {dataset}"
        raise UsageError(f"--tuned {path} has no chosen settings of {', '.join(missing)} on {dataset}; run {command}")
    if len(set(budgets.values())) > 1:
        listed = "; ".join(f"{kind} had {budget}" for kind, budget in budgets.items())
        raise UsageError(f"{path} has different tuning budgets: {listed}; tune them again with the same options")
    return found
