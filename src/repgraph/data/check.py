"""Read a whole data set, report everything that is wrong with it, and count its classes (``repgraph data check``)."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from repgraph.constants import IGNORE
from repgraph.data import coco, open_split
from repgraph.data.files import NO_VALIDATION, NotFound, prefetch
from repgraph.data.labels import DataError
from repgraph.errors import one_line
from repgraph.progress import Progress


class Report:
    """The problems and statistics of a split; ``data`` is None if the split cannot be opened."""

    def __init__(self, split: str, data: Any, problems: Sequence[str]) -> None:
        self.split, self.data, self.problems = split, data, [*problems]
        self.has_objects = isinstance(data, coco.InstanceData)
        classes = 0 if data is None else len(data.labels)
        self.counts = np.zeros((3, classes + 1), np.int64)  # pixels, images, objects of each class, and of none
        self.pixels, self.images, self.objects = self.counts
        self.sizes: set[tuple[int, ...]] = set()  # (H, W)

    def add(self, index: int, image: Tensor, target: Any) -> None:
        """Count the classes of an image with a mask or objects."""
        self.sizes.add(tuple(image.shape[-2:]))
        pixels = np.zeros_like(self.pixels)
        if isinstance(target, dict):
            masks, labels = target["masks"].numpy(), target["labels"].numpy() - 1
            np.add.at(pixels, labels, masks.sum((1, 2), dtype=np.int64))
            np.add.at(self.objects, labels, 1)
            pixels[-1] = (~masks.any(0)).sum()
            item = self.data.items[index]
            if empty := len(item.objects) - len(labels):
                self.problems.append(f"{item.image}: {empty} of {len(item.objects)} objects have no pixel in the image")
        elif target is not None:
            found = np.bincount(target.numpy().ravel(), minlength=IGNORE + 1)
            pixels[:] = [*found[: len(pixels) - 1], found[IGNORE]]
        self.pixels += pixels
        self.images += pixels > 0

    def format(self, name: str) -> str:
        """Return the report on the data set ``name`` as text."""
        count = 0 if self.data is None else len(self.data)
        lines = [f"{name} {self.split}: {count} image{'s' * (count != 1)}"]
        if self.data is not None and not self.data.labelled:
            lines[0] += " without labels"
        if self.sizes:
            extremes = min(self.sizes, key=math.prod), max(self.sizes, key=math.prod)
            sizes = [f"{width} x {height}" for height, width in extremes]
            lines[0] += f", {' to '.join(dict.fromkeys(sizes))} pixels"
        if self.data is not None and self.data.labelled:
            lines += ["", *self._table(), ""]
        return "\n".join([*lines, *map(one_line, self.problems)]) + "\n"

    def _table(self) -> list[str]:
        columns = ["pixels", "images", "objects"][: 2 + self.has_objects]
        total = max(1, int(self.pixels[:-1].sum()))
        rows = [["name", "id", *columns, "%"]]
        for k, (name, number) in enumerate(zip(self.data.labels.names, self.data.labels.ids, strict=True)):
            counts = [f"{count:,}" for count in self.counts[: len(columns), k]]
            rows.append([one_line(name), str(number), *counts, f"{100 * self.pixels[k] / total:.2f}"])
        rest = "in no object" if self.has_objects else "unlabeled"
        rows.append([rest, "", f"{self.pixels[-1]:,}", *[""] * len(columns)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def check(
    name: str, root: Path, splits: Sequence[str] | None, options: dict[str, Any], workers: int, show: TextIO | None
) -> list[Report]:
    """Read all files of the given splits, by default train, val and test where they exist."""
    reports: list[Report] = []
    not_found: list[NotFound] = []
    for split in splits or ("train", "val", "test"):
        try:
            data = open_split(name, root, split, **options)
            reports.append(Report(split, data, data.problems))
        except NotFound as error:
            not_found.append(error)
            if splits:
                raise
            if split == "val" and reports:
                reports.append(Report(split, None, [f"{error}; {NO_VALIDATION}"]))
        except DataError as error:
            reports.append(Report(split, None, [str(error)]))
    if not reports:
        raise not_found[0]
    opened = [report for report in reports if report.data is not None]
    for report in opened:
        _check_files(report, workers, show)
    for (one, _), (two, report) in combinations([(report.data, report) for report in opened], 2):
        known = set(one.problems)  # of both splits
        report.problems = [problem for problem in report.problems if problem not in known]
        if difference := one.labels.difference(two.labels):
            report.problems.append(f"the classes of {one.split} and {two.split} differ: {difference}")
        if "trainval" not in (one.split, two.split):
            shared = sorted({item.image for item in one.items} & {item.image for item in two.items})
            report.problems += [f"{path}: the image is in {one.split} and {two.split}" for path in shared]
    return reports


def _check_files(report: Report, workers: int, show: TextIO | None) -> None:
    """Read images as training does, and count their classes."""
    data = report.data

    def read(index: int) -> Any:
        try:
            return data[index]
        except DataError as error:
            return error

    with Progress(f"reading {data.split}", len(data), show) as progress:
        for index, found in enumerate(prefetch(read, range(len(data)), workers)):
            if isinstance(found, DataError):
                report.problems.append(str(found))
            else:
                report.add(index, *found)
            progress.update(index + 1)
    if report.has_objects:
        if data.labelled and all(each.crowd for item in data.items for each in item.objects):
            report.problems.append(f"{data.split}: there is no object that can be used, except crowds")
    elif report.pixels[-1] and not report.pixels[:-1].any():
        report.problems.append(f"{data.split}: all {report.pixels[-1]} pixels are ignored")
