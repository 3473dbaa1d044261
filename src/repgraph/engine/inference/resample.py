"""Bilinear resizing of any part of an image, exactly as the same part of the whole would come out.

PyTorch's own ``interpolate`` resizes whole tensors only. Here each axis is a list of taps, so that any rows and columns
of the result can be had from the rows and columns they depend on. Positions are those of ``align_corners=False``; with
``smooth``, an image that shrinks is averaged over what falls together (``antialias=True``).
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

Span = tuple[int, int]  # first, and one past the last


@dataclass(frozen=True)
class Taps:
    """Position i of an axis is the sum over t of ``weight[i, t]`` times the source at ``index[i, t]``."""

    size: int  # of the source
    index: Tensor  # [n, T] int64
    weight: Tensor  # [n, T] float64

    @property
    def identity(self) -> bool:
        return self.size == len(self.index)

    def needs(self, span: Span) -> Span:
        """The part of the source that a part of the result depends on.

        >>> make(8, 4, smooth=False).needs((1, 3))
        (2, 6)
        """
        if self.identity:
            return span
        used = self.index[span[0] : span[1]]
        return int(used.min()), int(used.max()) + 1

    def apply(self, source: Tensor, dim: int, span: Span, start: int) -> Tensor:
        """The part ``span`` of the result along ``dim``; ``source`` begins at ``start`` of the whole source."""
        if self.identity:
            return source.narrow(dim, span[0] - start, span[1] - span[0])
        index = (self.index[span[0] : span[1]] - start).to(source.device)
        weight = self.weight[span[0] : span[1]].to(source.device, source.dtype)
        shape = [1] * source.dim()
        shape[dim] = -1
        result = source.index_select(dim, index[:, 0]).mul_(weight[:, 0].view(shape))
        for tap in range(1, index.shape[1]):
            result += source.index_select(dim, index[:, tap]).mul_(weight[:, tap].view(shape))
        return result


@lru_cache(maxsize=64)
def make(size: int, new_size: int, *, smooth: bool) -> Taps:
    """The taps that bring an axis from ``size`` to ``new_size``.

    >>> taps = make(2, 4, smooth=True)
    >>> taps.apply(torch.tensor([0.0, 1.0]), 0, (0, 4), 0)
    tensor([0.0000, 0.2500, 0.7500, 1.0000])
    """
    ratio = size / new_size
    reach = max(1.0, ratio) if smooth else 1.0
    centre = (torch.arange(new_size, dtype=torch.float64) + 0.5) * ratio  # [n], pixel j lies from j to j + 1
    first = (centre - reach + 0.5).floor().clamp(min=0)
    count = min(size, 2 * int(reach + 1) + 1)
    index = first[:, None] + torch.arange(count)  # [n, T]
    weight = (1 - (index + 0.5 - centre[:, None]).abs() / reach).clamp(min=0) * (index < size)
    weight /= weight.sum(1, keepdim=True)
    used = int((weight > 0).any(0).nonzero().max()) + 1
    # A tap without weight reads where another does: what is not needed is not asked for.
    index = torch.where(weight > 0, index, index[:, :1]).long()
    return Taps(size, index[:, :used], weight[:, :used])
