"""Label maps as pictures: in the colors of their classes, and over the image with a legend."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

from repgraph.constants import IGNORE
from repgraph.data.labels import DataError, Labels
from repgraph.drawing.legend import Entry, with_legend

OPACITY = 0.55


def colour(labels: Any, palette: Sequence[Sequence[int]]) -> np.ndarray:
    """Return a label map (H, W) in the colors of its classes, uint8 (H, W, 3); unlabeled pixels (255) are black."""
    table = np.zeros((IGNORE + 1, 3), dtype=np.uint8)
    table[: len(palette)] = np.asarray(palette, dtype=np.uint8)
    return table[_check_classes(labels, len(palette))]


def overlay(image: Any, labels: Any, info: Labels, *, legend: bool = True, side: int | None = None) -> Image.Image:
    """Draw a label map with outlines over its image, and a legend of the classes and their shares of the pixels.

    Args:
        image: A Pillow image, an array (H, W, 3) or a tensor (3, H, W), uint8 RGB.
        labels: Classes (H, W), with 255 for unlabeled pixels. The image is unchanged there, and in black classes.
        info: Names and colors of the classes.
        side: Shrink larger images to this many pixels on the longer side.
    """
    picture, classes = as_picture(image), _check_classes(labels, len(info))
    if picture.size != classes.shape[::-1]:
        raise ValueError(f"the image has size {picture.size}, but its labels have size {classes.shape[::-1]}")
    entries = _entries(classes, info)
    if side is not None:
        picture.thumbnail((side, side), Image.Resampling.BOX)
        classes = np.asarray(Image.fromarray(classes).resize(picture.size, Image.Resampling.NEAREST))
    colours = Image.fromarray(colour(classes, info.palette))
    painted = Image.blend(picture, colours, OPACITY)
    edges = ndimage.morphological_gradient(classes, footprint=ndimage.generate_binary_structure(2, 1)) > 0
    painted.paste(colours, mask=Image.fromarray(edges))
    unchanged = ~np.asarray(colours).any(2)  # unlabeled pixels, and black classes such as VOC's background
    painted.paste(picture, mask=Image.fromarray(unchanged))
    return with_legend(painted, entries) if legend else painted


def as_picture(image: Any) -> Image.Image:
    """Convert a Pillow image, an array (H, W, 3) or a tensor (3, H, W), uint8 RGB, to a new Pillow image."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    array = np.asarray(image)
    if array.ndim == 3 and array.shape[-1] != 3 and array.shape[0] == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[-1] != 3 or array.dtype != np.uint8:
        raise ValueError(f"the image is {array.shape} {array.dtype}; expected uint8 (H, W, 3) or (3, H, W)")
    return Image.fromarray(np.ascontiguousarray(array))


def _check_classes(labels: Any, count: int) -> np.ndarray:
    array = np.asarray(labels)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"the labels are {array.shape} {array.dtype}; expected integers (H, W)")
    wrong = array[(array != IGNORE) & ((array < 0) | (array >= count))]
    if wrong.size:
        raise DataError(f"class {int(wrong[0])} has no color; expected classes 0 to {count - 1}, or {IGNORE}")
    return array.astype(np.uint8)


def _entries(classes: np.ndarray, info: Labels) -> list[Entry]:
    """Return the classes that occur by descending number of pixels, and then the unlabeled pixels."""
    counts = np.bincount(classes.reshape(-1), minlength=IGNORE + 1)
    present = sorted((k for k in range(len(info)) if counts[k]), key=lambda k: -counts[k])
    entries = [Entry(info.names[k], info.palette[k], counts[k] / classes.size, f"class {k}") for k in present]
    if counts[IGNORE]:
        entries.append(Entry("not labeled", None, counts[IGNORE] / classes.size))
    return entries
