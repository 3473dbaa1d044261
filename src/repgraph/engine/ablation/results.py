"""``results.csv``: one line for each run that ended, whatever tables it is in.

It is all that tables are made from, and all that is needed to not repeat a run: the folders of runs may be elsewhere.
"""

import csv
import dataclasses
import io
import json
import math
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repgraph.engine.ablation.locks import locked
from repgraph.errors import UsageError
from repgraph.files import write_text

NAME, LOCK, RUNS, RECORD = "results.csv", ".lock", "runs", "scores.json"
OK, DIVERGED, FAILED = "ok", "diverged", "failed"
SCORES = ("miou", "pixel_accuracy", "mean_accuracy")
REMEDY = "remove the line, and the run is done again"


@dataclass(frozen=True)
class Record:
    """How a run ended. Scores are fractions, None where there are none; ``seconds`` are those of all its attempts.

    ``diverged``: loss, weights or logits were not finite; it would happen again, and is not tried again unless asked
    for. ``failed``: anything else, such as too little memory or a crash.
    """

    key: str
    dataset: str
    seed: int
    status: str
    miou: float | None
    pixel_accuracy: float | None
    mean_accuracy: float | None
    iterations: int
    seconds: float
    settings: str
    weights: str
    device: str
    repgraph: str
    torch: str
    python: str
    finished: str
    reason: str

    @property
    def done(self) -> bool:
        """Whether there is nothing more to do."""
        return self.status in (OK, DIVERGED)


_HINTS = typing.get_type_hints(Record)
COLUMNS = tuple(field.name for field in dataclasses.fields(Record))


class Results:
    """The results in a folder; reading and adding are safe beside other processes."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / NAME

    def read(self) -> dict[str, Record]:
        """All records by key; of two with one key the first that is done counts."""
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {self.path}: {error}") from error
        return parse(text, str(self.path))

    def add(self, records: Iterable[Record]) -> dict[str, Record]:
        """Add what is new; a run that is done is not replaced. Returns all."""
        with locked(self.folder / LOCK):
            found = self.read()
            before = dict(found)
            for record in records:
                _merge(found, record)
            if found != before:
                write_text(self.path, to_csv(found.values()))
        return found

    def forget(self, keys: Iterable[str]) -> None:
        """Take records out, to do their runs again."""
        with locked(self.folder / LOCK):
            found, gone = self.read(), set(keys)
            write_text(self.path, to_csv(record for record in found.values() if record.key not in gone))

    def collect(self) -> dict[str, Record]:
        """Add runs that ended and were not noted, as when the process that noted them was killed."""
        known = self.read()
        found = [read_record(path) for path in sorted((self.folder / RUNS).glob(f"*/{RECORD}"))]
        new = [r for r in found if r is not None and (r.key not in known or not known[r.key].done)]
        return self.add(new) if new else known


def _merge(found: dict[str, Record], record: Record) -> None:
    old = found.get(record.key)
    if old is None or not old.done:
        found[record.key] = record


def parse(text: str, origin: str = NAME) -> dict[str, Record]:
    """Records of a CSV; several files one after the other, each with its header, are fine too."""
    found: dict[str, Record] = {}
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)  # a quote that is not closed hides what follows
    header: list[str] | None = None
    for row in _rows(rows, origin):
        if header is None or row == list(COLUMNS):
            header = row
            if header != list(COLUMNS):
                missing = [name for name in COLUMNS if name not in header]
                how = f"no column {', '.join(missing)}" if missing else "columns in another order, or more of them"
                raise UsageError(f"{origin} is of another version of repgraph: it has {how}; move it away")
            continue
        _merge(found, _record(row, f"{origin}, line {rows.line_num}"))
    return found


def _rows(rows: Any, origin: str) -> Iterator[list[str]]:
    """The rows of a CSV reader that have something in them."""
    before = 0
    try:
        for row in rows:
            before = rows.line_num
            if row:
                yield row
    except csv.Error as error:
        raise UsageError(f"{origin}, line {before + 1} is damaged ({error}); {REMEDY}") from error


def to_csv(records: Iterable[Record]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in records:
        writer.writerow(["" if value is None else value for value in dataclasses.astuple(record)])
    return out.getvalue()


def _record(row: list[str], origin: str) -> Record:
    if len(row) != len(COLUMNS):
        raise UsageError(f"{origin} is damaged: it has {len(row)} of {len(COLUMNS)} values; {REMEDY}")
    values = {name: _value(name, text, origin) for name, text in zip(COLUMNS, row, strict=True)}
    return _checked(Record(**values), origin)


def _value(name: str, text: str, origin: str) -> Any:
    kind = _HINTS[name]
    try:
        if kind is str:
            return text
        if text == "" and kind not in (int, float):
            return None
        return int(text) if kind is int else float(text)
    except ValueError:
        raise UsageError(f"{origin} is damaged: {name} is {text!r}; {REMEDY}") from None


def _checked(record: Record, origin: str) -> Record:
    scores = [getattr(record, name) for name in SCORES]
    if record.status not in (OK, DIVERGED, FAILED):
        raise UsageError(f"{origin} is damaged: status is {record.status!r}; {REMEDY}")
    if record.status == OK and not all(s is not None and 0 <= s <= 1 for s in scores):
        raise UsageError(f"{origin} is damaged: a score is no fraction; {REMEDY}")
    return record


def read_record(path: Path) -> Record | None:
    """The record in a run's folder; None if it is not one that the file of results could have."""
    try:
        record = from_mapping(json.loads(path.read_text(encoding="utf-8")))
        return parse(to_csv([record])).get(record.key)
    except (OSError, ValueError, TypeError, KeyError, UsageError):
        return None


def from_mapping(found: Mapping[str, Any]) -> Record:
    return Record(**{name: found[name] for name in COLUMNS})


def mean_seconds(records: Iterable[Record], dataset: str, iterations: int) -> float | None:
    """How long runs like this one took, or None if there was none."""
    alike = [r.seconds for r in records if r.status == OK and (r.dataset, r.iterations) == (dataset, iterations)]
    return math.fsum(alike) / len(alike) if alike else None
