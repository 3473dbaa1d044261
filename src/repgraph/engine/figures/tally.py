"""Numbers of which there are too many to keep: their mean, and their quantiles to within a twentieth of a per cent."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

STEP = 1e-3  # of the logarithm, from one bin to the next
BINS = 23026  # on either side of 1: from 1e-10 to 1e10

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


class Tally:
    """Counts positive numbers in bins of their logarithm, and sums them up.

    >>> tally = Tally()
    >>> tally.add(torch.tensor([1.0, 2.0, 4.0]))
    >>> tally.add(torch.tensor([1.0, 1.0]))
    >>> tally.mean, tally.quantile(0.5), round(tally.quantile(1), 2)
    (1.8, 1.0, 4.0)
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.counts = torch.zeros(2 * BINS + 1, dtype=torch.int64, device=device)
        self.sum = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, values: Tensor) -> None:
        values = values.flatten().double()
        bins = (values.log() / STEP).round().clamp(-BINS, BINS).long() + BINS
        self.counts += torch.bincount(bins, minlength=len(self.counts))
        self.sum += values.sum()

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return float(self.sum) / self.count

    def quantile(self, share: float) -> float:
        """The least number that so large a share of the numbers does not exceed."""
        below = self.counts.cumsum(0)
        rank = max(1, math.ceil(share * int(below[-1])))
        first = int(torch.searchsorted(below, rank))
        return math.exp((first - BINS) * STEP)

    def quantiles(self, shares: Sequence[float] = QUANTILES) -> dict[float, float]:
        return {share: self.quantile(share) for share in shares}
