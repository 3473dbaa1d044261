"""Evaluation of object detection: COCO's average precision of boxes and masks, computed by pycocotools."""

import contextlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json, to_json
from torch import Tensor, nn

from repgraph import files
from repgraph.data.coco import InstanceData
from repgraph.data.files import prefetch
from repgraph.distributed import broadcast, gather, rank, shard
from repgraph.errors import UsageError
from repgraph.evaluation.segmentation import OnProgress
from repgraph.inference import Detections, NotFinite, detect
from repgraph.inference.network import check_classes, not_finite_in_all_processes

SUMMARY = ("ap", "ap50", "ap75", "small", "medium", "large")


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision as fractions; nan without objects."""

    ap: float  # mean over IoU thresholds from 0.5 to 0.95
    ap50: float
    ap75: float
    small: float  # of objects below 32 x 32 pixels
    medium: float  # up to 96 x 96 pixels
    large: float
    classes: tuple[float, ...]  # ap of each class


@dataclass(frozen=True)
class DetectionScores:
    """Scores of boxes, and of masks (None without masks), over a number of images."""

    box: AveragePrecision
    mask: AveragePrecision | None
    images: int

    def to_dict(self) -> dict[str, Any]:
        """Return the scores for JSON, with None for nan."""
        return from_json(to_json(self, inf_nan_mode="null"))


class CocoEvaluation:
    """Collects the detections of a data set's images, writes them, and scores them.

    Under torch.distributed, every process updates its own instance with a part of the images; ``reduce`` merges them.
    An image that is passed twice counts once. Scores are over the images that were passed (docs/detection.md).
    """

    def __init__(self, data: InstanceData) -> None:
        if not data.labelled:
            raise UsageError(f"{data.path} has no annotations to compare with; repgraph predict writes predictions")
        self.data = data
        self._sizes = {item.id: item.size for item in data.items}
        self._detections: dict[int, Detections] = {}

    def update(self, image_ids: Iterable[int], detections: Iterable[Mapping[str, Tensor] | Detections]) -> None:
        """Add the detections of images with these ids, as detectors return them or as :class:`Detections`."""
        count = len(self.data.labels)
        for image_id, output in zip(map(int, image_ids), detections, strict=True):
            if image_id not in self._sizes:
                raise ValueError(f"image {image_id} is not in {self.data!r}")
            size = self._sizes[image_id]
            found = output if isinstance(output, Detections) else Detections.from_output(output, size)
            if not all(1 <= label <= count for label in found.labels):
                raise ValueError(f"image {image_id}: labels are {found.labels.tolist()}; expected 1 to {count}")
            self._detections.setdefault(image_id, found)

    def reduce(self) -> "CocoEvaluation":
        """Gather the detections of all processes in the first one; every process has to call it."""
        parts = gather(self._detections)  # empty except in the first process
        self._detections = {key: found for part in reversed(parts) for key, found in part.items()}
        return self

    @property
    def image_ids(self) -> list[int]:
        """Ids of the images that were passed, in the order of the data; after ``reduce``, in the first process."""
        return [image_id for image_id in self._sizes if image_id in self._detections]

    def results(self, kind: str = "both") -> list[dict[str, Any]]:
        """Return boxes ("bbox"), masks ("segm") or both in COCO's format; after ``reduce``, in the first process."""
        found, ids = self._detections, self.data.labels.ids
        return [result for image_id in self.image_ids for result in found[image_id].coco_results(image_id, ids, kind)]

    def write(self, path: str | Path, kind: str = "both") -> Path | None:
        """Write a results file, in the first process only; COCO's server accepts kinds "bbox" and "segm"."""
        if rank() > 0:
            return None
        return files.write(Path(os.path.expanduser(path)), json.dumps(self.results(kind)))

    def scores(self) -> DetectionScores:
        """Return the scores; after ``reduce``, every process has to call it, and all get those of the first one."""
        from pycocotools.coco import COCO

        scores: Any = None
        if rank() == 0:
            masks = all(found.masks is not None for found in self._detections.values() if len(found))
            with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints the duration of each step
                truth = COCO()
                truth.dataset = self.data.truth()
                truth.createIndex()
                box = self._average_precision(truth, "bbox")
                mask = self._average_precision(truth, "segm") if masks else None
            scores = DetectionScores(box, mask, len(self.image_ids))
        return broadcast(scores)

    def _average_precision(self, truth: Any, kind: str) -> AveragePrecision:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        # Separate results for each kind: with both, pycocotools uses the area of the box for the mask.
        results = self.results(kind)
        found = truth.loadRes(results) if results else COCO()  # loadRes fails for no results
        evaluation = COCOeval(truth, found, kind)
        evaluation.params.imgIds, evaluation.params.catIds = self.image_ids, list(self.data.labels.ids)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        # For all areas and 100 detections: [thresholds, recalls, classes]; -1 is unknown.
        precision = evaluation.eval["precision"][:, :, :, 0, -1]
        known = [values[values > -1] for values in np.moveaxis(precision, 2, 0)]
        classes = tuple(float(values.mean()) if values.size else math.nan for values in known)
        stats = (float(value) if value > -1 else math.nan for value in evaluation.stats)
        return AveragePrecision(**dict(zip(SUMMARY, stats, strict=False)), classes=classes)


@dataclass(frozen=True)
class DetectionEvaluation:
    """Scores over a data set, and the detections of all processes, in the first one."""

    scores: DetectionScores
    results: CocoEvaluation


def evaluate_detection(
    model: nn.Module,
    data: InstanceData,
    *,
    limit: int | None = None,
    workers: int = 2,
    precision: str = "fp32",
    progress: OnProgress | None = None,
) -> DetectionEvaluation:
    """Detect the objects in every image of a data set, and score them by COCO's protocol.

    Arguments are as for :func:`~repgraph.inference.detect` and :func:`~repgraph.evaluation.evaluate`.
    """
    check_classes(getattr(model, "classes", None), data.labels)
    count = len(data) if limit is None else min(limit, len(data))
    indices = shard(count)
    evaluation = CocoEvaluation(data)
    with not_finite_in_all_processes():
        for done, (index, image) in enumerate(zip(indices, prefetch(data.read, indices, workers), strict=True), 1):
            try:
                evaluation.update([data.items[index].id], [detect(model, image, precision=precision)])
            except NotFinite as error:
                raise NotFinite(f"{data.items[index].image}: {error}") from error
            if progress:
                progress(done, len(indices))
    return DetectionEvaluation(evaluation.reduce().scores(), evaluation)
