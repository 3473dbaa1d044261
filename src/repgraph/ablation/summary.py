"""Tables from results: mean and spread over seeds, paired differences, and the paper's scores, as text and picture."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from repgraph import files
from repgraph.ablation.results import DIVERGED, OK, Record
from repgraph.ablation.tables import EntryRuns, Table
from repgraph.evaluation.segmentation import SUMMARY


class EntrySummary:
    """The results of an entry so far; ``reference`` has the mIoU by seed that its own is compared with."""

    def __init__(self, row: EntryRuns, records: Mapping[str, Record], reference: Mapping[int, float]) -> None:
        ended = [records[run.key] for run in row.runs if run.key in records]
        scored = sorted((record for record in ended if record.status == OK), key=lambda record: record.seed)
        self.entry, self.runs, self.misfit = row.entry, row.runs, row.misfit
        self.scores: dict[str, list[float]] = {name: [getattr(each, name) for each in scored] for name in SUMMARY}
        self.miou = {record.seed: record.miou or 0.0 for record in scored}
        self.gain = [miou - reference[seed] for seed, miou in self.miou.items() if seed in reference]
        self.failed = [record for record in ended if record.status != OK]
        self.missing = len(row.runs) - len(ended)

    @property
    def seeds(self) -> str:
        text = str(len(self.miou))
        if self.failed:
            all_diverged = all(record.status == DIVERGED for record in self.failed)
            text += f", {len(self.failed)} {'diverged' if all_diverged else 'failed'}"
        return text + (f", {self.missing} to do" if self.missing else "")


def summarize(table: Table, rows: Sequence[EntryRuns], records: Mapping[str, Record]) -> list[EntrySummary]:
    """Return a summary of each entry of a table."""
    reference = next(EntrySummary(row, records, {}).miou for row in rows if row.entry.name == table.reference)
    others = [{} if row.entry.name == table.reference else reference for row in rows]
    return [EntrySummary(row, records, other) for row, other in zip(rows, others, strict=True)]


def markdown(table: Table, rows: Sequence[EntrySummary], notes: Sequence[str]) -> str:
    """Format a table as Markdown, with notes below it."""
    paper = any(row.entry.paper for row in rows)
    reference = table.entry(table.reference).label
    head = ["", "mIoU", "pixel accuracy", "mean accuracy", "seeds", f"mIoU against {reference}"]
    head += ["paper: mIoU", "paper: pixel accuracy"] if paper else []
    body: list[list[str]] = []
    for row in rows:
        cells = [*map(_percent, row.scores.values()), row.seeds, _percent(row.gain, "+")]
        if row.misfit:
            cells = ["", "", "", "does not fit", ""]
        if paper:
            cells += [f"{value:g}" if value is not None else "" for value in row.entry.paper or (None, None)]
        body.append([row.entry.label, *cells])
    lines = [
        "Scores are in percent: mean ± sample standard deviation over seeds (with two seeds the range). "
        f"Differences are to {reference!r} with the same seed.",
        *(["The paper's scores, on ADE20K val with ResNet-50, cannot be compared with these runs."] if paper else []),
        *notes,
        *(f"{row.entry.label} does not fit: {row.misfit}." for row in rows if row.misfit),
        *(f"{row.entry.label}, seed {r.seed}, {r.status}: {r.reason}" for row in rows for r in row.failed),
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    padded = [map(str.ljust, row, widths) for row in (head, *body)]
    aligned = [f"| {' | '.join(row)} |" for row in padded]
    aligned.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    return "\n".join([f"## {table.title}", "", *aligned, "", *(f"- {line}" for line in lines), ""])


def _percent(values: Sequence[float], sign: str = "") -> str:
    """Format the mean over seeds, with the range of two values or the standard deviation of more."""
    if not values:
        return ""
    mean = f"{100 * fmean(values):{sign}.2f}"
    if len(values) == 1:
        return mean
    if len(values) == 2:
        return f"{mean} ({100 * min(values):{sign}.2f} to {100 * max(values):{sign}.2f})"
    return f"{mean} ± {100 * stdev(values):.2f}"


def _statistics(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_mean": fmean(values) if values else None,
        f"{name}_deviation": stdev(values) if len(values) > 1 else None,
        f"{name}_low": min(values, default=None),
        f"{name}_high": max(values, default=None),
    }


def to_csv(table: Table, rows: Sequence[EntrySummary]) -> str:
    """Format a table as CSV: fractions, and percent for the paper's scores."""
    records: list[dict[str, Any]] = []
    for row in rows:
        record: dict[str, Any] = {"table": table.name, "entry": row.entry.name, "label": row.entry.label}
        record |= {"seeds": len(row.miou), "failed": len(row.failed), "missing": row.missing}
        for name, values in row.scores.items():
            record |= _statistics(name, values)
        record |= {"reference": table.reference, "gain_pairs": len(row.gain) or None}
        record |= _statistics("gain", row.gain)
        record["paper_miou"], record["paper_pixel_accuracy"] = row.entry.paper or (None, None)
        record["settings"] = row.runs[0].settings if row.runs else ""
        records.append(record)
    return files.to_csv(list(records[0]), [list(record.values()) for record in records])
