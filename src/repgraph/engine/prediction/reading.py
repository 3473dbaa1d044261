"""Photographs as one looks at them."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image as pillow
from torch import Tensor

from repgraph.data.files import read_image

ORIENTATION = 0x0112  # the tag in EXIF
LARGEST = 2**30  # pixels of an image; Pillow's own limit is 2**27, less than what is predicted in parts


def read_upright(path: Path) -> Tensor:
    """A photograph as uint8 RGB (3, H, W), turned as its EXIF says.

    Data sets are read without that (:func:`repgraph.data.files.read_image`): their masks match the stored pixels.
    """
    image = read_image(path).as_subclass(Tensor)
    return turned(image, _orientation(path))


def turned(image: Tensor, orientation: int) -> Tensor:
    """The image (..., H, W) as EXIF's orientation 1 to 8 says it is to be seen; any other number changes nothing.

    >>> import torch
    >>> turned(torch.tensor([[1, 2], [3, 4]]), 6)
    tensor([[3, 1],
            [4, 2]])
    """
    match orientation:
        case 2:
            return image.flip(-1)
        case 3:
            return image.rot90(2, (-2, -1))
        case 4:
            return image.flip(-2)
        case 5:
            return image.transpose(-2, -1)
        case 6:
            return image.rot90(-1, (-2, -1))
        case 7:
            return image.rot90(2, (-2, -1)).transpose(-2, -1)
        case 8:
            return image.rot90(1, (-2, -1))
    return image


def _orientation(path: Path) -> int:
    with pillow.open(path) as picture:
        if picture.format == "PNG" and not {"exif", "Raw profile type exif"} & picture.info.keys():
            return 1  # Pillow would decode the whole image to look for EXIF behind it, where no one puts it
        return picture.getexif().get(ORIENTATION, 1)


@contextlib.contextmanager
def large_images() -> Iterator[None]:
    """Lets Pillow open images of up to :data:`LARGEST` pixels."""
    before = pillow.MAX_IMAGE_PIXELS
    pillow.MAX_IMAGE_PIXELS = LARGEST // 2  # beyond it Pillow warns, beyond twice as many it refuses
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            yield
    finally:
        pillow.MAX_IMAGE_PIXELS = before
