"""Images and label files from disk.

Pillow reads both. Orientation in EXIF is left alone, because masks match the pixels as they are stored.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image as pillow
from torchvision.tv_tensors import Image

from repgraph.data.labels import DataError
from repgraph.data.matfile import read_matrix

Content = TypeVar("Content")
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
ONE_CHANNEL = ("L", "P", "1", *SIXTEEN_BITS)


def read_image(path: Path) -> Image:
    """An image of any kind as uint8 RGB, (3, H, W).

    Grey, palette and CMYK images are converted, of 16 bits the upper 8 are kept, transparency is dropped.
    """
    return Image(torch.from_numpy(_open(path, "image", _rgb)).permute(2, 0, 1))


def image_size(path: Path) -> tuple[int, int]:
    """(H, W) of an image, from the beginning of its file: the pixels are not read."""

    def read() -> tuple[int, int]:
        with pillow.open(path) as picture:
            return picture.height, picture.width

    return _guarded(path, "image", read)


def read_values(path: Path) -> np.ndarray:
    """The numbers in a label file, (H, W) integers: an image with one channel or a palette, a text, or a .mat file."""
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return _guarded(path, "mask", lambda: np.loadtxt(path, dtype=np.int32, ndmin=2))
    if suffix == ".mat":
        return _guarded(path, "mask", lambda: read_matrix(path, "LabelMap"))
    return _open(path, "mask", _numbers)


def _open(path: Path, kind: str, convert: Callable[[pillow.Image, Path], np.ndarray]) -> np.ndarray:
    def read() -> np.ndarray:
        with pillow.open(path) as picture:
            return convert(picture, path)

    return _guarded(path, kind, read)


def _guarded(path: Path, kind: str, read: Callable[[], Content]) -> Content:
    """What ``read`` gives; whatever goes wrong is an error that names the file."""
    try:
        return read()
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such {kind}") from error
    except pillow.DecompressionBombError as error:
        raise DataError(f"{path}: {error}; PIL.Image.MAX_IMAGE_PIXELS sets the limit") from error
    except Exception as error:  # Pillow's readers raise almost anything for a damaged file
        reason = str(error).replace(f" {str(path)!r}", "") or type(error).__name__
        raise DataError(f"{path}: cannot read this {kind} ({reason}); it is damaged or of an unknown kind") from error


def _rgb(picture: pillow.Image, path: Path) -> np.ndarray:
    if picture.mode in SIXTEEN_BITS:
        grey = (np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if picture.mode == "F":
        raise DataError(f"{path}: an image of floating-point numbers has no known range; store it with 8 or 16 bits")
    if picture.mode == "P" and "transparency" in picture.info:
        picture = picture.convert("RGBA")
    return np.array(picture if picture.mode == "RGB" else picture.convert("RGB"))


def _numbers(picture: pillow.Image, path: Path) -> np.ndarray:
    if picture.mode not in ONE_CHANNEL:
        raise DataError(
            f"{path}: a mask holds one class number per pixel, this is a {picture.mode} image; "
            "turn its colours into class numbers and store them as a PNG of one channel"
        )
    if picture.format == "JPEG":
        raise DataError(f"{path}: JPEG changes class numbers when it stores them; use PNG for masks")
    values = np.array(picture)
    return values.astype(np.uint8) if values.dtype == bool else values
