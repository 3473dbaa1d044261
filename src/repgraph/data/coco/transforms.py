"""The augmentation of Mask R-CNN: a horizontal flip. Sizes are changed inside torchvision's network."""

from dataclasses import dataclass

import torch
from torchvision.transforms.v2 import functional as F
from torchvision.tv_tensors import Image

from repgraph.data.coco.dataset import Sample, Target
from repgraph.data.labels import DataError


def flip(image: Image, target: Target) -> Sample:
    """An image and its objects, left and right exchanged."""
    changed: Target = {key: F.horizontal_flip(target[key]) for key in ("boxes", "masks") if key in target}
    return F.horizontal_flip(image), {**target, **changed}


@dataclass(frozen=True)
class RandomFlip:
    """``transform(image, target, generator)`` flips with a ``chance``; the one random number is the generator's first.

    >>> image = Image(torch.arange(3).view(1, 1, 3).expand(3, 1, 3))
    >>> flipped, _ = RandomFlip(1.0)(image, {}, torch.Generator().manual_seed(0))
    >>> flipped[0].tolist()
    [[2, 1, 0]]
    """

    chance: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.chance <= 1:
            raise DataError(f"chance is {self.chance}; a number from 0 to 1 is needed")

    def __call__(self, image: Image, target: Target, generator: torch.Generator) -> Sample:
        drawn = torch.rand((), dtype=torch.float64, generator=generator).item()
        return flip(image, target) if drawn < self.chance else (image, target)
