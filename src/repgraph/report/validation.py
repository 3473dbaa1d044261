"""Evaluate the networks of runs on their validation images: scores of classes and images."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from repgraph import recipes
from repgraph.errors import UsageError
from repgraph.evaluation import Confusion, evaluate, evaluate_detection
from repgraph.inference import Settings, predict
from repgraph.inference.network import memory_hints
from repgraph.models import MaskRCNN
from repgraph.progress import Progress
from repgraph.report.run_log import FINISHED, RunLog
from repgraph.train.session import make_task


@dataclass(frozen=True)
class Options:
    data: str | None = None  # folder of the data set; by default the recipe's
    limit: int | None = None  # use only the first validation images
    pictures: int = 4  # number of best, worst and most different images
    evaluate: bool = True  # otherwise the page is made from the logs only
    device: str | torch.device = "cpu"
    workers: int = 2  # threads that read images


@dataclass(frozen=True)
class Column:
    """Scores of a run's network, as fractions."""

    log: RunLog
    summary: str
    values: Sequence[float]  # of each class
    label: str = ""  # if a run has several columns
    confusion: np.ndarray | None = None  # (K, K) in shares of its rows


@dataclass(frozen=True)
class Result:
    """A run's network on the first images of a data set."""

    data: Any
    scores: Any
    count: int  # number of images
    measure: str  # of classes
    protocol: str  # how images are evaluated
    columns: Sequence[Column]
    per_image: Sequence[float] = ()  # mIoU of each image, NaN if it has no labels; empty for detectors
    predict: Callable[[Tensor], Tensor] | None = None  # returns the classes of an image's pixels

    @property
    def images(self) -> tuple[Any, ...]:
        """Identify the images and classes; results that share them are compared."""
        names = tuple(item.name for item in self.data.items[: self.count])
        return self.measure, self.data.name, self.data.split, tuple(self.data.labels.names), names


def evaluate_segmentation(log: RunLog, model: nn.Module, data: Any, settings: Settings, **options: Any) -> Result:
    """Evaluate a segmentation network, and each image by its own mIoU."""
    per_image = []

    def add(index: int, prediction: Tensor, mask: Tensor) -> None:
        confusion = Confusion(len(data.labels))
        confusion.update(prediction, mask)
        per_image.append(confusion.scores().miou)

    with memory_hints(["--device cpu"]):
        found = evaluate(model, data, settings, on_image=add, **options)
    scores, counts = found.scores, found.confusion.cpu().numpy()
    names = {"mIoU": scores.miou, "pixel accuracy": scores.pixel_accuracy, "mean accuracy": scores.mean_accuracy}
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    column = Column(log, _summary(log, names), scores.iou, confusion=shares)
    protocol, predictor = f"over all labeled pixels, {settings}", partial(predict, model, settings=settings)
    return Result(data, scores, len(per_image), "IoU", protocol, [column], per_image, predictor)


def evaluate_run(log: RunLog, model: nn.Module, options: Options, show: TextIO | None = None) -> Result:
    """Evaluate the network of a run on its validation images, at scale 1 without flip, as during training."""
    data, recipe = open_validation(log, options.data), log.recipe
    assert recipe is not None
    precision = recipe.train.precision if next(model.parameters()).is_cuda else "fp32"
    limit = options.limit or recipe.data.val_limit or None
    with Progress(f"evaluating {log.name}", min(limit or len(data), len(data)), show) as meter:
        given: Any = dict(limit=limit, workers=options.workers, progress=lambda done, _: meter.update(done))
        if isinstance(recipe, recipes.Recipe):
            test = recipe.test
            settings = Settings(mode=test.mode, crop=test.crop, stride=test.stride, precision=precision)
            return evaluate_segmentation(log, model, data, settings, **given)
        assert isinstance(model, MaskRCNN)
        found = evaluate_detection(model, data, precision=precision, **given)
    columns = []
    for label, scores in (("masks", found.scores.mask), ("boxes", found.scores.box)):
        if scores is not None:
            summary = _summary(log, {"AP": scores.ap, "AP50": scores.ap50, "AP75": scores.ap75})
            columns.append(Column(log, f"{label}: {summary}", scores.classes, label))
    return Result(data, found.scores, found.scores.images, "AP", f"by COCO's protocol, {precision}", columns)


def open_validation(log: RunLog, root: str | None = None) -> Any:
    """Open the images on which a run is validated during training; ``root`` overrides the folder of the data set."""
    if log.recipe is None:
        raise UsageError("the recipe is not valid")
    recipe = log.recipe if root is None else recipes.with_values(log.recipe, {"data.root": root})
    data, task = recipe.data, make_task(recipe)
    if data.root and not os.path.isdir(os.path.expanduser(data.root)):
        raise UsageError(f"data.root is {data.root}, which is not a folder; pass the data set with --data ROOT")
    if not data.hold_out and not data.val_split:
        raise UsageError("data.val_split is empty: the run has no validation images")
    return task.splits()[1] if data.hold_out else task.open(data.val_split, training=False)


def percent(value: float) -> str:
    return f"{100 * value:.2f}\N{NO-BREAK SPACE}%" if math.isfinite(value) else "unknown"


def _summary(log: RunLog, scores: dict[str, float]) -> str:
    note = "" if log.state == FINISHED else f" (last checkpoint, {log.network})"
    return ", ".join(f"{name} {percent(value)}" for name, value in scores.items()) + note
