"""Scores of detections as tables on the screen, in per cent, and in files, as fractions."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from repgraph import files
from repgraph.engine.detection.scores import SUMMARY, DetectionScores, Precision
from repgraph.engine.detection.split import Detected
from repgraph.engine.evaluation.report import CLASSES, SCORES, as_csv, per_cent

BOXES, MASKS = "bbox.json", "segm.json"  # results, named as COCO names their kinds
FIELDS = ("class", "id", "name", "box_ap", "mask_ap", "objects")
HEADS = ("AP", "AP50", "AP75", "small", "medium", "large", "AR1", "AR10", "AR100", "small", "medium", "large")


def show(scores: DetectionScores, record: dict[str, Any], console: Console) -> None:
    """The precision of each class, then that of all, with recall."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("class", justify="right")
    table.add_column("name")
    for head in ("box AP %", "mask AP %", "objects"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in record["classes"]:
        table.add_row(
            str(row["class"]), row["name"], per_cent(row["box_ap"]), per_cent(row["mask_ap"]), str(row["objects"])
        )
    console.print(table)
    console.print()
    means = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    means.add_column("%")
    for head in HEADS:
        means.add_column(head, justify="right", no_wrap=True)
    for name, precision in (("box", scores.box), ("mask", scores.mask)):
        if precision is not None:
            means.add_row(name, *map(per_cent, _numbers(precision)))
    console.print(means)
    console.print()
    console.print("AP of small, medium and large objects stands after AP75, their AR after AR100")
    absent = sum(not row["objects"] for row in record["classes"])
    if absent:
        console.print(f"{absent} of {len(record['classes'])} classes have no object in these images: left out of AP")


def as_record(found: Detected, about: dict[str, Any]) -> dict[str, Any]:
    """What there is to say, for JSON: ``about``, the summary, and the classes in order."""
    labels = found.results.data.labels
    summary = {} if found.scores is None else found.scores.to_dict()
    kinds = {kind: summary.get(kind) for kind in ("box", "mask")}
    nothing = [None] * len(labels)
    precisions = {kind: nothing if each is None else each.pop("classes") for kind, each in kinds.items()}
    counts = _objects(found)
    rows = zip(labels.ids, labels.names, precisions["box"], precisions["mask"], strict=True)
    classes = [dict(zip(FIELDS, (k, *row, counts[k]), strict=True)) for k, row in enumerate(rows, 1)]
    times = {"images": found.images, "seconds": round(found.seconds, 3)}
    return {**about, **times, **kinds, "classes": classes}


def write(record: dict[str, Any], found: Detected, folder: Path) -> list[Path]:
    """``bbox.json`` and ``segm.json``, what was found; with scores also ``scores.json`` and ``classes.csv``."""
    written = [_results(found, folder / BOXES, "bbox"), _results(found, folder / MASKS, "segm")]
    if found.scores is None:
        return written
    rows = [["" if row[name] is None else row[name] for name in FIELDS] for row in record["classes"]]
    return [
        files.write(folder / SCORES, (json.dumps(record, indent=2) + "\n").encode()),
        files.write(folder / CLASSES, as_csv([FIELDS, *rows])),
        *written,
    ]


def _results(found: Detected, path: Path, kind: str) -> Path:
    return files.write(path, json.dumps(found.results.results(kind)).encode())


def _numbers(precision: Precision) -> list[float]:
    recall = precision.recall
    found = [getattr(precision, name) for name in SUMMARY]
    return [*found, recall.ar1, recall.ar10, recall.ar100, recall.small, recall.medium, recall.large]


def _objects(found: Detected) -> Counter[int]:
    """How many objects of each class there are in the images that were seen, by label; crowds are not to be found."""
    data, seen = found.results.data, set(found.results.seen)
    items = [item for item in data.items if item.picture.id in seen]
    return Counter(each.label for item in items for each in item.picture.objects if not each.crowd)
