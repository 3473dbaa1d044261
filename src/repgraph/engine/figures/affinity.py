"""How the weights of a non-local layer are spread over positions: the paper's first figure in numbers.

Every position (query) has a distribution over all N positions. What is told of it: the share of its mass in the few
largest weights and in the largest 1 % of them, and the effective number of positions, the exponential of its entropy.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repgraph.engine.figures import attention
from repgraph.engine.figures.attention import CHUNK
from repgraph.engine.figures.network import run
from repgraph.engine.figures.tally import Tally
from repgraph.engine.inference.network import NotFinite

TOP = 9  # as many as the paper's layer has nodes
NAMES = ("top", "percent", "effective", "effective_share")
# Bins of weights times N, in logarithms: what is smaller than all of them is in the first, as are zeros.
LOWEST, HIGHEST, PER_DECADE = -8, 7, 10

Progress = Callable[[float], None]  # images done


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


@dataclass(frozen=True)
class OfImage:
    """Means over the queries of one image, and its number of positions."""

    positions: int
    top: float
    percent: float
    effective: float
    effective_share: float


@dataclass(frozen=True)
class Affinity:
    """What :func:`affinity_statistics` finds. Shares are fractions.

    - ``top``: the share of a query's mass in its ``top_count`` largest weights.
    - ``percent``: that in the largest 1 % of its weights, rounded up to a whole number of them.
    - ``effective``: the effective number of positions, exp(entropy).
    - ``effective_share``: the same, divided by the number of positions.
    """

    layer: str
    heads: int
    top_count: int
    images: tuple[OfImage, ...]
    queries: int  # of all images and heads
    top: Summary
    percent: Summary
    effective: Summary
    effective_share: Summary
    histogram: Histogram
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """All of it but the images, for JSON."""
        record = {k: v for k, v in asdict(self).items() if k != "images"}
        record["images"] = len(self.images)
        record["positions"] = math.fsum(one.positions for one in self.images) / len(self.images)
        for name in NAMES:
            record[name]["quantiles"] = {f"{share:g}": value for share, value in record[name]["quantiles"].items()}
        return record


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


def affinity_statistics(
    model: nn.Module,
    images: Iterable[Tensor],
    *,
    layer: str | None = None,
    top: int = TOP,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> Affinity:
    """How a network's non-local layer spreads its attention over positions, on some images or a whole data set.

    The N x N weights are computed for some queries after the other (``chunk`` weights at a time) and not kept: memory
    does not grow with N squared, nor with the number of images. They are the layer's own, in float32 at least. Means
    are exact, quantiles to within 0.05 %. Images go through the network whole and at their size, where the network's
    parameters are. The processes of torch.distributed, if there are any, each give images of their own and all get the
    result over all of them; its ``images`` are then in the order of processes.

    Args:
        model: an RGNet, a Mask R-CNN, or any network of normalised images (1, 3, H, W).
        images: uint8 (3, H, W) RGB.
        layer: path of the layer, for a network with several; default: the last one.
        top: how many largest weights the share ``top`` has.

    Example:
        >>> from repgraph.models import RGNet
        >>> model = RGNet(3, "resnet10t", context="non_local", channels=16, output_stride=32)
        >>> found = affinity_statistics(model, [torch.zeros(3, 64, 96, dtype=torch.uint8)], top=3)
        >>> found.layer, found.queries, round(found.top.uniform, 3), found.top.mean > 0.5
        ('head.context', 6, 0.5, True)
    """
    start = time.perf_counter()
    path, module = attention.choose(model, layer)
    device = next(module.parameters()).device
    statistics, own = Statistics(top, device), list[OfImage]()
    for number, image in enumerate(images):
        with run(model, image, module) as seen:
            sums, queries = dict.fromkeys(NAMES, 0.0), 0
            for part in attention.weights(module, seen.features, chunk):
                found = statistics.add(_finite(part, number, path))
                queries += found["top"].numel()
                for name, values in found.items():
                    sums[name] += float(values.sum())
        own.append(OfImage(part.shape[-1], **{name: value / queries for name, value in sums.items()}))
        if progress is not None:
            progress(number + 1)
    statistics.reduce()
    everyone = _gathered(own)
    if not everyone:
        raise ValueError("there are no images to take statistics of")
    return Affinity(
        layer=path,
        heads=getattr(module, "groups", 1),
        top_count=top,
        images=tuple(everyone),
        queries=statistics.tallies["top"].count,
        histogram=statistics.histogram(),
        seconds=time.perf_counter() - start,
        **{name: statistics.summary(name) for name in NAMES},
    )


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


def _finite(weights: Tensor, number: int, path: str) -> Tensor:
    if not bool(weights.isfinite().all()):
        raise NotFinite(
            f"the weights of {path} are not finite for image {number + 1}: the network's own are, or overflow"
        )
    return weights


def _gathered(own: list[OfImage]) -> list[OfImage]:
    """Of all processes, one after the other."""
    if not (dist.is_available() and dist.is_initialized()):
        return own
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return [one for part in everyone for one in part]
