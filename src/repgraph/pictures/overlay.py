"""Labels as pictures: in their colours, and laid over the image with a legend of the classes that are in it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from repgraph.data.labels import IGNORE, DataError, Labels
from repgraph.pictures.legend import Entry, with_legend

OPACITY = 0.55
UNLABELLED = "not labelled"


def colour(labels: Any, palette: Sequence[Sequence[int]]) -> np.ndarray:
    """The labels (H, W) in the colours of their classes, uint8 (H, W, 3); what is not labelled (255) is black.

    >>> colour(np.array([[0, 1, 255]]), [(255, 0, 0), (0, 0, 255)]).tolist()
    [[[255, 0, 0], [0, 0, 255], [0, 0, 0]]]
    """
    classes = _classes(labels, len(palette))
    table = np.zeros((IGNORE + 1, 3), dtype=np.uint8)
    table[: len(palette)] = np.asarray(palette, dtype=np.uint8)
    return table[classes]


def overlay(
    image: Any,
    labels: Any,
    info: Labels,
    opacity: float = OPACITY,
    *,
    legend: bool = True,
    edges: bool = True,
    side: int | None = None,
) -> Image.Image:
    """The image under the colours of its labels, and below it the classes that are in it with their share of pixels.

    ``image`` is a Pillow image, an array (H, W, 3) or a tensor (3, H, W) in uint8 RGB; ``labels`` (H, W) has classes
    and 255 for what is not labelled, where the image stays as it is. With ``edges``, the outline of each region has its
    full colour. Images whose longer side exceeds ``side`` are shrunk to it first.

    >>> info = Labels(("sky", "sea"), ((70, 130, 180), (0, 60, 120)), ids=(0, 1))
    >>> overlay(np.zeros((40, 60, 3), np.uint8), np.zeros((40, 60), np.uint8), info, legend=False).size
    (60, 40)
    """
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity is {opacity!r}; give a number from 0 (the image alone) to 1 (the colours alone)")
    picture, classes = as_picture(image), _classes(labels, len(info))
    if picture.size != classes.shape[::-1]:
        raise ValueError(f"the image has {_size(picture.size)} pixels, its labels {_size(classes.shape[::-1])}")
    entries = _entries(classes, info) if legend else []
    if side is not None and max(picture.size) > side:
        picture, classes = _shrunk(picture, classes, side)
    colours = Image.fromarray(colour(classes, info.palette))
    painted = Image.blend(picture, colours, opacity)
    if edges and opacity:
        painted.paste(colours, mask=Image.fromarray(_edges(classes)))
    if (classes == IGNORE).any():
        painted.paste(picture, mask=Image.fromarray(classes == IGNORE))
    return with_legend(painted, entries) if legend else painted


def _entries(classes: np.ndarray, info: Labels) -> list[Entry]:
    """The classes that occur, the largest first; what is not labelled comes last, without a colour."""
    counts = np.bincount(classes.reshape(-1), minlength=IGNORE + 1)
    present = sorted((k for k in range(len(info)) if counts[k]), key=lambda k: -counts[k])
    entries = [Entry(info.names[k], info.palette[k], counts[k] / classes.size, f"class {k}") for k in present]
    if counts[IGNORE]:
        entries.append(Entry(UNLABELLED, None, counts[IGNORE] / classes.size))
    return entries


def _edges(classes: np.ndarray) -> np.ndarray:
    """Where a pixel's label differs from that of a neighbour; on large images also the pixels next to those."""
    found = np.zeros(classes.shape, dtype=bool)
    for a, b, across in (
        (np.s_[:, 1:], np.s_[:, :-1], classes[:, 1:] != classes[:, :-1]),
        (np.s_[1:], np.s_[:-1], classes[1:] != classes[:-1]),
    ):
        found[a] |= across
        found[b] |= across
    if min(classes.shape) > 1000:
        inner = found.copy()
        found[1:] |= inner[:-1]
        found[:, 1:] |= inner[:, :-1]
    return found


def as_picture(image: Any) -> Image.Image:
    """An image as Pillow has it, from an array (H, W, 3) or a tensor (3, H, W) in uint8 RGB."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[-1] != 3 and array.shape[0] == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[-1] != 3 or array.dtype != np.uint8:
        raise ValueError(
            f"the image has shape {array.shape} and dtype {array.dtype}; uint8 (H, W, 3) or (3, H, W) is needed"
        )
    return Image.fromarray(np.ascontiguousarray(array))


def _classes(labels: Any, count: int) -> np.ndarray:
    array = np.asarray(labels)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"the labels have shape {array.shape} and dtype {array.dtype}; integers (H, W) are needed")
    wrong = array[(array != IGNORE) & ((array < 0) | (array >= count))]
    if wrong.size:
        raise DataError(f"class {int(wrong[0])} has no colour: there are classes 0 to {count - 1}, and {IGNORE}")
    return array.astype(np.uint8)


def _shrunk(picture: Image.Image, classes: np.ndarray, side: int) -> tuple[Image.Image, np.ndarray]:
    ratio = side / max(picture.size)
    size = max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio))
    nearest = Image.fromarray(classes).resize(size, Image.Resampling.NEAREST)
    return picture.resize(size, Image.Resampling.BOX), np.asarray(nearest)


def _size(size: Sequence[int]) -> str:
    return f"{size[0]} x {size[1]}"
