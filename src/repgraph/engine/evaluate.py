"""The scores of a network over a whole split of a data set."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from repgraph.data.labels import Labels
from repgraph.engine.ahead import ahead
from repgraph.engine.alike import alike
from repgraph.engine.inference import Settings, predict
from repgraph.engine.inference.network import classes_of, evaluating, home
from repgraph.engine.inference.predictor import predict_alike
from repgraph.engine.metrics import Confusion, Scores
from repgraph.errors import UsageError

Progress = Callable[[float, int], None]  # images done, images in all; for this process
Each = Callable[[int, Tensor, Tensor], None]  # an image's number, its prediction (H, W) and its mask (H, W)


class Pairs(Protocol):
    """Images and masks, such as a :class:`~repgraph.data.dataset.SegmentationData`."""

    labels: Labels

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Evaluation:
    """The scores, what they come from (row t, column p: pixels of class t predicted as p), and how long it took."""

    scores: Scores
    confusion: Tensor
    images: int
    seconds: float


def evaluate(
    model: nn.Module,
    data: Pairs,
    settings: Settings | None = None,
    *,
    rank: int = 0,
    world: int = 1,
    limit: int | None = None,
    workers: int = 2,
    progress: Progress | None = None,
    each: Each | None = None,
    together: int = 1,
    **changes: Any,
) -> Evaluation:
    """Predict every image of ``data`` and count all pixels in one confusion matrix.

    The network runs where its parameters are. ``settings`` and ``changes`` are as for
    :func:`~repgraph.engine.inference.predict`. Of ``world`` processes, each takes every ``world``-th image and calls
    this; the counts are summed by torch.distributed, so that no image counts twice, and all get the same result.
    ``limit`` takes the first images only. ``workers`` threads read images ahead. ``each`` is called with every image's
    prediction, for what counts images one by one. Of images that go whole through the network, at scale 1, up to
    ``together`` of one size go at once: faster on a GPU, the same but for rounding, and not in the images' order.

    >>> class Two:
    ...     labels = Labels(("dark", "light"), ((0, 0, 0), (255, 255, 255)), ids=(0, 1))
    ...     def __len__(self) -> int:
    ...         return 3
    ...     def __getitem__(self, index: int) -> Any:
    ...         return torch.zeros(3, 8, 9, dtype=torch.uint8), torch.zeros(8, 9, dtype=torch.uint8)
    >>> evaluate(nn.Conv2d(3, 2, 1), Two()).scores.pixels
    216
    """
    settings = (settings or Settings()).changed(**changes)
    start = time.perf_counter()
    count = len(data) if limit is None else min(limit, len(data))
    indices = range(rank, count, world)
    confusion = Confusion(len(data.labels), _checked(model, data.labels, settings))
    most = together if settings.mode == "whole" and settings.scales == (1.0,) else 1
    done = 0

    def move(windows: int, of: int) -> None:
        if progress:
            progress(done + windows / of, len(indices))

    def read(index: int) -> tuple[Any, Any, int]:
        image, mask = data[index]
        if mask is None:
            raise UsageError("these images have no labels to compare with; repgraph predict writes predictions")
        return image, mask, index

    for group in alike(ahead(read, indices, workers), most):
        if len(group) == 1:
            predictions = predict(model, group[0][0], settings, progress=move)[None]
        else:
            predictions = predict_alike(model, torch.stack([item[0] for item in group]), settings)
            move(len(group), 1)
        for prediction, (_, mask, index) in zip(predictions, group, strict=True):
            confusion.update(prediction, mask)
            if each:
                each(index, prediction, mask)
        done += len(group)
    confusion.reduce()
    return Evaluation(confusion.scores(), confusion.matrix, count, time.perf_counter() - start)


def _checked(model: nn.Module, labels: Labels, settings: Settings) -> torch.device:
    """The network's device, if the network and the data have the same number of classes."""
    device, dtype = home(model, torch.empty(0))
    with evaluating(model):
        given = classes_of(model, settings, (64, 64), torch.empty(0, device=device, dtype=dtype))
    if given != len(labels):
        raise UsageError(
            f"the network has {given} classes, the data set {len(labels)}; give the data set it was trained on"
        )
    return device
