"""Statistics of attention weights that come in parts: how few of the positions carry how much of the mass."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from repgraph.engine.figures.tally import Tally

TOP = 9  # as many as the paper's layer has nodes
NAMES = ("top", "percent", "effective", "effective_share")
# Bins of weights times N, in logarithms: what is smaller than all of them is in the first, as are zeros.
LOWEST, HIGHEST, PER_DECADE = -8, 7, 10


@dataclass(frozen=True)
class Summary:
    """One number over all queries. ``uniform`` is what it would be if all positions had the same weight."""

    mean: float
    uniform: float
    quantiles: Mapping[float, float]

    @property
    def median(self) -> float:
        return self.quantiles[0.5]


@dataclass(frozen=True)
class Histogram:
    """Shares of all weights, and of their mass, by the weight times N: uniform weights are 1.

    ``edges`` has one number more than the shares; what is smaller than the first edge counts in the first bin.
    """

    edges: tuple[float, ...]
    weights: tuple[float, ...]
    mass: tuple[float, ...]


@dataclass
class Statistics:
    """Adds up the statistics of weights that come in parts; its size does not depend on how many there are.

    >>> found = Statistics(top=1)
    >>> one = found.add(torch.tensor([[[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25]]]))
    >>> found.tallies["top"].mean, round(found.tallies["effective"].mean, 6)
    (0.375, 3.0)
    """

    top: int = TOP
    device: torch.device | str = "cpu"
    tallies: dict[str, Tally] = field(init=False)
    uniform: dict[str, float] = field(init=False)  # sums over queries
    counts: Tensor = field(init=False)  # of weights, in bins
    mass: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tallies = {name: Tally(self.device) for name in NAMES}
        self.uniform = dict.fromkeys(NAMES, 0.0)
        bins = (HIGHEST - LOWEST) * PER_DECADE
        self.counts = torch.zeros(bins, dtype=torch.int64, device=self.device)
        self.mass = torch.zeros(bins, dtype=torch.float64, device=self.device)

    def add(self, weights: Tensor) -> dict[str, Tensor]:
        """Add weights (..., queries, N); gives their statistics, float64 (..., queries) each."""
        count = weights.shape[-1]
        found = measure(weights, self.top)
        for name, values in found.items():
            self.tallies[name].add(values)
        for name, value in uniform(count, self.top).items():
            self.uniform[name] += value * (weights.numel() // count)
        flat = weights.flatten()
        place = (((flat * count).log10() - LOWEST) * PER_DECADE).floor().clamp(0, len(self.counts) - 1).long()
        self.counts += torch.bincount(place, minlength=len(self.counts))
        self.mass += torch.bincount(place, weights=flat.double(), minlength=len(self.mass))
        return found

    def reduce(self) -> None:
        """Sum over all processes of torch.distributed, every one of which has to call it; not twice."""
        if not (dist.is_available() and dist.is_initialized()):
            return
        place = "cuda" if dist.get_backend() == "nccl" else "cpu"
        sums = torch.tensor([self.uniform[name] for name in NAMES], dtype=torch.float64)
        tensors = [self.counts, self.mass, sums]
        for tally in self.tallies.values():
            tensors += [tally.counts, tally.sum]
        for tensor in tensors:
            moved = tensor.to(place)
            dist.all_reduce(moved)
            tensor.copy_(moved)
        self.uniform = dict(zip(NAMES, sums.tolist(), strict=True))

    def summary(self, name: str) -> Summary:
        tally = self.tallies[name]
        return Summary(tally.mean, self.uniform[name] / tally.count, tally.quantiles())

    def histogram(self) -> Histogram:
        return shares(self.counts, self.mass)


def measure(weights: Tensor, top: int = TOP) -> dict[str, Tensor]:
    """The statistics of distributions (..., N), float64 (...) each.

    >>> {name: round(float(value), 3) for name, value in measure(torch.tensor([0.5, 0.5, 0.0, 0.0]), 1).items()}
    {'top': 0.5, 'percent': 0.5, 'effective': 2.0, 'effective_share': 0.5}
    """
    count = weights.shape[-1]
    some, percent = min(top, count), math.ceil(count / 100)
    largest = weights.topk(max(some, percent), -1).values.double().cumsum(-1).clamp(max=1)
    effective = torch.special.entr(weights).sum(-1, dtype=torch.float64).exp().clamp(1, count)
    return {
        "top": largest[..., some - 1],
        "percent": largest[..., percent - 1],
        "effective": effective,
        "effective_share": effective / count,
    }


def uniform(count: int, top: int = TOP) -> dict[str, float]:
    """The statistics of equal weights for so many positions.

    >>> uniform(1000)
    {'top': 0.009, 'percent': 0.01, 'effective': 1000.0, 'effective_share': 1.0}
    """
    percent = math.ceil(count / 100) / count
    return {"top": min(top, count) / count, "percent": percent, "effective": float(count), "effective_share": 1.0}


def shares(counts: Tensor, mass: Tensor) -> Histogram:
    """A histogram of what was counted in the bins."""
    edges = tuple(10 ** (LOWEST + i / PER_DECADE) for i in range(len(counts) + 1))
    return Histogram(
        edges, tuple((counts.double() / counts.sum()).tolist()), tuple((mass / mass.sum().clamp(min=1e-30)).tolist())
    )
