"""Reads a whole data set and collects what is wrong with it, and how often each class occurs.

Nothing that is found ends the check: files are read as training would read them, and each problem is noted.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from repgraph.data import opener
from repgraph.data.coco import check as instances
from repgraph.data.coco.dataset import InstanceData
from repgraph.data.coco.dataset import Item as Instances
from repgraph.data.dataset import Item, SegmentationData, mismatch
from repgraph.data.files import read_image, read_values
from repgraph.data.labels import IGNORE, DataError, Labels, differing
from repgraph.data.listing import Missing, NoSplit
from repgraph.data.problem import Problem

SPLITS = ("train", "val", "test")  # looked at where no others are asked for

# The kinds of problem, in the order in which they are reported.
SPLIT = "splits that cannot be opened"
NOTHING, NO_OBJECT = "splits without a labelled pixel", "splits without an object to find"
OTHERS = "splits of other classes than the first"
NO_IMAGE, NO_MASK, STRAY = "images that are missing", "masks that are missing", "masks without an image"
BAD_IMAGE, BAD_MASK = instances.BAD_IMAGE, "masks that cannot be read"
SIZE, UNKNOWN = "masks of another size than their image", "masks with unknown label values"
REPEATED, SHARED = "names that are listed more than once", "images that are in two splits"
KINDS = (
    SPLIT, NOTHING, NO_OBJECT, OTHERS, NO_IMAGE, NO_MASK, STRAY, BAD_IMAGE, BAD_MASK, SIZE, UNKNOWN, REPEATED,
    *instances.KINDS, SHARED,
)  # fmt: skip


@dataclass
class Report:
    """What was found in one split; ``pixels`` and ``images`` count each class (K,), ``objects`` those of each class.

    In sets of objects a pixel counts once for each object that it is in.
    """

    split: str
    labels: Labels | None = None
    count: int = 0  # images, as listed
    labelled: bool = True
    problems: list[Problem] = field(default_factory=list)
    pixels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    images: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    objects: np.ndarray | None = None
    ignored: int = 0  # pixels that are not labelled, or in no object
    smallest: tuple[int, int] | None = None  # (H, W) of the image with the fewest pixels, and with the most
    largest: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        names, ids = (self.labels.names, self.labels.ids) if self.labels else ((), ())
        objects = [{}] * len(names) if self.objects is None else [{"objects": n} for n in self.objects.tolist()]
        return {
            "split": self.split,
            "images": self.count,
            "labelled": self.labelled,
            "smallest": self.smallest,
            "largest": self.largest,
            "ignored_pixels": self.ignored,
            "classes": [
                {"name": name, "id": number, "pixels": int(pixels), "images": int(images), **more}
                for name, number, pixels, images, more in zip(
                    names, ids, self.pixels, self.images, objects, strict=True
                )
            ],
            "problems": [{"kind": p.kind, "about": p.about, "detail": p.detail} for p in self.problems],
        }


@dataclass(frozen=True)
class Finding:
    """What one image gave: problems, its size, the pixels of each class, ignored ones last, and the objects of each."""

    problems: list[Problem]
    size: tuple[int, int] | None
    pixels: np.ndarray  # [K + 1]
    objects: np.ndarray | None = None  # [K]


Progress = Callable[[str, int, int], None]  # the split, items done, items in all
Set = SegmentationData | InstanceData


def open_splits(name: str, root: str | Path, splits: Sequence[str] | None, **options: Any) -> list[Set | Report]:
    """The splits of a set; one that is there but cannot be used is a report that says so.

    Without ``splits``, those of train, val and test that the set has. A wrong name, folder or option is an error, and
    so is a split that was asked for and is not there.
    """
    open_split = opener(name, root, **options)
    opened: list[Set | Report] = []
    absent: list[DataError] = []
    for split in splits or SPLITS:
        try:
            opened.append(open_split(split))
        except (Missing, NoSplit) as error:
            absent.append(error)
        except DataError as error:
            opened.append(Report(split, problems=[Problem(SPLIT, split, str(error))]))
    if absent and (splits or not opened):
        raise absent[0]
    return opened


def check(sets: Sequence[Set | Report], workers: int, progress: Progress | None = None) -> list[Report]:
    """Reads all files of the sets, ``workers`` at a time."""
    reports = [data if isinstance(data, Report) else check_split(data, workers, progress) for data in sets]
    for first, second in combinations(reports, 2):  # splits can share a folder, and then its stray masks
        told = {problem for problem in first.problems if problem.kind == STRAY}
        second.problems = [problem for problem in second.problems if problem not in told]
    opened = [data for data in sets if not isinstance(data, Report)]
    for data in opened[1:]:
        if how := differing(opened[0].labels, data.labels):
            report = next(r for r in reports if r.split == data.split)
            report.problems.insert(0, Problem(OTHERS, f"{opened[0].split} and {data.split}", how))
    for one, other in combinations([data for data in opened if data.split != "trainval"], 2):
        both = {item.image for item in one.items} & {item.image for item in other.items}
        report = next(r for r in reports if r.split == other.split)
        report.problems += [Problem(SHARED, show(path), f"{one.split} and {other.split}") for path in sorted(both)]
    return reports


def check_split(data: Set, workers: int, progress: Progress | None = None) -> Report:
    """Reads all files of one split."""
    classes = len(data.labels)
    report = Report(data.split, data.labels, len(data), data.labelled)
    report.pixels, report.images = np.zeros(classes, np.int64), np.zeros(classes, np.int64)
    missing = set(data.missing)
    look: Callable[[Any], Finding]
    if isinstance(data, InstanceData):
        report.problems += data.problems
        report.objects = np.zeros(classes, np.int64)
        look = partial(examine_objects, data=data, missing=missing)
    else:
        report.problems += [Problem(STRAY, show(path)) for path in data.strays]
        report.problems += [Problem(REPEATED, name) for name in data.repeated]
        look = partial(examine, labels=data.labels, missing=missing)
    executor = ThreadPoolExecutor(workers)  # Pillow decodes outside Python's lock
    try:
        findings = executor.map(look, data.items)
        for done, finding in enumerate(findings, 1):
            _add(report, finding)
            if progress:
                progress(data.split, done, len(data))
    finally:
        executor.shutdown(cancel_futures=True)
    if report.objects is None and report.ignored and not report.pixels.any():
        report.problems.append(
            Problem(NOTHING, data.split, f"all {report.ignored} known pixels of the masks are ignored")
        )
    if isinstance(data, InstanceData) and data.labelled and not instances.anything(data):
        report.problems.append(Problem(NO_OBJECT, data.split, "crowds do not count, nor do objects that are left out"))
    report.problems.sort(key=lambda problem: KINDS.index(problem.kind))
    return report


def _add(report: Report, finding: Finding) -> None:
    report.problems += finding.problems
    report.pixels += finding.pixels[:-1]
    report.images += finding.pixels[:-1] > 0
    report.ignored += int(finding.pixels[-1])
    if report.objects is not None and finding.objects is not None:
        report.objects += finding.objects
    if finding.size:
        sizes = sorted([s for s in (report.smallest, report.largest) if s] + [finding.size], key=lambda s: s[0] * s[1])
        report.smallest, report.largest = sizes[0], sizes[-1]


def examine(item: Item, labels: Labels, missing: set[Path]) -> Finding:
    """Reads an image and its mask."""
    problems: list[Problem] = []
    attempt = partial(_attempt, problems, missing)
    image = attempt(item.image, NO_IMAGE, BAD_IMAGE, read_image)
    size = None if image is None else (int(image.shape[-2]), int(image.shape[-1]))
    pixels = np.zeros(len(labels) + 1, np.int64)
    if item.mask is None:
        return Finding(problems, size, pixels)
    values = attempt(item.mask, NO_MASK, BAD_MASK, read_values)
    if values is None:
        return Finding(problems, size, pixels)
    if size and values.shape != size:
        detail = mismatch(item, size, values.shape).removeprefix(f"{item.mask}: ")
        problems.append(Problem(SIZE, show(item.mask), detail))
    found, counts = count(values)
    meaning = labels.classes_of(found)
    np.add.at(pixels, np.where(meaning == IGNORE, len(labels), meaning)[meaning >= 0], counts[meaning >= 0])
    if (meaning < 0).any():
        unknown = zip(found[meaning < 0].tolist(), counts[meaning < 0].tolist(), strict=True)
        detail = ", ".join(f"{value} ({number} pixels)" for value, number in unknown)
        problems.append(Problem(UNKNOWN, show(item.mask), detail))
    return Finding(problems, size, pixels)


def examine_objects(item: Instances, data: InstanceData, missing: set[Path]) -> Finding:
    """Reads an image and draws its objects."""
    problems: list[Problem] = []
    found = _attempt(problems, missing, item.image, NO_IMAGE, BAD_IMAGE, lambda _: instances.sizes(item, data))
    wrong, size = found or ([], None)
    of_objects, pixels, objects = instances.count(item, data)
    return Finding([*problems, *wrong, *of_objects], size, pixels, objects)


def _attempt(
    problems: list[Problem], missing: set[Path], path: Path, absent: str, bad: str, read: Callable[[Path], Any]
) -> Any:
    """What ``read`` gives for a file; None and a problem more if it is not there or cannot be read."""
    if path in missing:
        problems.append(Problem(absent, show(path)))
        return None
    try:
        return read(path)
    except DataError as error:
        problems.append(Problem(bad, show(path), str(error).removeprefix(f"{path}: ")))
        return None


def count(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values in an array of integers, and how often each occurs.

    >>> count(np.array([[3, 0], [3, 3]], dtype=np.uint8))
    (array([0, 3]), array([1, 3]))
    """
    if values.dtype in (np.uint8, np.uint16):
        counts = np.bincount(values.ravel())
        found = np.flatnonzero(counts)
        return found, counts[found]
    return np.unique(values, return_counts=True)


def show(path: Path) -> str:
    """A path as text that can be printed; bytes that are no UTF-8 are written as \\\\x.."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
