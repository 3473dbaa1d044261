"""Read a whole data set, report everything that is wrong with it, and count its classes (``repgraph data check``)."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from repgraph.constants import IGNORE
from repgraph.data import coco, open_split
from repgraph.data.dataset import SegmentationData
from repgraph.data.files import NO_VALIDATION, NotFound, prefetch
from repgraph.data.labels import DataError
from repgraph.errors import one_line
from repgraph.progress import Progress

SPLITS = ("train", "val", "test")  # checked by default
Data = SegmentationData | coco.InstanceData


class Report:
    """The problems and statistics of a split or of one image; ``data`` is None if the split cannot be opened."""

    def __init__(self, split: str, data: Data | None) -> None:
        self.split, self.data = split, data
        self.problems: list[str] = []
        classes = 0 if data is None else len(data.labels)
        self.counts = np.zeros((3, classes + 1), np.int64)  # pixels, images, objects of each class, and of none
        self.pixels, self.images, self.objects = self.counts
        self.sizes: set[tuple[int, int]] = set()  # (H, W)

    def add(self, other: "Report") -> None:
        """Add what was found in one image."""
        self.problems += other.problems
        self.counts += other.counts
        self.sizes |= other.sizes

    def format(self, name: str) -> str:
        """Return the report on the data set ``name`` as text."""
        data, count = self.data, 0 if self.data is None else len(self.data)
        lines = [f"{name} {self.split}: {count} image{'s' * (count != 1)}"]
        if data is not None and not data.labelled:
            lines[0] += " without labels"
        if self.sizes:
            extremes = min(self.sizes, key=math.prod), max(self.sizes, key=math.prod)
            sizes = [f"{width} x {height}" for height, width in extremes]
            lines[0] += f", {' to '.join(dict.fromkeys(sizes))} pixels"
        if data is not None and data.labelled:
            lines += ["", *self._table(data), ""]
        return "\n".join([*lines, *map(one_line, self.problems)]) + "\n"

    def _table(self, data: Data) -> list[str]:
        columns = ["pixels", "images"] + ["objects"] * isinstance(data, coco.InstanceData)
        total = max(1, int(self.pixels[:-1].sum()))
        rows = [["name", "id", *columns, "%"]]
        for k, (name, number) in enumerate(zip(data.labels.names, data.labels.ids, strict=True)):
            counts = [f"{count:,}" for count in self.counts[: len(columns), k]]
            rows.append([one_line(name), str(number), *counts, f"{100 * self.pixels[k] / total:.2f}"])
        rest = "in no object" if isinstance(data, coco.InstanceData) else "unlabelled"
        rows.append([rest, "", f"{self.pixels[-1]:,}", *[""] * len(columns)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def check(
    name: str, root: Path, splits: Sequence[str] | None, options: dict[str, Any], workers: int, show: TextIO | None
) -> list[Report]:
    """Read all files of the given splits, by default train, val and test where they exist."""
    reports: list[Report] = []
    not_found: list[NotFound] = []
    for split in splits or SPLITS:
        report = Report(split, None)
        try:
            report = Report(split, open_split(name, root, split, **options))
        except NotFound as error:
            not_found.append(error)
            if splits or split != "val" or not reports:
                continue
            report.problems.append(f"{error}; {NO_VALIDATION}")
        except DataError as error:
            report.problems.append(str(error))
        reports.append(report)
    if not_found and (splits or not reports):
        raise not_found[0]
    opened = [(report, report.data) for report in reports if report.data is not None]
    for report, data in opened:
        _check_files(report, data, workers, show)
    for (first, one), (second, two) in combinations(opened, 2):
        _compare(first, one, second, two)
    return reports


def _compare(first: Report, one: Data, second: Report, two: Data) -> None:
    """Add problems between two splits to the second report, and remove masks without an image that both splits have."""
    known = set(one.problems)
    second.problems = [problem for problem in second.problems if problem not in known]
    if difference := one.labels.difference(two.labels):
        second.problems.append(f"the classes of {one.split} and {two.split} differ: {difference}")
    if "trainval" not in (one.split, two.split):
        shared = sorted({item.image for item in one.items} & {item.image for item in two.items})
        second.problems += [f"{path}: the image is in {one.split} and {two.split}" for path in shared]


def _check_files(report: Report, data: Data, workers: int, show: TextIO | None) -> None:
    report.problems += data.problems
    with Progress(f"reading {data.split}", len(data), show) as progress:
        for done, found in enumerate(prefetch(partial(_examine, data=data), range(len(data)), workers), 1):
            report.add(found)
            progress.update(done)
    if isinstance(data, coco.InstanceData):
        if data.labelled and all(each.crowd for item in data.items for each in item.objects):
            report.problems.append(f"{data.split}: there is no object that can be used, except crowds")
    elif report.pixels[-1] and not report.pixels[:-1].any():
        report.problems.append(f"{data.split}: all {report.pixels[-1]} pixels are ignored")


def _examine(index: int, data: Data) -> Report:
    """Read an image as training does, with its mask or objects, and count its classes."""
    found, classes = Report(data.split, data), len(data.labels)
    try:
        image, target = data[index]
    except DataError as error:
        found.problems.append(str(error))
        return found
    found.sizes.add((image.shape[-2], image.shape[-1]))
    if isinstance(target, dict):
        masks, labels = target["masks"].numpy(), target["labels"].numpy() - 1
        np.add.at(found.pixels, labels, masks.sum((1, 2), dtype=np.int64))
        np.add.at(found.objects, labels, 1)
        found.pixels[-1] = (~masks.any(0)).sum()
        item: Any = data.items[index]
        if empty := len(item.objects) - len(labels):
            found.problems.append(f"{item.image}: {empty} of {len(item.objects)} objects have no pixel in the image")
    elif target is not None:
        pixels = np.bincount(target.numpy().ravel(), minlength=IGNORE + 1)
        found.pixels[:] = [*pixels[:classes], pixels[IGNORE]]
    found.images[:] = found.pixels > 0
    return found
