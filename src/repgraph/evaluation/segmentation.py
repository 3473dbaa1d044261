"""Evaluation of semantic segmentation over a data set."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.data.files import prefetch
from repgraph.distributed import shard
from repgraph.errors import UsageError
from repgraph.evaluation.metrics import Confusion, Scores
from repgraph.inference import Settings, predict
from repgraph.inference.network import check_classes, device_and_dtype, not_finite_in_all_processes

OnProgress = Callable[[int, int], None]  # images done, images in total; of this process
OnImage = Callable[[int, Tensor, Tensor], None]  # index of an image, its prediction (H, W) and its mask (H, W)


@dataclass(frozen=True)
class Evaluation:
    """Scores over a data set; row t, column p of ``confusion`` counts the pixels of class t that are predicted as p."""

    scores: Scores
    confusion: Tensor
    images: int
    seconds: float


def evaluate(
    model: nn.Module,
    data: Any,
    settings: Settings | None = None,
    *,
    limit: int | None = None,
    workers: int = 2,
    progress: OnProgress | None = None,
    on_image: OnImage | None = None,
    **changes: Any,
) -> Evaluation:
    """Predict every image of a data set, and score all pixels together.

    Under torch.distributed, every process has to call it: each predicts a part of the images, and all get the scores of
    all images. If the network's outputs are not finite in one process, all of them raise
    :class:`~repgraph.inference.NotFinite`.

    Args:
        model, settings, changes: As for :func:`~repgraph.inference.predict`.
        data: Images and masks with their labels, such as a :class:`~repgraph.data.dataset.SegmentationData`.
        limit: Use only the first images.
        workers: Number of threads that read images.
    """
    settings = (settings or Settings()).changed(**changes)
    start = time.perf_counter()
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
    return Evaluation(total.scores(), total.matrix, count, time.perf_counter() - start)
