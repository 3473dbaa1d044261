"""The scores of a detector over a whole split of a data set."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from repgraph.data.coco import InstanceData
from repgraph.engine.ahead import ahead
from repgraph.engine.detection.evaluation import CocoEvaluation
from repgraph.engine.detection.network import detect
from repgraph.engine.detection.scores import DetectionScores
from repgraph.engine.inference.network import NotFinite
from repgraph.errors import UsageError

Progress = Callable[[float, int], None]  # images done, images in all; for this process


@dataclass(frozen=True)
class Detected:
    """The scores, what was found, and how long it took.

    ``scores`` is None where pycocotools is not installed. ``results`` has all that was found: ``results.results()`` and
    ``results.write(path)``, with "bbox" or "segm" for boxes or masks alone; over several processes, in the first.
    ``images`` counts those of all processes.
    """

    scores: DetectionScores | None
    results: CocoEvaluation
    images: int
    seconds: float


def evaluate(
    model: nn.Module,
    data: InstanceData,
    *,
    rank: int = 0,
    world: int = 1,
    limit: int | None = None,
    workers: int = 2,
    precision: str = "fp32",
    progress: Progress | None = None,
) -> Detected:
    """Find the objects in every image of ``data``, and score them by COCO's protocol.

    Of ``world`` processes, each takes every ``world``-th image and calls this; what they find is brought together by
    torch.distributed, and all get the scores of one process that sees all images.

    Args:
        model: a :class:`~repgraph.models.MaskRCNN`, or a network that takes and gives what torchvision's do;
            it runs where its parameters are.
        data: images with annotations.
        rank, world: this process, and how many there are.
        limit: the first images only.
        workers: threads that read images ahead.
        precision: "fp32", or "bf16" and "fp16" under autocast.
        progress: called with the images done and the images in all, of this process.

    Numbers that are not finite are :class:`~repgraph.engine.inference.network.NotFinite`, which names the image.
    """
    check_classes(model, data)
    if not data.labelled:
        raise UsageError(
            f"{data.annotations.path} has no annotations to compare with; repgraph predict --split writes results "
            "for COCO's server"
        )
    start = time.perf_counter()
    count = len(data) if limit is None else min(limit, len(data))
    items = data.items[rank:count:world]
    evaluation = CocoEvaluation(data)
    for done, (item, image) in enumerate(ahead(lambda item: (item, data.read(item)), items, workers), 1):
        try:
            evaluation.update([item.picture.id], [detect(model, image, precision=precision)])
        except NotFinite as error:
            raise NotFinite(f"{item.image}: {error}") from error
        if progress:
            progress(done, len(items))
    evaluation.reduce()
    scores = evaluation.scores() if evaluation.missing() is None else None
    return Detected(scores, evaluation, count, time.perf_counter() - start)


def check_classes(model: nn.Module, data: InstanceData) -> None:
    """Refuse data with another number of classes than the network's."""
    classes = getattr(model, "classes", None)
    if isinstance(classes, int) and classes != len(data.labels):
        raise UsageError(
            f"the network has {classes} classes, the data set {len(data.labels)}; give the data set it was trained on"
        )
