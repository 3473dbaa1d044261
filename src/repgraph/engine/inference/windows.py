"""Windows over an axis: evenly apart, the last one flush with the border."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Axis:
    """The windows along one side of an image; ``window`` may be longer than the side, then it is the only one.

    >>> Axis(size=10, window=6, step=4).starts
    (0, 4)
    >>> Axis(size=11, window=6, step=4).starts
    (0, 4, 5)
    """

    size: int
    window: int
    step: int

    @cached_property
    def starts(self) -> tuple[int, ...]:
        last = self.size - self.window
        if last <= 0:
            return (0,)
        return tuple(min(i * self.step, last) for i in range(math.ceil(last / self.step) + 1))

    def covering(self, start: int, stop: int) -> tuple[int, ...]:
        """Where the windows begin that have a pixel from ``start`` to ``stop``."""
        return self.starts[bisect_right(self.starts, start - self.window) : bisect_left(self.starts, stop)]

    def share(self, start: int, stop: int) -> Tensor:
        """One over the number of windows that see each pixel from ``start`` to ``stop``, float64.

        >>> Axis(size=10, window=6, step=4).share(2, 7)
        tensor([1.0000, 1.0000, 0.5000, 0.5000, 1.0000], dtype=torch.float64)
        """
        seen = torch.zeros(stop - start, dtype=torch.float64)
        for first in self.covering(start, stop):
            seen[max(first - start, 0) : first + self.window - start] += 1
        return 1 / seen
