"""Tables from results: mean and spread over seeds, paired differences, and the paper's figures beside."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repgraph.engine.ablation.results import DIVERGED, OK, SCORES, Record
from repgraph.engine.ablation.runs import Line
from repgraph.engine.ablation.tables import PAPER_DATA, Entry, Table

HEADS = {"miou": "mIoU", "pixel_accuracy": "pixel accuracy", "mean_accuracy": "mean accuracy"}


@dataclass(frozen=True)
class Stat:
    """Values of several seeds, in any order: how many, their mean, sample standard deviation and range."""

    count: int
    mean: float
    deviation: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Stat | None":
        """None of no values; the deviation of one is nan.

        >>> Stat.of([1.0, 2.0, 3.0])
        Stat(count=3, mean=2.0, deviation=1.0, low=1.0, high=3.0)
        """
        if not values:
            return None
        ordered = sorted(values)
        deviation = math.nan
        if len(ordered) > 1 and all(map(math.isfinite, ordered)):
            deviation = statistics.stdev(ordered)
        return cls(len(ordered), math.fsum(ordered) / len(ordered), deviation, ordered[0], ordered[-1])

    def text(self, sign: str = "") -> str:
        """In per cent: with the deviation from three values on, with the range for two.

        >>> Stat.of([0.63, 0.64]).text()
        '63.50 (63.00 to 64.00)'
        """
        mean = f"{100 * self.mean:{sign}.2f}"
        if self.count == 1:
            return mean
        if self.count == 2:
            return f"{mean} ({100 * self.low:{sign}.2f} to {100 * self.high:{sign}.2f})"
        return f"{mean} ± {100 * self.deviation:.2f}"


@dataclass(frozen=True)
class Row:
    """A line of a table with what came of it.

    ``each`` is the mIoU with each seed, in their order; ``gain`` is in mIoU over the seeds that both have.
    """

    entry: Entry
    scores: dict[str, Stat | None]
    each: tuple[float, ...]
    gain: Stat | None
    failed: tuple[Record, ...]
    missing: int
    misfit: str
    settings: str

    @property
    def seeds(self) -> str:
        stat = self.scores["miou"]
        told = str(stat.count if stat else 0)
        if self.failed:
            told += f", {len(self.failed)} {'diverged' if all(r.status == DIVERGED for r in self.failed) else 'failed'}"
        return told + (f", {self.missing} to do" if self.missing else "")


def rows(table: Table, lines: Sequence[Line], records: Mapping[str, Record]) -> list[Row]:
    """What there is so far for each entry."""
    scored = {line.entry.name: _scored(line, records) for line in lines}
    reference = scored.get(table.reference, {})
    found = []
    for line in lines:
        own = scored[line.entry.name]
        # In the order of seeds whatever that of the records is.
        values = {name: Stat.of([getattr(own[seed], name) for seed in sorted(own)]) for name in SCORES}
        each = tuple(_miou(own[seed]) for seed in sorted(own))
        common = sorted(own.keys() & reference.keys()) if line.entry.name != table.reference else []
        gain = Stat.of([_miou(own[seed]) - _miou(reference[seed]) for seed in common])
        ended = [records[run.key] for run in line.runs if run.key in records]
        failed = tuple(record for record in ended if record.status != OK)
        missing = len(line.runs) - len(ended)
        told = line.runs[0].settings if line.runs else ""
        found.append(Row(line.entry, values, each, gain, failed, missing, line.misfit, told))
    return found


def _scored(line: Line, records: Mapping[str, Record]) -> dict[int, Record]:
    found = (records.get(run.key) for run in line.runs)
    return {record.seed: record for record in found if record is not None and record.status == OK}


def _miou(record: Record) -> float:
    assert record.miou is not None
    return record.miou


def markdown(table: Table, found: Sequence[Row], about: Sequence[str]) -> str:
    """The table for people; ``about`` is said below it, a line each."""
    paper = any(row.entry.paper for row in found)
    reference = table.entry(table.reference).label
    head = ["", *HEADS.values(), "seeds", f"mIoU against {reference}"]
    head += ["paper: mIoU", "paper: pixel accuracy"] if paper else []
    body = []
    for row in found:
        cells = [row.entry.label, *(_cell(row.scores[name]) for name in HEADS), row.seeds]
        cells.append(row.gain.text("+") if row.gain else "")
        if row.misfit:
            cells[1:] = ["", "", "", "does not fit", ""]
        if paper:
            cells += [f"{value:g}" if value is not None else "" for value in row.entry.paper or (None, None)]
        body.append(cells)
    notes = [
        "Scores are in per cent: mean ± sample standard deviation over seeds (with two seeds the range). "
        f"Differences are paired: to the entry {reference!r} of the same seed.",
    ]
    if paper:
        notes.append(f"The paper's figures are its own, on its data ({PAPER_DATA}).")
    notes += about
    notes += [f"{row.entry.label} does not fit: {row.misfit}." for row in found if row.misfit]
    notes += [f"{row.entry.label}, seed {r.seed}, {r.status}: {r.reason}" for row in found for r in row.failed]
    return f"## {table.title}\n\n{_lines(head, body)}\n\n" + "".join(f"- {note}\n" for note in notes)


def _cell(stat: Stat | None) -> str:
    return stat.text() if stat else ""


def _lines(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns stand below each other as plain text too."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    shown = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in (head, *body)]
    shown.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(shown)


def to_csv(table: Table, found: Sequence[Row]) -> str:
    """The same for programs: fractions, and per cent for the paper's."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "deviation", "low", "high")
    gains = [f"gain_{part}" for part in ("pairs", *parts)]
    names = [f"{name}_{part}" for name in SCORES for part in parts]
    paper = ["paper_miou", "paper_pixel_accuracy"]
    start = ["table", "entry", "label", "seeds", "failed", "missing"]
    writer.writerow([*start, *names, "reference", *gains, *paper, "settings"])
    for row in found:
        stats = [value for name in SCORES for value in _values(row.scores[name], parts)]
        gain = _values(row.gain, ("count", *parts))
        count = row.scores["miou"].count if row.scores["miou"] else 0
        about = [table.name, row.entry.name, row.entry.label, count, len(row.failed), row.missing]
        told = [*(row.entry.paper or ("", "")), row.settings]
        writer.writerow([*about, *stats, table.reference, *gain, *told])
    return out.getvalue()


def _values(stat: Stat | None, parts: Sequence[str]) -> list[object]:
    values = [getattr(stat, part) if stat else "" for part in parts]
    return ["" if isinstance(value, float) and math.isnan(value) else value for value in values]
