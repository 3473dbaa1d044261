"""Decoded images in memory, in a few large blocks that worker processes share."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchvision.tv_tensors import Image, Mask

from repgraph.engine.training.loader import Pairs
from repgraph.errors import UsageError

BLOCK = 256 * 2**20
PROBE = 16  # images whose sizes tell how much memory all of them need


class Codec(NamedTuple):
    """How an image and its target become bytes, and the other way round.

    ``pack(image, target)`` gives what is small and uint8 tensors with the rest; ``unpack(small, bytes)`` takes them,
    all bytes in one tensor (N). What is small has the image's ``height`` and ``width``.
    """

    pack: Callable[[Any, Any], tuple[Any, Sequence[Tensor]]]
    unpack: Callable[[Any, Tensor], tuple[Any, Any]]


class Kept(NamedTuple):
    """Where an image lies: what is small of it, the block, and the bytes in it."""

    small: Any
    block: int
    start: int
    size: int


class Shape(NamedTuple):
    """Of an image. Its bytes stay in the order that they came in: ``planar`` (3, H, W), or (H, W, 3)."""

    height: int
    width: int
    planar: bool

    @classmethod
    def of(cls, image: Tensor) -> "Shape":
        return cls(int(image.shape[1]), int(image.shape[2]), image.is_contiguous())

    def bytes(self, image: Tensor) -> Tensor:
        """Those of the image (3, H, W) in their order."""
        plain = image.as_subclass(Tensor)
        return (plain if self.planar else plain.permute(1, 2, 0)).reshape(-1)

    def image(self, values: Tensor) -> Image:
        if self.planar:
            return Image(values.view(3, self.height, self.width))
        return Image(values.view(self.height, self.width, 3).permute(2, 0, 1))


def _pack(image: Tensor, mask: Tensor) -> tuple[Shape, list[Tensor]]:
    shape = Shape.of(image)
    return shape, [shape.bytes(image), mask.as_subclass(Tensor).reshape(-1)]


def _unpack(shape: Shape, values: Tensor) -> tuple[Image, Mask]:
    pixels = shape.height * shape.width
    image, mask = values.split([3 * pixels, pixels])
    return shape.image(image), Mask(mask.view(shape.height, shape.width))


PAIRS = Codec(_pack, _unpack)  # images and masks


class Cached:
    """The same images and targets as ``data``, read once and kept; blocks are shared with forked worker processes.

    >>> data = [(torch.full((3, 2, 2), i, dtype=torch.uint8), torch.zeros(2, 2, dtype=torch.uint8)) for i in range(3)]
    >>> int(Cached(data)[2][0].max())
    2
    """

    def __init__(self, data: Pairs, threads: int | None = None, codec: Codec = PAIRS) -> None:
        self.name, self.codec = repr(data), codec
        self.kept: list[Kept] = []
        self.blocks: list[Tensor] = []
        self._used = 0
        with ThreadPoolExecutor(threads or min(16, os.cpu_count() or 1)) as pool:
            window = 64  # decoded ahead of what is stored: no more than that waits in memory
            for begin in range(0, len(data), window):
                for image, target in pool.map(data.__getitem__, range(begin, min(begin + window, len(data)))):
                    self._store(image, target)
                    if len(self.kept) == PROBE:
                        self._check_memory(len(data))

    def _check_memory(self, images: int) -> None:
        each = sum(kept.size for kept in self.kept) / len(self.kept)
        free = available()
        if each * images > free:
            raise UsageError(
                f"data.cache would need about {each * images / 2**30:.1f} GiB for {images} images, and "
                f"{free / 2**30:.1f} GiB of memory are free; leave it off"
            )

    def _store(self, image: Any, target: Any) -> None:
        if target is None:
            raise UsageError(f"image {len(self.kept)} of {self.name} has no mask to learn from")
        small, parts = self.codec.pack(image, target)
        size = sum(part.numel() for part in parts)
        if not self.blocks or self._used + size > self.blocks[-1].numel():
            self.blocks.append(torch.empty(max(BLOCK, size), dtype=torch.uint8))
            self._used = 0
        kept = Kept(small, len(self.blocks) - 1, self._used, size)
        self._used += size
        self.kept.append(kept)
        for place, part in zip(self._at(kept).split([part.numel() for part in parts]), parts, strict=True):
            place.copy_(part)

    def _at(self, kept: Kept) -> Tensor:
        return self.blocks[kept.block][kept.start : kept.start + kept.size]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(H, W) of every image."""
        return [(kept.small.height, kept.small.width) for kept in self.kept]

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        kept = self.kept[index]
        return self.codec.unpack(kept.small, self._at(kept))

    def __repr__(self) -> str:
        return self.name


def available() -> float:
    """Bytes of memory that can be had; infinity where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float("inf")
