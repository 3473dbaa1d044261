"""Images through a network, and the page of what its layers looked at and what it said."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from repgraph.data.labels import Labels, spread_palette
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.sight import look_and_run
from repgraph.errors import UsageError, out_of_memory
from repgraph.pictures.explorer import Picture, Underlay, of_labels, of_objects, page

SCORE = 0.5  # objects below are not shown
THRESHOLD = 0.5  # of a mask's probabilities
PREDICTION, TRUTH = "prediction", "ground truth"


@dataclass(frozen=True)
class Subject:
    """An image, uint8 RGB (3, H, W), and what is true of it: see :func:`true_labels` and :func:`true_objects`."""

    name: str
    image: Tensor
    truth: Underlay | None = None


def explore(
    model: nn.Module,
    subjects: Iterable[Subject],
    labels: Labels | None = None,
    *,
    title: str = "",
    about: str = "",
    layers: Sequence[str] | None = None,
    score: float = SCORE,
    progress: Callable[[int], None] | None = None,
) -> str:
    """The explorer page as text: one self-contained HTML file.

    The nodes and the prediction come from the same pass of the whole image through the network.

    Args:
        model: an :class:`~repgraph.models.RGNet` or a :class:`~repgraph.models.MaskRCNN`.
        subjects: the images.
        labels: what the classes are; None for names made of their numbers.
        title, about: two lines at the top, such as the network's name and where it was trained.
        layers: paths of layers, or ends of them; None for all.
        score: the least of objects that are shown.
        progress: called with the number of images done.

    Example:
        >>> import torch
        >>> from repgraph.models import RGNet
        >>> model = RGNet(5, "resnet18", channels=16)
        >>> made = explore(model, [Subject("a", torch.zeros(3, 48, 64, dtype=torch.uint8))])
        >>> made.startswith("<!doctype html>")
        True
    """
    pictures = []
    for subject in subjects:
        pictures.append(_picture(model, subject, labels, layers, score))
        if progress:
            progress(len(pictures))
    if not pictures:
        raise UsageError("there is no image to explore")
    return page(pictures, title=title, about=about)


def true_labels(mask: Any, labels: Labels) -> Underlay:
    """The true label of each pixel, (H, W), 255 for none."""
    return of_labels(TRUTH, mask, labels)


def true_objects(target: dict[str, Any], size: Sequence[int], labels: Labels) -> Underlay:
    """The true objects, as :class:`~repgraph.data.coco.InstanceData` has them; the smallest on top."""
    order = np.argsort(np.asarray(target["area"]), kind="stable")
    boxes, masks = np.asarray(target["boxes"])[order], np.asarray(target["masks"])[order]
    classes = (np.asarray(target["labels"])[order] - 1).tolist()
    return of_objects(TRUTH, size, boxes, classes, masks, labels)


def _picture(
    model: nn.Module, subject: Subject, labels: Labels | None, layers: Sequence[str] | None, score: float
) -> Picture:
    height, width = subject.image.shape[-2:]
    try:
        sight, result = look_and_run(model, subject.image, layers=layers)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UsageError(
            f"{subject.name} ({width} x {height} pixels): out of memory; shrink it, with --side"
        ) from error
    predicted = (
        _labels(result, labels, subject.name)
        if isinstance(result, Tensor)
        else _objects(result[0], (height, width), labels, score)
    )
    underlays = (predicted,) if subject.truth is None else (predicted, subject.truth)
    image = subject.image.as_subclass(Tensor).permute(1, 2, 0).cpu().numpy()
    return Picture(subject.name, image, sight, underlays)


def _labels(logits: Tensor, labels: Labels | None, name: str) -> Underlay:
    if not bool(logits.isfinite().all()):
        raise NotFinite(f"{name}: the network's logits are not finite: its weights or the image are not")
    return of_labels(PREDICTION, logits[0].argmax(0).cpu().numpy(), labels or named(logits.shape[1]))


def _objects(found: dict[str, Tensor], size: Sequence[int], labels: Labels | None, score: float) -> Underlay:
    keep = found["scores"] >= score  # they come with the best first
    classes = (found["labels"][keep] - 1).tolist()
    return of_objects(
        PREDICTION,
        size,
        found["boxes"][keep].float().cpu().numpy(),
        classes,
        (found["masks"][keep, 0] > THRESHOLD).cpu().numpy(),
        labels or named(max(classes, default=0) + 1),
        found["scores"][keep].tolist(),
    )


def named(count: int) -> Labels:
    """Labels for classes of which nothing but their number is known."""
    return Labels(tuple(f"class {k}" for k in range(count)), spread_palette(count), tuple(range(count)))
