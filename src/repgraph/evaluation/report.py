"""Output of ``repgraph eval``: a table in percent, and files with fractions."""

import json
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


@dataclass(frozen=True)
class ScoreReport:
    """Scores of a network: a record for JSON, lines for the terminal, and further files by name."""

    record: dict[str, Any]
    shown: dict[str, str]  # columns of the table in the terminal, and their fields in the record's classes
    lines: list[str]
    files: dict[str, str]

    def show(self, console: Console) -> None:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in self.shown:
            table.add_column(column, justify="left" if column == "name" else "right", no_wrap=True)
        for row in self.record["classes"]:
            table.add_row(*(_cell(row[field]) for field in self.shown.values()))
        for part in (table, "", *self.lines):
            console.print(part)

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
    miou, pixel, mean = (_cell(scores[name]) for name in SUMMARY)
    lines = [f"mIoU {miou} %, pixel accuracy {pixel} %, mean accuracy {mean} %"]
    if absent := scores["iou"].count(None):
        lines.append(f"{absent} of {len(names)} classes are neither in the images nor predicted: not counted in mIoU")
    rows = [[name, *row] for name, row in zip(names, confusion.tolist(), strict=True)]
    means = {name: scores[name] for name in (*SUMMARY, "pixels")}
    record = {**about, "images": evaluation.images, **means, "classes": classes}
    shown = {"class": "class", "name": "name", "IoU %": "iou", "accuracy %": "accuracy", "pixels": "pixels"}
    return ScoreReport(record, shown, lines, {CONFUSION: files.to_csv(["truth", *names], rows)})


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
    lines = []
    for kind in ("box", "mask"):
        if scores[kind]:
            ap, ap50, ap75, *by_size = (_cell(scores[kind][name]) for name in AP_SUMMARY)
            sizes = "AP of small, medium and large objects {}, {}, {} %".format(*by_size)
            lines.append(f"{kind} AP {ap} %, AP50 {ap50} %, AP75 {ap75} %; {sizes}")
    if absent := sum(not row["objects"] for row in classes):
        lines.append(f"{absent} of {len(classes)} classes have no objects in these images: not counted in AP")
    record = {**about, "images": scores["images"], "box": scores["box"], "mask": scores["mask"], "classes": classes}
    shown = {"class": "class", "name": "name", "box AP %": "box_ap", "mask AP %": "mask_ap", "objects": "objects"}
    contents = {name: json.dumps(results.results(kind)) for name, kind in ((BOXES, "bbox"), (MASKS, "segm"))}
    return ScoreReport(record, shown, lines, contents)


def _cell(value: str | int | float | None) -> str:
    """Format a name, a number, or a fraction in percent; None is unknown."""
    if isinstance(value, float):
        return f"{100 * value:.2f}"
    return "-" if value is None else one_line(str(value))
