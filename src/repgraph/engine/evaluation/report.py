"""Scores as a table on the screen, in per cent, and in files, as fractions."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from repgraph import files
from repgraph.engine.evaluate import Evaluation

SCORES, CLASSES, CONFUSION = "scores.json", "classes.csv", "confusion.csv"
FIELDS = ("class", "name", "iou", "accuracy", "pixels", "predicted_pixels")


def show(evaluation: Evaluation, names: Sequence[str], console: Console) -> None:
    """The score of each class and of all."""
    scores = evaluation.scores
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("class", justify="right")
    table.add_column("name")
    for head in ("IoU %", "accuracy %", "of pixels %"):
        table.add_column(head, justify="right", no_wrap=True)
    for k, row in enumerate(_rows(evaluation, names)):
        share = row["pixels"] / scores.pixels if scores.pixels else math.nan
        table.add_row(str(k), row["name"], per_cent(row["iou"]), per_cent(row["accuracy"]), per_cent(share))
    console.print(table)
    console.print()
    console.print(
        f"mIoU {per_cent(scores.miou)} %, pixel accuracy {per_cent(scores.pixel_accuracy)} %, "
        f"mean accuracy {per_cent(scores.mean_accuracy)} %"
    )
    absent = sum(math.isnan(value) for value in scores.iou)
    if absent:
        console.print(f"{absent} of {len(names)} classes are neither in the images nor predicted: left out of mIoU")


def per_cent(value: float | None) -> str:
    """A fraction in per cent with two decimals, and a dash for none.

    >>> per_cent(0.12345), per_cent(math.nan)
    ('12.35', '-')
    """
    return "-" if value is None or math.isnan(value) else f"{100 * value:.2f}"


def as_record(evaluation: Evaluation, names: Sequence[str], about: dict[str, Any]) -> dict[str, Any]:
    """What there is to say, for JSON: ``about``, the summary, and the classes in order."""
    record = evaluation.scores.to_dict()
    summary = {name: record[name] for name in ("miou", "pixel_accuracy", "mean_accuracy", "pixels")}
    classes = [{**row, "iou": iou} for row, iou in zip(_rows(evaluation, names), record["iou"], strict=True)]
    for row, accuracy in zip(classes, record["accuracy"], strict=True):
        row["accuracy"] = accuracy
    times = {"images": evaluation.images, "seconds": round(evaluation.seconds, 3)}
    return {**about, **times, **summary, "classes": classes}


def write(record: dict[str, Any], evaluation: Evaluation, folder: Path) -> list[Path]:
    """``scores.json``, ``classes.csv`` with a line for each class, and ``confusion.csv``, whose line t and column p has
    the pixels of class t that were predicted as p. Each is written whole."""
    names = [row["name"] for row in record["classes"]]
    classes = [["" if row[name] is None else row[name] for name in FIELDS] for row in record["classes"]]
    matrix = [[name, *row] for name, row in zip(names, evaluation.confusion.tolist(), strict=True)]
    return [
        files.write(folder / SCORES, (json.dumps(record, indent=2) + "\n").encode()),
        files.write(folder / CLASSES, as_csv([FIELDS, *classes])),
        files.write(folder / CONFUSION, as_csv([["truth", *names], *matrix])),
    ]


def as_csv(rows: Iterable[Sequence[Any]]) -> bytes:
    """The content of a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def _rows(evaluation: Evaluation, names: Sequence[str]) -> list[dict[str, Any]]:
    scores, counts = evaluation.scores, evaluation.confusion
    true, predicted = counts.sum(1).tolist(), counts.sum(0).tolist()
    values = zip(names, scores.iou, scores.accuracy, true, predicted, strict=True)
    return [dict(zip(FIELDS, (k, *row), strict=True)) for k, row in enumerate(values)]
