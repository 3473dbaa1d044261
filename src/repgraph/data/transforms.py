"""From a picture of any size to a training sample, and from samples to what a network is fed.

Samples stay bytes until they are on the device, which is a quarter of the traffic: :func:`normalise` runs there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import Image, Mask

from repgraph.data.labels import IGNORE, DataError

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's images in RGB from 0 to 1, and their standard deviation
STD = (0.229, 0.224, 0.225)
SCALES = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0)  # the paper's


def normalise(
    images: Tensor,
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Bytes (..., 3, H, W) to numbers with mean 0 and standard deviation 1, on the device that they are on.

    >>> normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))[0, :, 0, 0]
    tensor([2.2489, 2.4286, 2.6400])
    """
    if images.dtype != torch.uint8:
        raise DataError(f"normalise takes images in bytes (uint8), not {images.dtype}")
    kept = _statistics.__wrapped__ if torch.compiler.is_compiling() else _statistics
    shift, scale = kept(tuple(mean), tuple(std), images.device)
    return ((images.float() - shift) * scale).to(dtype)


@lru_cache(maxsize=16)  # a new tensor on a GPU would make the host wait for all that is queued there
def _statistics(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        shift = torch.tensor(mean, device=device).mul(255).view(3, 1, 1)
        return shift, torch.tensor(std, device=device).mul(255).reciprocal().view(3, 1, 1)


def mean_colour(mean: Sequence[float] = MEAN) -> list[int]:
    """The byte colour nearest to the mean: what is padded with it is 0 after :func:`normalise`, to half a byte.

    >>> mean_colour()
    [124, 116, 104]
    """
    return [round(255 * part) for part in mean]


def resize(image: Image, mask: Mask | None, scale: float) -> tuple[Image, Mask | None]:
    """Both at ``scale`` times their size, at least 1 pixel; the image is interpolated, and smoothed where it shrinks.

    The mask takes the value at the centre of each new pixel, so that it stays where the image is; the plain "nearest"
    of PyTorch would shift it by up to half a pixel.
    """
    height, width = image.shape[-2:]
    size = [max(1, round(height * scale)), max(1, round(width * scale))]
    if size == [height, width]:
        return image, mask
    resized = F.resize(image, size, InterpolationMode.BILINEAR, antialias=True)
    if mask is None:
        return resized, None
    # Not F.resize: what it does with masks differs between versions of torchvision.
    return resized, Mask(interpolate(mask[None, None], size, mode="nearest-exact")[0, 0])


def window(image: Image, mask: Mask, top: int, left: int, size: tuple[int, int], fill: list[int]) -> tuple[Image, Mask]:
    """The part of ``size`` (h, w) whose first pixel is at (top, left), which may lie partly or wholly outside.

    Outside there is the colour ``fill``, and IGNORE in the mask.
    """
    height, width = image.shape[-2:]
    y0, x0 = max(top, 0), max(left, 0)
    y1, x1 = min(top + size[0], height), min(left + size[1], width)
    colour = torch.tensor(fill, dtype=image.dtype).view(1, 1, 3)
    picture = colour.repeat(size[0], size[1], 1).permute(2, 0, 1)  # channels last, as images come from files
    labels = torch.full(size, IGNORE, dtype=mask.dtype)
    if y0 < y1 and x0 < x1:
        inside = slice(y0 - top, y1 - top), slice(x0 - left, x1 - left)
        picture[:, *inside] = image[:, y0:y1, x0:x1]
        labels[inside] = mask[y0:y1, x0:x1]
    return Image(picture), Mask(labels)


@dataclass(frozen=True)
class TrainTransform:
    """The paper's augmentation: random scale, random crop with padding, random horizontal flip.

    ``transform(image, mask, generator)`` takes a uint8 image (3, H, W) and its mask (H, W), and returns a uint8 image
    (3, h, w) and mask (h, w) of the size ``crop`` = (h, w). The four random numbers it needs are the first that
    ``generator`` gives: the result is a function of the generator's state and of nothing else.

    The crop lies anywhere within the scaled picture; along a side on which the picture is smaller than the crop, the
    picture lies anywhere within the crop instead. The rest is the mean colour, and IGNORE in the mask.

    >>> transform = TrainTransform(crop=(33, 65))
    >>> image, mask = Image(torch.zeros(3, 40, 50, dtype=torch.uint8)), Mask(torch.zeros(40, 50, dtype=torch.uint8))
    >>> [tuple(part.shape) for part in transform(image, mask, torch.Generator().manual_seed(0))]
    [(3, 33, 65), (33, 65)]
    """

    crop: tuple[int, int]
    scales: tuple[float, ...] = SCALES
    flip: bool = True
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD

    def __post_init__(self) -> None:
        object.__setattr__(self, "crop", tuple(self.crop))
        object.__setattr__(self, "scales", tuple(self.scales))
        if len(self.crop) != 2 or min(self.crop) < 1:
            raise DataError(f"crop {self.crop}: give height and width, of 1 pixel and more")
        if not self.scales or min(self.scales) <= 0:
            raise DataError(f"scales {self.scales}: give one number or more, each above 0")

    def __call__(self, image: Image, mask: Mask, generator: torch.Generator) -> tuple[Image, Mask]:
        if image.shape[-2:] != mask.shape[-2:]:
            raise DataError(f"an image of {tuple(image.shape)} and a mask of {tuple(mask.shape)} differ in size")
        which, down, across, mirror = torch.rand(4, dtype=torch.float64, generator=generator).tolist()
        scale = self.scales[int(which * len(self.scales))]
        image, resized = resize(image, mask, scale)
        assert resized is not None
        top = _place(image.shape[-2], self.crop[0], down)
        left = _place(image.shape[-1], self.crop[1], across)
        image, mask = window(image, resized, top, left, self.crop, mean_colour(self.mean))
        if self.flip and mirror < 0.5:
            return F.horizontal_flip(image), F.horizontal_flip(mask)
        return image, mask

    def normalise(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """:func:`normalise` with this transform's mean and standard deviation."""
        return normalise(images, self.mean, self.std, dtype)


def _place(length: int, crop: int, chance: float) -> int:
    """Where a crop begins on a side: all places are equally likely; negative where the side is the shorter one."""
    room = abs(length - crop)
    start = int(chance * (room + 1))
    return start if length >= crop else -start
