"""Tuning: the same number of trials for every competitor, on images that are held out of the training split.

Trials are deterministic: first the unchanged recipe, then points of the competitor's space, each time the point whose
values and pairs of values were tried least (a hash breaks ties). The trial with the best mean mIoU is chosen.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from filelock import FileLock

from repgraph import files
from repgraph.ablation.key import key
from repgraph.ablation.results import LOCK, read_csv
from repgraph.ablation.summary import EntrySummary
from repgraph.ablation.tables import KINDS, Table, TableEntry, resolve
from repgraph.errors import UsageError, nearest
from repgraph.recipes import Recipe

NAME = "tuning.csv"
HOLD_OUT = 5  # every fifth image of the training split
TRIALS = 8
COLUMNS = ["dataset", "kind", "trial", "chosen", "miou", "seeds", "iterations", "settings", "key"]


class Times(NamedTuple):
    """A multiple of the recipe's learning rate."""

    factor: float


# The values to try, for each competitor. None removes the option: 1/sqrt(C') = 1/16 for the non-local block.
Space = dict[str, tuple[Any, ...]]
_RATES: Space = {"optim.lr": tuple(map(Times, (0.25, 0.5, 1.0, 2.0, 4.0))), "optim.head": (1.0, 3.0, 10.0)}
_NODES: Space = {
    "optim.lr": tuple(map(Times, (0.5, 1.0, 2.0))),
    "optim.head": (3.0, 10.0),
    "model.context_options.radius": (4.0, 8.0),
    "model.context_options.node_view": (9, 15, 25),
}
SPACES: dict[str, Space] = {
    "baseline": _RATES,
    "control": _RATES,
    "nl": {
        "optim.lr": tuple(map(Times, (0.5, 1.0, 2.0))),
        "optim.head": (1.0, 3.0, 10.0),
        "model.context_options.scale": (1.0, None, 1 / 256),
    },
    "simple": _NODES,
    "rgnet": _NODES,
    "psp": _RATES,
    "fpn": _RATES,
    "pyramid": {
        "optim.lr": tuple(map(Times, (0.5, 1.0, 2.0))),
        "optim.head": (1.0, 3.0, 10.0),
        "model.context_options.rounds": (2, 3, 4),
    },
}


def tables(kinds: Sequence[str], start: Recipe, trials: int = TRIALS) -> list[Table]:
    """Return a table of trials for each competitor; the reference is the first trial, the unchanged recipe."""
    found = []
    for kind in dict.fromkeys(kinds):
        if kind not in SPACES:
            raise UsageError(f"--of {kind!r} cannot be tuned{nearest(kind, SPACES)}")
        if misfit := resolve(TableEntry("", "", kind), start)[1]:
            raise UsageError(f"--of {kind} does not fit {start.data.name}: {misfit}")
        entries = []
        for number, settings in enumerate(points(kind, start, trials)):
            texts = [
                f"{name.split('.')[-1]} {'default' if value is None else f'{value:g}'}"
                for name, value in settings.items()
            ]
            label = f"{number}: {', '.join(texts) or 'as the recipe has it'}"
            entries.append(TableEntry(f"{kind}-{number}", label, kind, settings))
        found.append(Table(f"tune-{kind}", f"Trials of the {KINDS[kind].title}", f"{kind}-0", *entries))
    return found


def points(kind: str, start: Recipe, count: int) -> list[dict[str, Any]]:
    """Return the settings of the first ``count`` trials; no two of them are equivalent."""
    space = SPACES[kind]
    every = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    every.sort(key=lambda point: hashlib.blake2b(f"{kind} {sorted(point.items(), key=str)}".encode()).digest())
    found: dict[str, dict[str, Any]] = {_key(kind, {}, start): {}}
    tried: Counter[Any] = Counter()
    while every and len(found) < count:
        point = min(every, key=lambda p: [sum(tried[part] for part in parts) for parts in _parts(p)])
        every.remove(point)
        settings = {**point, "optim.lr": point["optim.lr"].factor * start.optim.lr}
        if found.setdefault(_key(kind, settings, start), settings) is settings:
            tried.update(part for parts in _parts(point) for part in parts)
    if len(found) < count:
        raise UsageError(f"--trials is {count}; {kind} has {len(found)} different trials")
    return list(found.values())


def _parts(point: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the values of a point, and the pairs of values."""
    return list(point.items()), list(itertools.combinations(point.items(), 2))


def _key(kind: str, settings: Mapping[str, Any], start: Recipe) -> str:
    return key(resolve(TableEntry("", "", kind, settings), start)[0])


def best(trials: Sequence[EntrySummary]) -> EntrySummary | None:
    """Return the trial with the best mean mIoU.

    None while a run is left to do, or if no trial has scores with every seed.
    """
    if any(trial.missing or not all(record.done for record in trial.failed) for trial in trials):
        return None
    complete = [trial for trial in trials if trial.miou and not trial.failed]
    return max(complete, key=lambda trial: fmean(trial.miou.values()), default=None)


def save(folder: Path, dataset: str, tuned: Mapping[str, Sequence[EntrySummary]]) -> Path:
    """Write the trials of competitors on a data set to ``tuning.csv``; earlier trials of these are replaced."""
    path = folder / NAME
    with FileLock(folder / LOCK):
        before = [row for _, row in read_csv(path, COLUMNS)] if path.exists() else []
        rows: list[list[Any]] = [
            list(row.values()) for row in before if row["dataset"] != dataset or row["kind"] not in tuned
        ]
        for kind, trials in tuned.items():
            chosen = best(trials)
            for number, trial in enumerate(trials):
                mark, miou = "chosen" if trial is chosen else "", fmean(trial.miou.values()) if trial.miou else ""
                seeds, keys = " ".join(map(str, trial.miou)), " ".join(run.key for run in trial.runs)
                iterations = trial.runs[0].recipe.train.iterations
                settings = json.dumps(dict(trial.entry.settings))
                rows.append([dataset, kind, number, mark, miou, seeds, iterations, settings, keys])
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
        if not isinstance(settings, dict) or not settings.keys() <= SPACES[kind].keys() or kind in found:
            raise UsageError(f"{place} is damaged: {kind} with settings {row['settings']!r}; tune {kind} again")
        found[kind] = settings
        seeds = " ".join(sorted(row["seeds"].split()))
        budgets[kind] = f"{trials[kind]} trials of {row['iterations']} iterations with seeds {seeds}"
    missing = [kind for kind in dict.fromkeys(kinds) if kind not in found]
    if missing:
        command = f"repgraph ablate tune --of {' '.join(missing)} --dataset {dataset}"
        raise UsageError(f"--tuned {path} has no chosen settings of {', '.join(missing)} on {dataset}; run {command}")
    if len(set(budgets.values())) > 1:
        listed = "; ".join(f"{kind} had {budget}" for kind, budget in budgets.items())
        raise UsageError(f"--tuned {path} is unfair: {listed}; tune {' '.join(found)} with the same options")
    return found
