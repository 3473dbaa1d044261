"""Detections of a whole set of images, from all processes: written as a results file, and scored."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from repgraph import files
from repgraph.data.coco import InstanceData
from repgraph.engine.detection.found import Found
from repgraph.engine.detection.scores import NEEDED, DetectionScores, available, only, score
from repgraph.errors import UsageError

Result = dict[str, Any]
KINDS = ("both", "bbox", "segm")  # of results


class CocoEvaluation:
    """Collects what a detector finds; then writes and scores it.

    Every process of torch.distributed has one and updates it with the images it was dealt, however unevenly; ``reduce``
    brings all together. An image counts once: where it was dealt twice, to fill up a last batch, the first process's
    detections of it are kept. The scores are over the images that were seen.

    Example::

        evaluation = CocoEvaluation(data)
        for images, targets in loader:
            evaluation.update([target["image_id"] for target in targets], model(images))
        evaluation.reduce()
        evaluation.write("detections.json")
        print(evaluation.scores().box.ap)

    Args:
        data: the images, with the categories' own ids, and what is to be found in them.
    """

    def __init__(self, data: InstanceData) -> None:
        self.data = data
        self._ids = data.labels.ids
        self._sizes = {item.picture.id: item.size for item in data.items}
        self._found: dict[int, list[Result]] = {}
        self._reduced = False

    def update(self, images: Iterable[int], detections: Iterable[Mapping[str, Tensor] | Found]) -> None:
        """Add what was found in images, given by their own ids.

        Args:
            images: ``target["image_id"]`` of each.
            detections: for each image "boxes" (N, 4) left, top, right, bottom, "scores" (N,), "labels" (N,) from 1 to K
                and perhaps "masks" (N, 1, H, W) or (N, H, W), of probabilities or 0 and 1, in pixels of the image; or a
                :class:`~repgraph.engine.detection.Found`.
        """
        if self._reduced:
            raise RuntimeError("the detections of all processes were brought together already; reset() starts new ones")
        for image, found in zip(images, detections, strict=True):
            number = int(image)
            if number not in self._sizes:
                raise ValueError(f"image {number} is not in {self.data!r}")
            results = self._results(number, found)
            self._found.setdefault(number, results)

    def _results(self, image: int, given: Mapping[str, Tensor] | Found) -> list[Result]:
        try:
            found = Found.of(given, self._sizes[image])
        except ValueError as error:
            raise ValueError(f"image {image}: {error}") from None
        wrong = [label for label in found.labels.tolist() if not 1 <= label <= len(self._ids)]
        if wrong:
            raise ValueError(f"image {image}: label {wrong[0]}; there are 1 to {len(self._ids)}")
        return found.results(image, self._ids)

    def reduce(self) -> "CocoEvaluation":
        """Bring the detections of all processes to the first; every process has to call it, also one without images.

        Without torch.distributed nothing changes, nor does a second call change anything.
        """
        if not self._reduced and _several():
            everyone: list[dict[int, list[Result]]] | None = [{}] * dist.get_world_size() if _first() else None
            dist.gather_object(self._found, everyone)
            merged: dict[int, list[Result]] = {}
            for part in everyone or []:
                merged = part | merged  # the first process that has an image counts
            self._found = merged
            self._reduced = True
        return self

    def reset(self) -> None:
        self._found, self._reduced = {}, False

    @property
    def seen(self) -> list[int]:
        """The ids of the images that were seen, in the order of the data; after ``reduce``, in the first process."""
        return [number for number in self._sizes if number in self._found]

    def results(self, kind: str = "both") -> list[Result]:
        """The detections as results files have them, in the order of the data; after ``reduce``, in the first process.

        ``kind`` is "both", or "bbox" or "segm" for boxes or masks alone.
        """
        if kind not in KINDS:
            raise UsageError(f"unknown kind of results {kind!r}; choose one of {', '.join(KINDS)}")
        found = [result for number in self.seen for result in self._found[number]]
        return found if kind == "both" else only(found, kind)

    def write(self, path: str | Path, kind: str = "both") -> Path | None:
        """Write a results file in the first process; others do nothing.

        COCO's server takes such files for its test sets: ``kind`` "bbox" for boxes, "segm" for masks.
        """
        results = self.results(kind)
        return files.write(Path(os.path.expanduser(path)), json.dumps(results).encode()) if _first() else None

    def missing(self) -> str | None:
        """Why there can be no scores here, in words that say what to do; None if there can."""
        if not self.data.labelled:
            return (
                f"{self.data.annotations.path} has no annotations to compare with; COCO's server takes the results file"
            )
        return None if available() else NEEDED

    def scores(self) -> DetectionScores:
        """Average precision of boxes and, if there are masks, of masks, by COCO's own protocol.

        After ``reduce`` every process has to call it: the first computes, and all get the same. What is amiss (see
        :meth:`missing`) is an error in all of them.
        """
        outcome: list[Any] = [None]
        if _first():
            outcome = [self._scores()]
        if _several():
            dist.broadcast_object_list(outcome)
        if isinstance(outcome[0], str):
            raise UsageError(outcome[0])
        return outcome[0]

    def _scores(self) -> DetectionScores | str:
        amiss = self.missing()
        if amiss is not None:
            return amiss
        results = self.results()
        masks = not results or all("segmentation" in result for result in results)
        return score(self.data.truth(), results, self.seen, masks)


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _first() -> bool:
    return not _several() or dist.get_rank() == 0
