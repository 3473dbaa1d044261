"""Evaluation of semantic segmentation: scores from one confusion matrix over all images of a data set."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic_core import from_json, to_json
from torch import Tensor, nn

from repgraph.constants import IGNORE
from repgraph.data.files import prefetch
from repgraph.distributed import all_reduce, shard
from repgraph.errors import UsageError
from repgraph.inference import Settings, predict
from repgraph.inference.network import check_classes, device_and_dtype, not_finite_in_all_processes

SUMMARY = ("miou", "pixel_accuracy", "mean_accuracy")
OnProgress = Callable[[int, int], None]  # images done, images in total; of this process


@dataclass(frozen=True)
class Scores:
    """Scores as fractions; means are over the classes that are not nan."""

    miou: float
    pixel_accuracy: float
    mean_accuracy: float
    iou: tuple[float, ...]  # of each class; nan if it is neither in the truth nor in the predictions
    accuracy: tuple[float, ...]  # nan if the class is not in the truth
    pixels: int  # labeled ones

    def to_dict(self, names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the scores for JSON, with None for nan; with ``names``, scores of classes are dicts by name."""
        record = from_json(to_json(self, inf_nan_mode="null"))
        if names:
            record |= {field: dict(zip(names, record[field], strict=True)) for field in ("iou", "accuracy")}
        return record


class Confusion:
    """Confusion matrix: row t, column p counts the labeled pixels of class t that are predicted as class p.

    The int64 counts are exact on any device. Pixels whose target is 255 do not count.

    >>> confusion = Confusion(2)
    >>> confusion.update(torch.tensor([[0, 1, 1]]), torch.tensor([[0, 0, 255]]))
    >>> confusion.matrix.tolist()
    [[1, 1], [0, 0]]
    >>> confusion.scores().iou
    (0.5, 0.0)
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu") -> None:
        self.classes = classes
        self.matrix = torch.zeros(classes, classes, dtype=torch.int64, device=device)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Count the pixels of one or more images, integers of the same shape; ``target`` is 255 where unlabeled."""
        for name, given in (("prediction", prediction), ("target", target)):
            if given.dtype.is_floating_point or given.dtype == torch.bool:
                raise TypeError(f"{name} has dtype {given.dtype}; expected classes as integers (argmax of logits)")
        if prediction.shape != target.shape:
            raise ValueError(f"prediction has shape {tuple(prediction.shape)}, but target has {tuple(target.shape)}")
        prediction, target = (each.to(self.matrix.device) for each in (prediction, target))
        labelled = target != IGNORE
        predicted, true = prediction[labelled].long(), target[labelled].long()
        for name, given in (("prediction", predicted), ("target", true)):
            low, high = given.aminmax() if given.numel() else (0, 0)
            if low < 0 or high >= self.classes:
                raise ValueError(f"{name} has values from {low} to {high}; expected 0 to {self.classes - 1}")
        pairs = torch.bincount(true * self.classes + predicted, minlength=self.classes**2)
        self.matrix += pairs.view_as(self.matrix)

    def reduce(self) -> "Confusion":
        """Return the sum over all processes; every process has to call it, even without images."""
        total = Confusion(self.classes, self.matrix.device)
        total.matrix = all_reduce(self.matrix.clone())
        return total

    def scores(self) -> Scores:
        matrix = self.matrix.cpu()
        correct, true, predicted = matrix.diagonal().double(), matrix.sum(1), matrix.sum(0)
        iou = tuple((correct / (true + predicted - correct)).tolist())  # 0 / 0 is nan
        accuracy = tuple((correct / true).tolist())
        pixels = int(matrix.sum())
        return Scores(mean(iou), float(correct.sum() / pixels), mean(accuracy), iou, accuracy, pixels)


@dataclass(frozen=True)
class Evaluation:
    """Scores over a data set; row t, column p of ``confusion`` counts the pixels of class t that are predicted as p."""

    scores: Scores
    confusion: Tensor
    images: int


def evaluate(
    model: nn.Module,
    data: Any,
    settings: Settings | None = None,
    *,
    limit: int | None = None,
    workers: int = 2,
    progress: OnProgress | None = None,
    on_image: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Evaluation:
    """Predict every image of a data set, and score all pixels together.

    Under torch.distributed, every process has to call it: each predicts a part of the images, and all get the scores of
    all images, or raise :class:`~repgraph.inference.NotFinite` if one of them gets outputs that are not finite.

    Args:
        model, settings: As for :func:`~repgraph.inference.predict`.
        data: Images and masks with their labels, such as a :class:`~repgraph.data.dataset.SegmentationData`.
        limit: Use only the first images.
        workers: Number of threads that read images.
        on_image: Called with the index of each image, its prediction (H, W) and its mask (H, W).
    """
    check_classes(getattr(model, "classes", None), data.labels)
    count = len(data) if limit is None else min(limit, len(data))
    indices = shard(count)
    confusion = Confusion(len(data.labels), device_and_dtype(model, torch.empty(0))[0])
    with not_finite_in_all_processes():
        for done, (image, mask) in enumerate(prefetch(data.__getitem__, indices, workers), 1):
            if mask is None:
                raise UsageError("the images have no labels to compare with; repgraph predict writes predictions")
            prediction = predict(model, image, settings)
            confusion.update(prediction, mask)
            if on_image:
                on_image(indices[done - 1], prediction, mask)
            if progress:
                progress(done, len(indices))
    total = confusion.reduce()
    return Evaluation(total.scores(), total.matrix, count)


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not nan; nan if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else math.nan
