"""A fair chance for every competitor: the same number of trials, on images of the training split that are held out.

What is tried is the same on every machine: the recipe as it is first, then points of the competitor's space, each the
one whose values, and pairs of them, were tried least so far (among equals a hash decides). The best mean mIoU wins.
"""

import csv
import hashlib
import io
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repgraph.engine.ablation.key import key
from repgraph.engine.ablation.locks import locked
from repgraph.engine.ablation.results import LOCK, OK, Record
from repgraph.engine.ablation.runs import Line, resolve
from repgraph.engine.ablation.tables import TITLES, Entry, Table
from repgraph.errors import UsageError
from repgraph.files import write_text
from repgraph.recipes import Recipe
from repgraph.recipes.settings import nearest

NAME = "tuning.csv"
HOLD_OUT = 5  # every fifth image of the training split
TRIALS = 8
COLUMNS = ("dataset", "kind", "trial", "chosen", "miou", "seeds", "iterations", "settings", "key")


@dataclass(frozen=True)
class Times:
    """So many times what the recipe has."""

    factor: float


_RATES: dict[str, tuple[Any, ...]] = {
    "optim.lr": tuple(map(Times, (0.25, 0.5, 1.0, 2.0, 4.0))),
    "optim.head": (1.0, 3.0, 10.0),
}
_NODES: dict[str, tuple[Any, ...]] = {
    "optim.lr": tuple(map(Times, (0.5, 1.0, 2.0))),
    "optim.head": (3.0, 10.0),
    "model.context_options.radius": (4.0, 8.0),
    "model.context_options.node_view": (9, 15, 25),
}
# What may be tried, for each competitor. None leaves the option out: 1/sqrt(C') = 1/16 for the non-local block.
SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "baseline": _RATES,
    "control": _RATES,
    "nl": {
        "optim.lr": tuple(map(Times, (0.5, 1.0, 2.0))),
        "optim.head": (1.0, 3.0, 10.0),
        "model.context_options.scale": (1.0, None, 1 / 256),
    },
    "simple": _NODES,
    "rgnet": _NODES,
}


def tables(kinds: Sequence[str], start: Recipe, trials: int = TRIALS) -> list[Table]:
    """A table of trials for each competitor; differences are to the first, the recipe as it is."""
    for kind in kinds:
        if kind not in SPACES:
            raise UsageError(f"--of {kind!r} is not one that can be tuned{nearest(kind, SPACES)}")
    return [_table(kind, start, trials) for kind in dict.fromkeys(kinds)]


def _table(kind: str, start: Recipe, count: int) -> Table:
    entries: list[Entry] = []
    for settings in points(kind, start, count):
        name = f"{kind}-{len(entries)}"
        told = ", ".join(f"{setting.split('.')[-1]} {_said(value)}" for setting, value in settings.items())
        entries.append(Entry(name, f"{len(entries)}: {told or 'as the recipe has it'}", kind, settings))
    return Table(f"tune-{kind}", f"Trials of the {TITLES[kind]}", tuple(entries), f"{kind}-0")


def points(kind: str, start: Recipe, count: int) -> list[dict[str, Any]]:
    """The settings of so many trials; no two of them mean the same, and fewer are the first of more."""
    space = SPACES[kind]
    every = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    every.sort(key=lambda point: hashlib.blake2b(f"{kind} {sorted(point.items(), key=str)}".encode()).digest())
    found: dict[str, dict[str, Any]] = {_key(kind, {}, start): {}}
    tried: Counter[Any] = Counter()
    while every and len(found) < count:
        point = min(every, key=lambda p: [sum(tried[part] for part in parts) for parts in _parts(p)])  # first of equals
        every.remove(point)
        settings = _resolved(point, start)
        if found.setdefault(_key(kind, settings, start), settings) is settings:
            tried.update(part for parts in _parts(point) for part in parts)
    if len(found) < count:
        raise UsageError(f"--trials {count}: {kind} has {len(found)} different ones; give at most that")
    return list(found.values())


