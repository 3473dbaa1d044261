"""Detectors on images: average precision of classes, and the F1 of each image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from repgraph.data.coco import rle
from repgraph.engine.detection import Found, detect, evaluate
from repgraph.engine.detection.scores import NEEDED, DetectionScores
from repgraph.engine.progress import Meter
from repgraph.engine.report.testing import SIDE, Tested, per_cent, small
from repgraph.pictures.detections import draw
from repgraph.pictures.report import Panel, Scores

CERTAIN, OVERLAP = 0.5, 0.5  # the score of what counts as found in an image, and its overlap with what is there


@dataclass(frozen=True)
class TestedObjects(Tested):
    """A detector on images; ``each`` has the F1 of every image. ``found`` is None where pycocotools is not there."""

    run: int
    model: nn.Module
    data: Any
    images: int
    found: DetectionScores | None
    each: Sequence[float]
    precision: str = "fp32"
    of: str = ""
    measure = "AP"
    score = "F1"

    def scores(self) -> list[Scores]:
        of = f" ({self.of})" if self.of else ""
        if self.found is None:
            return [Scores(self.run, f"{NEEDED}{of}", [math.nan] * len(self.data.labels), label="masks")]
        columns = []
        for label, found in (("masks", self.found.mask), ("boxes", self.found.box)):
            if found is not None:
                about = (
                    f"AP of {label} {per_cent(found.ap)}, AP50 {per_cent(found.ap50)}, AP75 {per_cent(found.ap75)}; "
                    f"small {per_cent(found.small)}, medium {per_cent(found.medium)}, large {per_cent(found.large)}{of}"
                )
                columns.append(Scores(self.run, about, found.classes, label=label))
        return columns

    def how(self) -> str:
        return f"by COCO's protocol, {self.precision}. F1 of an image: boxes of a score of 0.5 and more, overlap 0.5"

    def truth(self, index: int) -> list[Panel]:
        image, target = self.data[index]
        size = int(image.shape[1]), int(image.shape[2])
        masks = [rle.encode(np.asarray(mask)) for mask in target["masks"]]
        labels = target["labels"].numpy()
        there = Found(size, target["boxes"].numpy().astype(float), labels, np.ones(len(labels)), masks)
        picture = np.asarray(image).transpose(1, 2, 0)
        name = str(self.data.items[index].name)
        return [Panel(small(picture), name, photo=True), Panel(self._drawn(image, there), "truth", photo=True)]

    def prediction(self, index: int) -> np.ndarray:
        image = self.data[index][0]
        return self._drawn(image, detect(self.model, image, precision=self.precision))

    def _drawn(self, image: Any, found: Found) -> np.ndarray:
        return np.asarray(draw(image, found, self.data.labels.names, score=CERTAIN, side=2 * SIDE))


def test(
    run: int, model: nn.Module, data: Any, precision: str, limit: int | None, workers: int, meter: Meter, of: str = ""
) -> TestedObjects:
    """Run a detector over images."""
    found = evaluate(
        model, data, limit=limit, workers=workers, precision=precision, progress=lambda done, _: meter.at(done)
    )
    by_image: dict[int, list[dict[str, Any]]] = {}
    for result in found.results.results():
        by_image.setdefault(result["image_id"], []).append(result)
    each = [_of_image(data, index, by_image) for index in range(found.images)]
    return TestedObjects(run, model, data, found.images, found.scores, each, precision, of)


def _of_image(data: Any, index: int, results: dict[int, list[dict[str, Any]]]) -> float:
    picture = data.items[index].picture
    there = [(data.labels.ids[each.label - 1], each.box) for each in picture.objects if not each.crowd]
    certain = [each for each in results.get(picture.id, []) if each["score"] >= CERTAIN]
    certain.sort(key=lambda each: -each["score"])
    return f1(there, [(each["category_id"], each["bbox"]) for each in certain])


def f1(there: Sequence[tuple[int, Sequence[float]]], found: Sequence[tuple[int, Sequence[float]]]) -> float:
    """The F1 of what was found, the most certain first: classes and boxes (x, y, width, height); nan for nothing.

    >>> f1([(1, (0, 0, 4, 4)), (2, (9, 9, 4, 4))], [(1, (0, 0, 4, 3))])
    0.6666666666666666
    """
    left, right = list(there), 0
    for kind, box in found:
        overlaps = [_overlap(box, other) if kind == same else 0.0 for same, other in left]
        if overlaps and max(overlaps) >= OVERLAP:
            left.pop(int(np.argmax(overlaps)))
            right += 1
    total = len(there) + len(found)
    return 2 * right / total if total else math.nan


def _overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """The area that two boxes share, over that of both."""
    wide = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    high = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    common = max(wide, 0) * max(high, 0)
    both = a[2] * a[3] + b[2] * b[3] - common
    return common / both if both > 0 else 0.0
