"""Average precision as COCO defines it, by its own package."""

import contextlib
import importlib.util
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from repgraph.errors import UsageError

PACKAGE = "pycocotools"
SUMMARY = ("ap", "ap50", "ap75", "small", "medium", "large")
NEEDED = f"scores need {PACKAGE}: pip install 'repgraph[detection]'"


@dataclass(frozen=True)
class Recall:
    """Average recall, fractions; nan where there is nothing to find.

    ``ar1``, ``ar10`` and ``ar100`` count the best 1, 10 and 100 detections of an image; ``small``, ``medium`` and
    ``large`` are the last by the size of objects.
    """

    ar1: float
    ar10: float
    ar100: float
    small: float
    medium: float
    large: float

    def to_dict(self) -> dict[str, float | None]:
        """For JSON, which knows no nan: None stands for it."""
        return {key: _or_none(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Precision:
    """Average precision, fractions; nan where there is nothing to find.

    ``ap`` is the mean over overlaps of 0.5 to 0.95, ``ap50`` and ``ap75`` that at 0.5 and 0.75, ``small``, ``medium``
    and ``large`` that over objects below 32 x 32 pixels, up to 96 x 96, and above; ``classes`` has the ``ap`` of each.
    ``recall`` is how much of what is there was found at all.
    """

    ap: float
    ap50: float
    ap75: float
    small: float
    medium: float
    large: float
    classes: tuple[float, ...]
    recall: Recall

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """For JSON, which knows no nan: None stands for it. With ``names``, classes go by their names.

        >>> recall = Recall(0.2, 0.5, 0.6, math.nan, 0.6, 0.6)
        >>> found = Precision(0.5, 0.6, 0.5, math.nan, 0.5, 0.5, (0.5,), recall).to_dict(["cat"])
        >>> found["ap"], found["small"], found["classes"], found["recall"]["ar100"]
        (0.5, None, {'cat': 0.5}, 0.6)
        """
        classes = [_or_none(value) for value in self.classes]
        named = dict(zip(names, classes, strict=True)) if names else classes
        means = {name: _or_none(getattr(self, name)) for name in SUMMARY}
        return {**means, "classes": named, "recall": self.recall.to_dict()}


@dataclass(frozen=True)
class DetectionScores:
    """Precision of boxes and of masks (None where no masks were given), over so many images."""

    box: Precision
    mask: Precision | None
    images: int

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """For JSON."""
        mask = None if self.mask is None else self.mask.to_dict(names)
        return {"box": self.box.to_dict(names), "mask": mask, "images": self.images}


def available() -> bool:
    """Whether the package for scores is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def score(truth: dict[str, Any], results: list[dict[str, Any]], images: Sequence[int], masks: bool) -> DetectionScores:
    """The scores of results (as in a results file) on images of a data set (as in an annotation file)."""
    if not available():
        raise UsageError(NEEDED)
    from pycocotools.coco import COCO

    with contextlib.redirect_stdout(io.StringIO()):  # it tells the time of each step
        known = COCO()
        known.dataset = truth
        known.createIndex()
        box = _precision(known, results, images, "bbox")
        mask = _precision(known, results, images, "segm") if masks else None
    return DetectionScores(box, mask, len(images))


def _precision(known: Any, results: list[dict[str, Any]], images: Sequence[int], kind: str) -> Precision:
    from pycocotools.cocoeval import COCOeval

    categories = [entry["id"] for entry in known.dataset["categories"]]
    kept = only(results, kind)
    found = known.loadRes(kept) if kept else type(known)()
    if not kept:
        found.dataset = {"annotations": [], "images": [], "categories": []}
        found.createIndex()
    evaluation = COCOeval(known, found, kind)
    evaluation.params.imgIds = list(images)
    evaluation.params.catIds = categories
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # [overlaps, recalls, classes]: all areas, 100 detections
    classes = [_mean(precision[:, :, k]) for k in range(len(categories))]
    ap, ap50, ap75, small, medium, large, *recall = (_or_nan(value) for value in evaluation.stats)
    return Precision(ap, ap50, ap75, small, medium, large, tuple(classes), Recall(*recall))


def only(results: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Copies of results with boxes ("bbox") or masks ("segm") alone.

    In results with both, the package would take the area of the box for that of the mask, and so its size.
    """
    other = {"bbox": "segmentation", "segm": "bbox"}[kind]
    return [{key: value for key, value in result.items() if key != other} for result in results]


def _mean(precision: np.ndarray) -> float:
    valid = precision[precision > -1]
    return float(valid.mean()) if valid.size else math.nan


def _or_nan(value: float) -> float:
    """What the package says, to which -1 is nothing."""
    return float(value) if value > -1 else math.nan


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
