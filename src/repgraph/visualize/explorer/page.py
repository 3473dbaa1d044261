"""The explorer page: one file with the data of images, and the template, scripts and styles beside this module.

Its content policy allows no requests and no scripts but its own; names are data, and the scripts show them as text.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL.Image import Resampling
from torch import Tensor, nn

from repgraph.data.coco import masks as coco_masks
from repgraph.data.labels import Labels
from repgraph.drawing.detections import SCORE
from repgraph.drawing.overlay import as_picture
from repgraph.drawing.page import data_uri, read_asset, render
from repgraph.inference import Detections, Trained
from repgraph.inference.network import memory_hints
from repgraph.visualize.collect import LayerAttention, attention_and_output, to_prediction
from repgraph.visualize.explorer.packing import MAX_SIDE, pack_classes, pack_layers, pack_objects

SCRIPTS = ("data.js", "view.js", "draw.js", "panel.js", "main.js")  # in this order


@dataclass(frozen=True)
class ExplorerImage:
    """An image of the page."""

    name: str
    image: Tensor  # uint8 RGB (3, H, W)
    truth: Any = None  # classes (H, W) with 255 for unlabeled pixels, or objects as in repgraph.data.coco.InstanceData
    picture: Tensor | None = None  # shown in place of the image: the same at another size


def explore(
    model: nn.Module,
    images: Iterable[ExplorerImage],
    labels: Labels | None = None,
    *,
    title: str = "",
    about: str = "",
    layers: Sequence[str] | None = None,
    score: float = SCORE,
    progress: Callable[[int], None] = lambda done: None,
) -> str:
    """Return the explorer page of a network as HTML, in one self-contained file.

    Nodes and predictions come from the same pass of the whole image through the network.

    Args:
        model: An :class:`~repgraph.models.RGNet` or a :class:`~repgraph.models.MaskRCNN`.
        labels: Names and colors of the classes; by default "class 0" and so on.
        title, about: First and second line of the page.
        layers: Paths of layers, or the ends of paths; None for all.
        score: Minimum score of objects.
    """
    labels = labels or Trained(model, None, None).labels_or_numbers()  # type: ignore[arg-type]
    packed = []
    for image in images:
        size = height, width = image.image.shape[-2], image.image.shape[-1]
        with memory_hints(["a smaller image (command line: --side)"], f"{image.name} ({width} x {height} pixels): "):
            attention, output = attention_and_output(model, image.image, layers=layers)
        overlays = [_predicted(to_prediction(output, size, image.name), labels, score)]
        if image.truth is not None:
            overlays.append(_true(image.truth, size, labels))
        packed.append(pack_image(image, list(attention.values()), overlays))
        progress(len(packed))
    return make_page(packed, title, about)


def pack_image(
    image: ExplorerImage, layers: Sequence[LayerAttention], overlays: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the data of one image for the page."""
    height, width = image.image.shape[-2:]
    photo = as_picture((image.image if image.picture is None else image.picture).cpu())
    photo.thumbnail((MAX_SIDE, MAX_SIDE), Resampling.BOX)
    size = {"width": width, "height": height}
    packed = pack_layers(layers, (height, width))
    return {"name": image.name, **size, "photo": data_uri(photo, photo=True), "overlays": overlays, "layers": packed}


def make_page(images: Sequence[dict[str, Any]], title: str = "", about: str = "") -> str:
    """Return the page of images from :func:`pack_image`."""
    return render(
        "explorer.html",
        __package__,
        title=title or "RepGraph explorer",
        about=about,
        style=read_asset(__package__, "style.css"),
        script="".join(read_asset(__package__, name) for name in SCRIPTS),
        data={"images": images},
    )


def _predicted(prediction: np.ndarray | Detections, labels: Labels, score: float) -> dict[str, Any]:
    if not isinstance(prediction, Detections):
        return pack_classes("prediction", prediction, labels)
    count = int((prediction.scores >= score).sum())  # they are sorted by score
    boxes, classes, scores = (each[:count] for each in (prediction.boxes, prediction.labels, prediction.scores))
    masks = map(coco_masks.decode, (prediction.masks or [])[:count])
    return pack_objects("prediction", prediction.size, boxes, classes, masks, labels, scores)


def _true(truth: Any, size: Sequence[int], labels: Labels) -> dict[str, Any]:
    if not isinstance(truth, dict):
        return pack_classes("ground truth", truth, labels)
    order = np.argsort(np.asarray(truth["area"]), kind="stable")  # small ones on top
    boxes, classes, masks = (np.asarray(truth[name])[order] for name in ("boxes", "labels", "masks"))
    return pack_objects("ground truth", size, boxes, classes, masks, labels)
