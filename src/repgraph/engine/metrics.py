"""Scores of a segmentation, all of them from one confusion matrix over a whole set of images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repgraph.data.labels import IGNORE

CHUNK = 2**24  # pixels counted at once: of a huge image no int64 copy is made


@dataclass(frozen=True)
class Scores:
    """What a confusion matrix says, as fractions; nan where there is nothing to divide by.

    ``iou`` and ``accuracy`` have one value for each class. A class that neither the truth nor the prediction has is nan
    in ``iou`` and left out of ``miou``; one that the truth does not have is nan in ``accuracy`` and left out of
    ``mean_accuracy``. ``pixels`` are the labelled ones.
    """

    miou: float
    pixel_accuracy: float
    mean_accuracy: float
    iou: tuple[float, ...]
    accuracy: tuple[float, ...]
    pixels: int

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """The scores for JSON, which knows no nan: None stands for it. With ``names``, classes go by their names.

        >>> Scores(0.5, 0.75, 0.5, (0.5, math.nan), (0.75, math.nan), 8).to_dict(("sky", "sea"))["iou"]
        {'sky': 0.5, 'sea': None}
        """
        if names and len(set(names)) < len(names):
            raise ValueError("two of the names are equal; classes can only go by names that differ")
        iou, accuracy = ([_or_none(value) for value in values] for values in (self.iou, self.accuracy))
        named = (lambda values: dict(zip(names, values, strict=True))) if names else (lambda values: values)
        return {
            "miou": _or_none(self.miou),
            "pixel_accuracy": _or_none(self.pixel_accuracy),
            "mean_accuracy": _or_none(self.mean_accuracy),
            "iou": named(iou),
            "accuracy": named(accuracy),
            "pixels": self.pixels,
        }


class Confusion:
    """Counts of labelled pixels: row t, column p is how many of class t were predicted as p.

    The counts are int64, exact on any device and the same in any order of the images. Pixels whose target is ``ignore``
    are not counted, whatever was predicted there.

    >>> confusion = Confusion(2)
    >>> confusion.update(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 255]]))
    >>> confusion.matrix.tolist()
    [[1, 1], [0, 0]]
    >>> confusion.scores().iou
    (0.5, 0.0)
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu", *, ignore: int = IGNORE) -> None:
        if classes < 1:
            raise ValueError(f"classes is {classes}; at least one is needed")
        if 0 <= ignore < classes:
            raise ValueError(f"ignore is {ignore}, which is one of the {classes} classes; give another value")
        self.classes, self.ignore = classes, ignore
        self.matrix = torch.zeros(classes, classes, dtype=torch.int64, device=device)
        self._reduced = False

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the pixels of one or more images: class numbers, integer tensors of one shape on any device."""
        if self._reduced:
            raise RuntimeError("the counts were summed over all processes already; reset() starts new ones")
        for name, given in (("prediction", prediction), ("target", target)):
            if given.dtype.is_floating_point or given.dtype.is_complex or given.dtype == torch.bool:
                raise TypeError(
                    f"{name} has dtype {given.dtype}; class numbers as integers are needed (argmax of logits)"
                )
        if prediction.shape != target.shape:
            raise ValueError(
                f"prediction has shape {tuple(prediction.shape)}, target {tuple(target.shape)}; one is needed"
            )
        device = self.matrix.device
        counts = torch.zeros_like(self.matrix)  # added at the end: values out of range leave nothing half counted
        for predicted, true in zip(prediction.flatten().split(CHUNK), target.flatten().split(CHUNK), strict=True):
            counts += self._count(predicted.to(device), true.to(device))
        self.matrix += counts

    def _count(self, prediction: Tensor, target: Tensor) -> Tensor:
        labelled = target != self.ignore
        target, prediction = target[labelled].long(), prediction[labelled].long()
        for name, given in (("prediction", prediction), ("target", target)):
            if given.numel():
                low, high = (int(bound) for bound in given.aminmax())
                if low < 0 or high >= self.classes:
                    wrong = low if low < 0 else high
                    raise ValueError(
                        f"{name} has the value {wrong}; classes go from 0 to {self.classes - 1}"
                        + (f", and {self.ignore} is ignored" if name == "target" else "")
                    )
        return torch.bincount(target * self.classes + prediction, minlength=self.classes**2).view_as(self.matrix)

    def reduce(self) -> "Confusion":
        """Sum the counts over all processes of torch.distributed, each of which has counted images of its own.

        Every process has to call it, also one that had no image. Counts are summed, not scores: the result is that of
        one process over all images, however unevenly they were dealt. Without torch.distributed nothing changes. A
        second call changes nothing either; :meth:`reset` starts over.
        """
        if not self._reduced and dist.is_available() and dist.is_initialized():
            counts = self.matrix.to("cuda" if dist.get_backend() == "nccl" else "cpu")
            dist.all_reduce(counts)
            self.matrix = counts.to(self.matrix.device)
            self._reduced = True
        return self

    def reset(self) -> None:
        self.matrix.zero_()
        self._reduced = False

    def scores(self) -> Scores:
        """The scores of what was counted (in all processes, after :meth:`reduce`)."""
        matrix = self.matrix.tolist()  # Python's integers: sums are exact
        right = [matrix[c][c] for c in range(self.classes)]
        truth = [sum(row) for row in matrix]
        predicted = [sum(column) for column in zip(*matrix, strict=True)]
        iou = tuple(map(_divide, right, (t + p - r for t, p, r in zip(truth, predicted, right, strict=True))))
        accuracy = tuple(map(_divide, right, truth))
        return Scores(
            miou=_mean(iou),
            pixel_accuracy=_divide(sum(right), sum(truth)),
            mean_accuracy=_mean(accuracy),
            iou=iou,
            accuracy=accuracy,
            pixels=sum(truth),
        )


def _divide(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _mean(values: Sequence[float]) -> float:
    """The mean of those that are not nan."""
    found = [value for value in values if not math.isnan(value)]
    return math.fsum(found) / len(found) if found else math.nan


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
