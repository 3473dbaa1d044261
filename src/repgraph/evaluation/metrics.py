"""Scores of a segmentation, from one confusion matrix over all images.

The counting is our own: torchmetrics' ``MulticlassConfusionMatrix`` counts a prediction that is out of range as another
class, and needs memory for pixels x classes² values under deterministic algorithms.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from repgraph.constants import IGNORE
from repgraph.distributed import all_reduce

SUMMARY = ("miou", "pixel_accuracy", "mean_accuracy")
CHUNK = 2**24  # pixels per count, to avoid an int64 copy of a huge image


@dataclass(frozen=True)
class Scores:
    """Scores as fractions; nan if there is nothing to divide by.

    The IoU of a class is nan if it is neither in the truth nor in the predictions, its accuracy is nan if it is not in
    the truth; means are over the other classes. ``pixels`` is the number of labelled pixels.
    """

    miou: float
    pixel_accuracy: float
    mean_accuracy: float
    iou: tuple[float, ...]
    accuracy: tuple[float, ...]
    pixels: int

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the scores for JSON, with None for nan; with ``names``, scores of classes are dicts by name."""
        record = nan_to_none(asdict(self))
        if names:
            record |= {field: dict(zip(names, record[field], strict=True)) for field in ("iou", "accuracy")}
        return record


class Confusion:
    """Confusion matrix: row t, column p counts the labelled pixels of class t that are predicted as class p.

    The int64 counts are exact on any device. Pixels whose target is 255 do not count.

    >>> confusion = Confusion(2)
    >>> confusion.update(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 255]]))
    >>> confusion.matrix.tolist()
    [[1, 1], [0, 0]]
    >>> confusion.scores().iou
    (0.5, 0.0)
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu") -> None:
        if not 1 <= classes <= IGNORE:
            raise ValueError(f"classes is {classes}; expected 1 to {IGNORE}")
        self.classes = classes
        self.matrix = torch.zeros(classes, classes, dtype=torch.int64, device=device)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the pixels of one or more images, integers of the same shape; ``target`` is 255 where unlabelled."""
        for name, given in (("prediction", prediction), ("target", target)):
            if given.dtype.is_floating_point or given.dtype == torch.bool:
                raise TypeError(f"{name} has dtype {given.dtype}; expected classes as integers (argmax of logits)")
        if prediction.shape != target.shape:
            raise ValueError(f"prediction has shape {tuple(prediction.shape)}, but target has {tuple(target.shape)}")
        device = self.matrix.device
        counts = torch.zeros_like(self.matrix)  # added at the end: after an error, the matrix is unchanged
        for predicted, true in zip(prediction.flatten().split(CHUNK), target.flatten().split(CHUNK), strict=True):
            predicted, true = predicted.to(device), true.to(device)
            labelled = true != IGNORE
            predicted, true = predicted[labelled].long(), true[labelled].long()
            for name, given in (("prediction", predicted), ("target", true)):
                low, high = (int(bound) for bound in given.aminmax()) if given.numel() else (0, 0)
                if low < 0 or high >= self.classes:
                    wrong = low if low < 0 else high
                    raise ValueError(f"{name} has the value {wrong}; expected 0 to {self.classes - 1}")
            pairs = torch.bincount(true * self.classes + predicted, minlength=self.classes**2)
            counts += pairs.view_as(counts)
        self.matrix += counts

    def reduce(self) -> "Confusion":
        """Return the sum over all processes; every process has to call it, even without images."""
        total = Confusion(self.classes, self.matrix.device)
        total.matrix = all_reduce(self.matrix.clone())
        return total

    def scores(self) -> Scores:
        matrix = self.matrix.tolist()  # Python integers: sums are exact
        correct = [matrix[c][c] for c in range(self.classes)]
        true = [sum(row) for row in matrix]
        predicted = [sum(column) for column in zip(*matrix, strict=True)]
        union = [t + p - c for t, p, c in zip(true, predicted, correct, strict=True)]
        iou = tuple(map(_divide, correct, union))
        accuracy = tuple(map(_divide, correct, true))
        return Scores(
            miou=mean(iou),
            pixel_accuracy=_divide(sum(correct), sum(true)),
            mean_accuracy=mean(accuracy),
            iou=iou,
            accuracy=accuracy,
            pixels=sum(true),
        )


def nan_to_none(value: Any) -> Any:
    """Replace nan in numbers, lists and dicts by None, for JSON."""
    if isinstance(value, dict):
        return {key: nan_to_none(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_none(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _divide(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else math.nan


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
