"""The geometry of sliding-window inference: windows along an axis, resizing by taps, and tiles that fit into memory."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Span = tuple[int, int]  # start and stop
Tiles = tuple[list[Span], list[Span]]  # rows and columns of a grid


def length(span: Span) -> int:
    return span[1] - span[0]


@dataclass(frozen=True)
class Taps:
    """Bilinear resizing of parts of an axis: output i is the sum over t of ``weight[i, t] * source[index[i, t]]``."""

    index: Tensor  # [outputs, taps] int64
    weight: Tensor  # [outputs, taps] float64

    def source_span(self, span: Span) -> Span:
        """Return the part of the source that a part of the output depends on."""
        return int(self.index[span[0], 0]), int(self.index[span[1] - 1].max()) + 1

    def resize(self, source: Tensor, dim: int, span: Span) -> Tensor:
        """Return the part ``span`` of the output along ``dim``, from the part of the source that it depends on."""
        index = (self.index[slice(*span)] - self.index[span[0], 0]).to(source.device)
        weight = self.weight[slice(*span)].to(source.device, source.dtype)
        shape = [1] * source.dim()
        shape[dim] = -1
        result = source.index_select(dim, index[:, 0]).mul_(weight[:, 0].view(shape))
        for tap in range(1, index.shape[1]):
            result += source.index_select(dim, index[:, tap]).mul_(weight[:, tap].view(shape))
        return result


@lru_cache(maxsize=64)
def resize_taps(size: int, new_size: int, *, antialias: bool) -> Taps:
    """Return the taps that resize an axis as ``interpolate(mode="bilinear", align_corners=False)`` does."""
    ratio = size / new_size
    reach = max(1.0, ratio) if antialias else 1.0
    centre = (torch.arange(new_size, dtype=torch.float64) + 0.5) * ratio  # pixel j covers j to j + 1
    first = (centre - reach + 0.5).floor().clamp(min=0)
    index = first[:, None] + torch.arange(min(size, 2 * int(reach + 1) + 1))  # [outputs, taps]
    weight = (1 - (index + 0.5 - centre[:, None]).abs() / reach).clamp(min=0) * (index < size)
    weight /= weight.sum(1, keepdim=True)
    used = int((weight > 0).any(0).nonzero().max()) + 1
    index = torch.where(weight > 0, index, index[:, :1]).long()[:, :used]  # taps without weight read the first pixel
    return Taps(index, weight[:, :used])


@dataclass(frozen=True)
class Axis:
    """One axis of an image, resized from ``size`` to ``new_size`` and covered by windows, which may be longer."""

    size: int
    new_size: int
    window: int
    step: int  # between windows; the last one ends with the axis

    @property
    def forward(self) -> Taps:
        """Resizes the image to this scale."""
        return resize_taps(self.size, self.new_size, antialias=True)

    @property
    def backward(self) -> Taps:
        """Resizes probabilities to the image's size."""
        return resize_taps(self.new_size, self.size, antialias=False)

    @cached_property
    def windows(self) -> list[Span]:
        last = max(0, self.new_size - self.window)
        starts = [min(i * self.step, last) for i in range(math.ceil(last / self.step) + 1)]
        return [(start, min(start + self.window, self.new_size)) for start in starts]

    @cached_property
    def share(self) -> Tensor:
        """One over the number of windows at each position, float64."""
        count = torch.zeros(self.new_size, dtype=torch.float64)
        for start, stop in self.windows:
            count[start:stop] += 1
        return 1 / count

    def covering(self, span: Span) -> list[Span]:
        """Return the windows that overlap a span of the resized axis."""
        return [(start, stop) for start, stop in self.windows if start < span[1] and stop > span[0]]


class View(NamedTuple):
    """The image at one scale."""

    rows: Axis
    columns: Axis

    @property
    def is_resized(self) -> bool:
        return any(axis.size != axis.new_size for axis in self)


def make_views(
    size: tuple[int, int], scales: Sequence[float], crop: tuple[int, int] | None, stride: float
) -> list[View]:
    """Return the image at each scale; without ``crop``, the whole image is one window."""
    views = []
    for scale in scales:
        new_size = [max(1, round(side * scale)) for side in size]
        window = crop or new_size
        steps = [max(1, math.ceil(round(side * stride, 6))) for side in window]
        views.append(View(*map(Axis, size, new_size, window, steps)))
    return views


def make_tiles(views: Sequence[View], pixels: int) -> Tiles:
    """Split the image into tiles whose maps have at most ``pixels`` pixels, with little overlap of their windows.

    A tile has a map of its own size, and one of its size at the largest other scale. It is not smaller than a window.
    """
    height, width = (axis.size for axis in views[0])
    # The smallest window of all scales, in pixels of the image.
    least_h, least_w = (
        min(axis.window * axis.size / axis.new_size for axis in axes) for axes in zip(*views, strict=True)
    )
    scale = max((axis.new_size / axis.size for view in views if view.is_resized for axis in view), default=0.0)
    rows, columns = (np.arange(1.0, 1 + math.ceil(most)) for most in (height / least_h, width / least_w))
    h, w = np.ceil(height / rows)[:, None], np.ceil(width / columns)  # sizes of tiles
    # A tile of h x w pixels depends on at most (scale * h + 3) x (scale * w + 3) pixels of another scale.
    fits = h * w + (scale * h + 3) * (scale * w + 3) <= pixels
    fits[-1, -1] = True  # the smallest tiles
    area_of_windows = (height + rows[:, None] * least_h) * (width + columns * least_w)
    row, column = divmod(int(np.where(fits, area_of_windows, np.inf).argmin()), len(columns))
    return _split(height, row + 1), _split(width, column + 1)


def _split(size: int, parts: int) -> list[Span]:
    return list(itertools.pairwise(size * part // parts for part in range(parts + 1)))
