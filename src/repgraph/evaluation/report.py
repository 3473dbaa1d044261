"""Output of ``repgraph eval``: tables in percent, and files with fractions."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from repgraph import files
from repgraph.errors import one_line
from repgraph.evaluation.detection import SUMMARY as AP_SUMMARY
from repgraph.evaluation.detection import DetectionEvaluation
from repgraph.evaluation.segmentation import SUMMARY, Evaluation
from repgraph.inference.files import BOXES, MASKS

SCORES, CLASSES, CONFUSION = "scores.json", "classes.csv", "confusion.csv"
MEANS = ("AP", "AP50", "AP75", "small", "medium", "large")


@dataclass(frozen=True)
class ScoreReport:
    """Scores of a network: a record for JSON, tables and lines for the terminal, and further files by name."""

    record: dict[str, Any]
    tables: list[Table]
    lines: list[str]
    files: dict[str, str]

    def show(self, console: Console) -> None:
        for part in (*self.tables, *self.lines):
            console.print(part)
            if isinstance(part, Table):
                console.print()

    def write(self, folder: Path) -> list[Path]:
        """Write ``scores.json``, ``classes.csv`` and further files; return the paths."""
        classes = self.record["classes"]
        contents = {
            SCORES: json.dumps(self.record, indent=2) + "\n",
            CLASSES: files.to_csv(list(classes[0]), [list(row.values()) for row in classes]),
            **self.files,
        }
        return [files.write(folder / name, content) for name, content in contents.items()]


def segmentation_report(about: dict[str, Any], evaluation: Evaluation, names: Sequence[str]) -> ScoreReport:
    """Report the scores of a segmentation network; ``about`` begins the record."""
    scores, confusion = evaluation.scores.to_dict(), evaluation.confusion
    fields = ("class", "name", "iou", "accuracy", "pixels", "predicted_pixels")
    pixels, predicted = confusion.sum(1).tolist(), confusion.sum(0).tolist()
    columns = zip(range(len(names)), names, scores["iou"], scores["accuracy"], pixels, predicted, strict=True)
    classes = [dict(zip(fields, row, strict=True)) for row in columns]
    means = {name: scores[name] for name in (*SUMMARY, "pixels")}
    table = _table("class", "name", "IoU %", "accuracy %", "pixels %")
    for row in classes:
        share = row["pixels"] / scores["pixels"] if scores["pixels"] else None
        table.add_row(str(row["class"]), one_line(row["name"]), *map(percent, (row["iou"], row["accuracy"], share)))
    miou, pixel, mean = (percent(scores[name]) for name in SUMMARY)
    lines = [f"mIoU {miou} %, pixel accuracy {pixel} %, mean accuracy {mean} %"]
    if absent := scores["iou"].count(None):
        lines.append(f"{absent} of {len(names)} classes are neither in the images nor predicted: not counted in mIoU")
    matrix = files.to_csv(
        ["truth", *names], [[name, *row] for name, row in zip(names, confusion.tolist(), strict=True)]
    )
    record = {**about, "images": evaluation.images, **means, "classes": classes}
    return ScoreReport(record, [table], lines, {CONFUSION: matrix})


def detection_report(about: dict[str, Any], evaluation: DetectionEvaluation) -> ScoreReport:
    """Report the scores of a detector; ``about`` begins the record."""
    results, scores = evaluation.results, evaluation.scores.to_dict()
    data, evaluated = results.data, set(results.image_ids)
    unknown = [None] * len(data.labels)
    box_ap, mask_ap = (scores[kind].pop("classes") if scores[kind] else unknown for kind in ("box", "mask"))
    items = [item for item in data.items if item.id in evaluated]
    objects = Counter(each.label for item in items for each in item.objects if not each.crowd)
    fields = ("class", "id", "name", "box_ap", "mask_ap", "objects")
    columns = enumerate(zip(data.labels.ids, data.labels.names, box_ap, mask_ap, strict=True), 1)
    classes = [dict(zip(fields, (label, *row, objects[label]), strict=True)) for label, row in columns]
    table = _table("class", "name", "box AP %", "mask AP %", "objects")
    for row in classes:
        ap = map(percent, (row["box_ap"], row["mask_ap"]))
        table.add_row(str(row["class"]), one_line(row["name"]), *ap, str(row["objects"]))
    means = _table("%", *MEANS)
    for kind, found in ((kind, scores[kind]) for kind in ("box", "mask") if scores[kind]):
        means.add_row(kind, *(percent(found[name]) for name in AP_SUMMARY))
    lines = ["small, medium and large are AP by object size"]
    if absent := sum(not row["objects"] for row in classes):
        lines.append(f"{absent} of {len(classes)} classes have no objects in these images: not counted in AP")
    record = {**about, "images": scores["images"], "box": scores["box"], "mask": scores["mask"], "classes": classes}
    contents = {name: json.dumps(results.results(kind)) for name, kind in ((BOXES, "bbox"), (MASKS, "segm"))}
    return ScoreReport(record, [table, means], lines, contents)


def percent(value: float | None) -> str:
    """Format a fraction in percent, with a dash for None and nan."""
    return "-" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def _table(*columns: str) -> Table:
    """Return an empty table; all columns except names are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in ("name", "%") else "right", no_wrap=True)
    return table
