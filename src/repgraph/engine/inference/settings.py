"""How an image goes through a network when labels are wanted."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from repgraph.errors import UsageError

MODES = ("whole", "slide")
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
STRIDE = 2 / 3
BATCH = 4
MEMORY = 2 * 2**30


@dataclass(frozen=True)
class Settings:
    """What :func:`~repgraph.engine.inference.predict` does with an image.

    - ``mode``: ``"whole"`` gives the network the image as it is, ``"slide"`` windows of it.
    - ``crop``: the window, a side or (height, width); ``stride``: how far windows are apart, as a fraction of it.
    - ``scales``: the image is resized by each of them, and the probabilities are averaged.
    - ``flip``: also the mirrored image (or windows), averaged with the rest.
    - ``batch``: how many windows go through the network at once.
    - ``precision``: ``"fp32"`` as the network is, ``"bf16"`` and ``"fp16"`` under autocast.
    - ``memory``: bytes for maps of probabilities in mode ``"slide"``; see docs/inference.md.

    >>> Settings(mode="slide", crop=769).crop
    (769, 769)
    """

    mode: str = "whole"
    crop: tuple[int, int] | int | None = None
    stride: float = STRIDE
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    batch: int = BATCH
    precision: str = "fp32"
    memory: int = MEMORY

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode is {self.mode!r}; choose one of {', '.join(MODES)}")
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision is {self.precision!r}; choose one of {', '.join(PRECISIONS)}")
        object.__setattr__(self, "crop", _size(self.crop))
        object.__setattr__(self, "scales", _scales(self.scales))
        if self.mode == "slide" and self.crop is None:
            raise UsageError("mode 'slide' needs crop, the size of its windows; give that of the training, such as 520")
        if not _is_number(self.stride) or not 0 < self.stride <= 1:
            raise UsageError(f"stride is {self.stride!r}; give a fraction of the window above 0, and 1 at most")
        for name in ("batch", "memory"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} is {value!r}; a whole number of at least 1 is needed")

    def step(self, window: int) -> int:
        """How many pixels windows of this side are apart.

        >>> Settings().step(769), Settings().step(3), Settings(stride=0.01).step(10)
        (513, 2, 1)
        """
        return max(1, math.ceil(round(window * self.stride, 6)))

    @property
    def autocast(self) -> torch.dtype | None:
        return PRECISIONS[self.precision]

    def changed(self, **changes: Any) -> "Settings":
        """These settings with others in some places."""
        return replace(self, **changes)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _size(crop: Any) -> tuple[int, int] | None:
    if crop is None:
        return None
    given = (crop, crop) if isinstance(crop, int) else crop
    if isinstance(given, Iterable) and not isinstance(given, str):
        given = tuple(given)
        if len(given) == 2 and all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in given):
            return given
    raise UsageError(f"crop is {crop!r}; give a side in pixels, or (height, width)")


def _scales(scales: Any) -> tuple[float, ...]:
    given = (scales,) if _is_number(scales) else scales
    if isinstance(given, Iterable) and not isinstance(given, str):
        given = tuple(given)
        if given and all(_is_number(scale) and scale > 0 for scale in given):
            return tuple(float(scale) for scale in given)
    raise UsageError(f"scales is {scales!r}; give numbers above 0, such as 0.75 1 1.25")
