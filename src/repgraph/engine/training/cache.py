"""Decoded images in memory, in a few large blocks that worker processes share."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.tv_tensors import Image, Mask

from repgraph.engine.training.loader import Pair, Pairs
from repgraph.errors import UsageError

BLOCK = 256 * 2**20
PROBE = 16  # images whose sizes tell how much memory all of them need


class Place(NamedTuple):
    """Where an image and its mask lie: height, width, the block, and the first of 4 H W bytes in it.

    Images stay in the order that they came in: ``planar`` (3, H, W), or (H, W, 3).
    """

    height: int
    width: int
    block: int
    start: int
    planar: bool


class Cached:
    """The same images and masks as ``data``, read once and kept; blocks are shared with forked worker processes.

    >>> data = [(torch.full((3, 2, 2), i, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8)) for i in range(3)]
    >>> int(Cached(data)[2][0].max())
    2
    """

    def __init__(self, data: Pairs, threads: int | None = None) -> None:
        self.name = repr(data)
        self.places: list[Place] = []
        self.blocks: list[Tensor] = []
        self._used = 0
        with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
            window = 64  # decoded ahead of what is stored: no more than that waits in memory
            for begin in range(0, len(data), window):
                for pair in pool.map(data.__getitem__, range(begin, min(begin + window, len(data)))):
                    self._store(pair)
                    if len(self.places) == PROBE:
                        self._check_memory(len(data))

    def _check_memory(self, images: int) -> None:
        each = sum(4 * place.height * place.width for place in self.places) / len(self.places)
        free = available()
        if each * images > free:
            raise UsageError(
                f"data.cache would need about {each * images / 2**30:.1f} GiB for {images} images, and "
                f"{free / 2**30:.1f} GiB of memory are free; leave it off"
            )

    def _store(self, pair: Pair) -> None:
        image, mask = pair
        if mask is None:
            raise UsageError(f"image {len(self.places)} of {self.name} has no mask to learn from")
        height, width = mask.shape
        size = 4 * height * width
        if not self.blocks or self._used + size > self.blocks[-1].numel():
            self.blocks.append(torch.empty(max(BLOCK, size), dtype=torch.uint8))
            self._used = 0
        place = Place(height, width, len(self.blocks) - 1, self._used, image.is_contiguous())
        self._used += size
        self.places.append(place)
        for kept, given in zip(self._at(place), (image, mask), strict=True):
            kept.copy_(given)

    def _at(self, place: Place) -> tuple[Tensor, Tensor]:
        """Views of an image (3, H, W) and its mask (H, W)."""
        height, width, block, start, planar = place
        pixels = height * width
        image, mask = self.blocks[block][start : start + 4 * pixels].split([3 * pixels, pixels])
        shaped = image.view(3, height, width) if planar else image.view(height, width, 3).permute(2, 0, 1)
        return shaped, mask.view(height, width)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Pair:
        image, mask = self._at(self.places[index])
        return Image(image), Mask(mask)

    def __repr__(self) -> str:
        return self.name


def available() -> float:
    """Bytes of memory that can be had; infinity where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float("inf")