def _parts(point: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Values, and pairs of them."""
    return list(point.items()), list(itertools.combinations(point.items(), 2))


def _key(kind: str, settings: Mapping[str, Any], start: Recipe) -> str:
    return key(resolve(Entry("", "", kind, settings), start)[0])


def _resolved(point: Mapping[str, Any], start: Recipe) -> dict[str, Any]:
    found = {}
    for name, value in point.items():
        section, _, field = name.partition(".")
        found[name] = value.factor * getattr(getattr(start, section), field) if isinstance(value, Times) else value
    return found


def _said(value: Any) -> str:
    return "default" if value is None else f"{value:g}"


def best(lines: Sequence[Line], records: Mapping[str, Record]) -> Line | None:
    """The trial with the best mean; None while one is still to be done, or if none has a score with every seed."""
    scored: list[tuple[float, Line]] = []
    for line in lines:
        found = [records.get(run.key) for run in line.runs]
        if any(record is None or not record.done for record in found):
            return None
        if all(record is not None and record.status == OK for record in found):
            scored.append((_mean(found), line))
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def _mean(records: Sequence[Record | None]) -> float:
    values = [record.miou for record in records if record is not None and record.miou is not None]
    return sum(values) / len(values)


def save(folder: Path, dataset: str, tuned: Mapping[str, Sequence[Line]], records: Mapping[str, Record]) -> Path:
    """Write all trials of these competitors on a data set to the file, in place of earlier ones of theirs."""
    path = folder / NAME
    with locked(folder / LOCK):
        before = _read(path) if path.exists() else []
        kept = [row for row in before if row["dataset"] != dataset or row["kind"] not in tuned]
        new = [row for kind, lines in tuned.items() for row in _rows(dataset, kind, lines, records)]
        out = io.StringIO(newline="")
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *new])
        write_text(path, out.getvalue())
    return path


def _rows(dataset: str, kind: str, lines: Sequence[Line], records: Mapping[str, Record]) -> list[dict[str, Any]]:
    chosen, rows = best(lines, records), []
    for number, line in enumerate(lines):
        done = [r for run in line.runs if (r := records.get(run.key)) is not None and r.status == OK]
        rows.append(
            {
                "dataset": dataset,
                "kind": kind,
                "trial": number,
                "chosen": "chosen" if line is chosen else "",
                "miou": _mean(done) if done else "",
                "seeds": " ".join(str(record.seed) for record in done),
                "iterations": line.runs[0].recipe.train.iterations,
                "settings": json.dumps(dict(line.entry.settings)),
                "key": " ".join(run.key for run in line.runs),
            }
        )
    return rows


def load(path: Path, dataset: str, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The chosen settings of competitors on a data set, all of which had the same chance."""
    rows = [(number, row) for number, row in enumerate(_read(path), 2) if row["dataset"] == dataset]
    trials = Counter(row["kind"] for _, row in rows)
    found: dict[str, dict[str, Any]] = {}
    chances: dict[str, str] = {}
    for number, row in rows:
        kind = row["kind"]
        if not row["chosen"] or kind not in kinds:
            continue
        if kind in found:
            raise UsageError(f"{path}, line {number}: {kind} is chosen a second time; keep the trials of one tuning")
        found[kind] = _settings(row, f"{path}, line {number}")
        seeds = " ".join(sorted(row["seeds"].split()))
        chances[kind] = f"{trials[kind]} trials of {row['iterations']} iterations with seeds {seeds}"
    missing = [kind for kind in dict.fromkeys(kinds) if kind not in found]
    if missing:
        how = f"repgraph ablate tune --of {' '.join(missing)} --dataset {dataset}"
        raise UsageError(
            f"--tuned {path} has no chosen settings of {', '.join(missing)} on {dataset}; {how} makes them"
        )
    if len(set(chances.values())) > 1:
        told = "; ".join(f"{kind} had {chance}" for kind, chance in chances.items())
        raise UsageError(
            f"--tuned {path} is not fair: {told}; repgraph ablate tune --of {' '.join(found)} gives all the same"
        )
    return found


def _settings(row: Mapping[str, str], origin: str) -> dict[str, Any]:
    try:
        settings = json.loads(row["settings"])
        assert isinstance(settings, dict)
    except (ValueError, AssertionError):
        raise UsageError(f"{origin} is damaged: its settings are {row['settings']!r}") from None
    strange = [name for name in settings if name not in SPACES[row["kind"]]]
    if strange:
        raise UsageError(
            f"{origin}: {strange[0]} is not tuned for {row['kind']}; the file is of another version: tune again"
        )
    return settings


def _read(path: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read --tuned {path}: {reason}; repgraph ablate tune writes such a file") from error
    for number, row in enumerate(rows, 2):
        if set(row) != set(COLUMNS) or None in row.values():
            raise UsageError(f"{path}, line {number} is damaged, or of another version: it needs {', '.join(COLUMNS)}")
    return rows
