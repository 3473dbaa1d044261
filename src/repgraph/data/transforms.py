"""Augmentation and normalization; samples stay uint8 until they are on the device, which saves bandwidth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import Image, Mask

from repgraph.constants import IGNORE, MEAN, SCALES, STD
from repgraph.data.labels import DataError

Target = dict[str, Any]


def normalise(images: Tensor, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """Normalize uint8 images (..., 3, H, W), on their device, with the mean and standard deviation of the channels."""
    if images.dtype != torch.uint8:
        raise DataError(f"images are {images.dtype}; expected torch.uint8")
    statistics = _statistics.__wrapped__ if torch.compiler.is_compiling() else _statistics
    shift, scale = statistics(tuple(mean), tuple(std), images.device)
    return (images.float() - shift) * scale


@lru_cache(maxsize=16)  # creating a tensor on a GPU would synchronize
def _statistics(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        shift = torch.tensor(mean, device=device).mul(255).view(3, 1, 1)
        return shift, torch.tensor(std, device=device).mul(255).reciprocal().view(3, 1, 1)


def resize(image: Image, mask: Any, scale: float) -> tuple[Image, Any]:
    """Resize an image (bilinear with antialiasing) and its mask to ``scale`` times their size, at least 1 pixel."""
    height, width = image.shape[-2:]
    size = [max(1, round(height * scale)), max(1, round(width * scale))]
    if size == [height, width]:
        return image, mask
    if mask is not None:
        # Not F.resize, whose masks depend on torchvision's version; "nearest" would shift it by up to half a pixel.
        mask = Mask(interpolate(mask[None, None], size, mode="nearest-exact")[0, 0])
    return F.resize(image, size, InterpolationMode.BILINEAR, antialias=True), mask


# The operation, the neutral factor, and the largest distance from it at strength 1.
_COLOR_CHANGES = (
    (F.adjust_brightness, 1.0, 0.125),
    (F.adjust_contrast, 1.0, 0.5),
    (F.adjust_saturation, 1.0, 0.5),
    (F.adjust_hue, 0.0, 0.05),
)


def distort_colors(image: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast, saturation and hue of a uint8 image (3, H, W), each with probability 1/2.

    At strength 1 the ranges are as in torchvision's ``RandomPhotometricDistort``; 0 draws no random numbers.
    """
    if not strength:
        return image
    draws = torch.rand(4, dtype=torch.float64, generator=generator).tolist()
    # Below 1/2 nothing is changed; the rest is stretched to -1 .. 1.
    for draw, (adjust, middle, reach) in zip(draws, _COLOR_CHANGES, strict=True):
        if draw >= 0.5:
            image = adjust(image, middle + strength * reach * (4 * draw - 3))
    return image


@dataclass(frozen=True)
class TrainTransform:
    """The paper's augmentation: random scale, crop with padding and horizontal flip; optionally distorted colors.

    ``transform(image, mask, generator)`` takes a uint8 image (3, H, W) and its mask (H, W), and returns both in the
    size ``crop`` (h, w). Along a side that is shorter than the crop, the position of the image within the crop is
    random; the rest is padded with the color ``mean`` (0 to 1), and with IGNORE in the mask.
    """

    crop: tuple[int, int]
    scales: tuple[float, ...] = SCALES
    flip: bool = True
    mean: tuple[float, ...] = MEAN
    photometric: float = 0.0  # strength

    def __call__(self, image: Image, mask: Mask, generator: torch.Generator) -> tuple[Image, Mask]:
        if image.shape[-2:] != mask.shape[-2:]:
            raise DataError(f"image {tuple(image.shape)} and mask {tuple(mask.shape)} differ in size")
        scale, down, across, flip = torch.rand(4, dtype=torch.float64, generator=generator).tolist()
        image, mask = resize(image, mask, self.scales[int(scale * len(self.scales))])
        top, from_top, rows = _place(image.shape[-2], self.crop[0], down)
        left, from_left, columns = _place(image.shape[-1], self.crop[1], across)
        part, classes = (F.crop(each, top, left, rows, columns) for each in (image, mask))
        padding = [from_left, from_top, self.crop[1] - columns - from_left, self.crop[0] - rows - from_top]
        mean = [float(round(255 * share)) for share in self.mean]
        image = F.pad(distort_colors(part, self.photometric, generator), padding, fill=mean)
        mask = F.pad(classes, padding, fill=IGNORE)
        if self.flip and flip < 0.5:
            return F.horizontal_flip(image), F.horizontal_flip(mask)
        return image, mask


def _place(length: int, crop: int, random: float) -> tuple[int, int, int]:
    """Return, for one side, the start of the crop in the image, of the image in the crop, and the length they share."""
    offset = int(random * (abs(length - crop) + 1))
    return (offset, 0, crop) if length >= crop else (0, offset, length)


@dataclass(frozen=True)
class RandomFlip:
    """Random horizontal flip, with probability ``p``, of an image with boxes and masks; draws one random number."""

    p: float = 0.5

    def __call__(self, image: Image, target: Target, generator: torch.Generator) -> tuple[Image, Target]:
        if torch.rand((), dtype=torch.float64, generator=generator).item() >= self.p:
            return image, target
        flipped: Target = {key: F.horizontal_flip(target[key]) for key in ("boxes", "masks") if key in target}
        return F.horizontal_flip(image), {**target, **flipped}
