"""Pictures in a page, as data URIs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from repgraph.data.scenes import Scene, Scenes
from repgraph.drawing.overlay import colour
from repgraph.drawing.page import data_uri

MAX_SIDE = 640  # sharp in a column of half the page, and on a dense screen in a quarter


@dataclass(frozen=True)
class Picture:
    """A picture with its caption; a label map is shown with sharp pixels."""

    src: str
    width: int
    height: int
    caption: str
    alt: str
    is_label_map: bool = False


def draw_large(data: Scenes, scene: Scene) -> tuple[Tensor, Tensor]:
    """Draw a scene and its classes for people: images for training are too small to look sharp."""
    return data.draw(scene, max(1, MAX_SIDE // max(data.size)))


def photo(image: Any, caption: str, alt: str = "") -> Picture:
    """Return an image, uint8 (H, W, 3) or (3, H, W), as a JPEG with sides of at most ``MAX_SIDE`` pixels."""
    pixels = np.asarray(image)
    picture = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels))
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.BOX)
    return Picture(data_uri(picture, photo=True), *picture.size, caption, alt or caption)


def label_map(classes: Any, palette: Sequence[Sequence[int]], caption: str, alt: str = "") -> Picture:
    """Return classes (H, W) in their colours, as a PNG with sides of at most ``MAX_SIDE`` pixels."""
    picture = Image.fromarray(colour(np.asarray(classes), palette))
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.NEAREST)
    return Picture(data_uri(picture), *picture.size, caption, alt or caption, is_label_map=True)
