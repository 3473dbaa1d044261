"""What a detector found in an image: boxes, labels, scores, and masks as run lengths, which take little room."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repgraph.data.coco import rle

THRESHOLD = 0.5  # of a mask's probabilities


@dataclass(frozen=True)
class Found:
    """The objects found in an image, the best first if the network gives them so.

    - ``size``: (H, W) of the image;
    - ``boxes``: float64 (N, 4), left, top, right, bottom in pixels; ``labels`` and ``scores``: (N,), labels from 1;
    - ``masks``: N run lengths (:mod:`repgraph.data.coco.rle`) of masks of the image's size; None where there are none.

    >>> found = Found.of(dict(boxes=torch.ones(1, 4), labels=torch.ones(1), scores=torch.ones(1)), (20, 30))
    >>> len(found), found.masks
    (1, None)
    """

    size: tuple[int, int]
    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    masks: Sequence[np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @classmethod
    def of(cls, given: "Mapping[str, Tensor] | Found", size: tuple[int, int]) -> "Found":
        """From what torchvision's detectors give for an image of that size.

        Args:
            given: "boxes" (N, 4), "labels" (N,), "scores" (N,) and perhaps "masks" (N, 1, H, W) or (N, H, W), of
                probabilities or 0 and 1.
            size: (H, W) of the image.
        """
        if isinstance(given, Found):
            found = given
        else:
            masks = encoded(given["masks"]) if "masks" in given else None
            boxes, labels, scores = (_array(given[name]) for name in ("boxes", "labels", "scores"))
            shape = tuple(given["masks"].shape[-2:]) if "masks" in given else size
            found = cls((shape[0], shape[1]), boxes.reshape(-1, 4).astype(np.float64), labels, scores, masks)
        found._check(size)
        return found

    def _check(self, size: tuple[int, int]) -> None:
        if self.size != size:
            raise ValueError(f"its masks have another size than the image: {self.size} instead of {size}")
        masks = len(self.boxes) if self.masks is None else len(self.masks)
        counts = {len(self.boxes), len(self.scores), len(self.labels), masks}
        if len(counts) > 1:
            raise ValueError(f"boxes, scores, labels and masks differ in number: {sorted(counts)}")
        if not np.isfinite(self.boxes).all() or not np.isfinite(self.scores).all():
            raise ValueError("a box or score is not finite")

    def results(self, image: int, ids: Sequence[int]) -> list[dict[str, Any]]:
        """As COCO's results files have it: ``image`` is the image's id, ``ids[label - 1]`` that of a category."""
        sides = np.concatenate([self.boxes[:, :2], self.boxes[:, 2:] - self.boxes[:, :2]], axis=1).round(4)
        results = []
        for k, (box, score, label) in enumerate(
            zip(sides.tolist(), self.scores.tolist(), self.labels.tolist(), strict=True)
        ):
            result = dict(image_id=image, category_id=ids[label - 1], bbox=box, score=score)
            if self.masks is not None:
                result["segmentation"] = {"size": list(self.size), "counts": rle.pack(self.masks[k])}
            results.append(result)
        return results


def encoded(masks: Tensor) -> list[np.ndarray]:
    """Run lengths of masks (N, 1, H, W) or (N, H, W); they are made 0 and 1 on their device, which sends less."""
    whole = masks > THRESHOLD if masks.is_floating_point() else masks != 0
    return [rle.encode(mask) for mask in _array(whole.reshape(-1, *masks.shape[-2:]))]


def encoded_part(part: np.ndarray, corner: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """Run lengths of a mask of which only a part is given: it is 0 elsewhere.

    Args:
        part: (h, w), 0 and 1.
        corner: row and column of the part's first pixel in the whole.
        size: (H, W) of the whole.

    >>> encoded_part(np.ones((1, 2)), (1, 1), (2, 4)).tolist()
    [3, 1, 1, 1, 2]
    """
    (top, left), (height, width) = corner, size
    strip = np.zeros((height, part.shape[1]), dtype=bool)
    strip[top : top + len(part)] = part != 0
    runs = rle.encode(strip)
    before, after = left * height, (width - left - part.shape[1]) * height
    runs[0] += before
    if len(runs) % 2:  # it ends with zeros
        runs[-1] += after
    elif after:
        runs = np.append(runs, after)
    return runs


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().as_subclass(torch.Tensor).cpu().numpy()
