"""Statistics of the attention weights of non-local layers: how concentrated they are on a few positions.

Every position of a map (query) has a distribution over all N positions. Its statistics are:

- ``top``: the share of its largest weights (9 by default);
- ``percent``: the share of the largest 1 % of its weights, rounded up to a whole number of weights;
- ``effective``: the effective number of positions, exp(entropy);
- ``effective_share``: the effective number divided by N.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repgraph import files
from repgraph.inference import NotFinite
from repgraph.layers.modes import evaluation_mode
from repgraph.visualize import collect

TOP = 9  # the number of nodes in the paper
STATISTICS = ("top", "percent", "effective", "effective_share")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
# Bins of the statistics for quantiles: logarithms from 1e-10 to 1e10 in steps of 0.001.
LOG_STEP, LOG_BINS = 1e-3, 23026
# Bins of the histogram: powers of ten of the weight times N, bins per power. The first has all smaller weights.
LOWEST, HIGHEST, PER_DECADE = -5, 7, 10


@dataclass(frozen=True)
class Summary:
    """A statistic over all queries; ``uniform`` is its value for equal weights."""

    mean: float
    uniform: float
    quantiles: dict[float, float]

    @property
    def median(self) -> float:
        return self.quantiles[0.5]


@dataclass(frozen=True)
class Histogram:
    """Histogram of the weight times N, which is 1 for equal weights."""

    edges: tuple[float, ...]
    weights: tuple[float, ...]  # share of the number of weights in each bin
    mass: tuple[float, ...]  # share of their sum


@dataclass(frozen=True)
class AffinityStatistics:
    """Result of :func:`affinity_statistics`, over the queries of all images and heads; shares are fractions."""

    layer: str
    heads: int
    top_count: int
    images: tuple[dict[str, float], ...]  # number of positions, and means of the statistics
    queries: int
    top: Summary
    percent: Summary
    effective: Summary
    effective_share: Summary
    histogram: Histogram

    def values(self, kind: str) -> dict[str, float]:
        """Return the "mean" or "uniform" value of all statistics."""
        return {name: getattr(getattr(self, name), kind) for name in STATISTICS}


@dataclass(frozen=True)
class PositionAffinity:
    """The weights of one position of a layer's map."""

    row: int
    column: int
    at: tuple[float, float]  # its center x, y in pixels of the image
    step: tuple[float, float]  # distance between positions in pixels: horizontal, vertical
    weights: np.ndarray  # (heads, h, w)
    statistics: dict[str, float]  # means over heads
    uniform: dict[str, float]  # statistics of equal weights
    histogram: Histogram


def affinity_statistics(
    model: nn.Module,
    images: Iterable[Tensor],
    *,
    layer: str | None = None,
    top: int = TOP,
    progress: Callable[[int], None] = lambda done: None,
) -> AffinityStatistics:
    """Return statistics of the attention weights of a network's non-local layer over images, uint8 RGB (3, H, W).

    The N x N weights are computed for some queries at a time and not stored: memory grows neither with N² nor with the
    number of images. They are the layer's own weights, in at least float32. Means are exact, quantiles have an error of
    at most 0.05 %. Images run through the network as a whole, on the device of its parameters.

    Args:
        model: An RGNet, a Mask R-CNN, or any network that takes normalized images (1, 3, H, W).
        layer: Path of the layer, or a suffix of it; by default the network's last non-local layer.
    """
    path = collect.find_layer(model, layer, collect.DenseLayer)
    module: Any = model.get_submodule(path)
    heads, bins = getattr(module, "groups", 1), _Bins(top, next(module.parameters()).device)
    found: list[dict[str, Any]] = []
    for number, image in enumerate(images, 1):
        x = collect.run_with_inputs(model, image, [path])[0][path][0]
        parts = []
        with evaluation_mode(model):
            for weights in collect.iterate_weights(module, x):
                if not bool(weights.isfinite().all()):
                    raise NotFinite(f"the weights of {path} are not finite for image {number}; check the network")
                parts.append(bins.add(weights).flatten(1))
        found.append({"positions": x.shape[2] * x.shape[3], **_named(torch.cat(parts, 1).mean(1).tolist())})
        progress(number)
    if not found:
        raise ValueError("images is empty; expected at least one image")
    counts = [image["positions"] for image in found]
    summaries = {}
    for name in STATISTICS:
        values = [image[name] for image in found], [uniform(count, top)[name] for count in counts]
        mean, even = (float(np.average(each, weights=counts)) for each in values)
        summaries[name] = Summary(mean, even, bins.quantiles(name))
    queries = heads * sum(counts)
    return AffinityStatistics(path, heads, top, tuple(found), queries, histogram=bins.histogram(), **summaries)


def position_affinity(
    model: nn.Module, image: Tensor, at: tuple[float, float] | None = None, *, layer: str | None = None, top: int = TOP
) -> PositionAffinity:
    """Return the attention weights of one position of a network's non-local layer.

    Args:
        image: uint8 RGB (3, H, W).
        at: Pixel x, y of the image; its center by default.
    """
    path = collect.find_layer(model, layer, collect.DenseLayer)
    module: Any = model.get_submodule(path)
    at = at or ((image.shape[-1] - 1) / 2, (image.shape[-2] - 1) / 2)
    collect.check_inside(at, image.shape[-2:])
    inputs, frame, _ = collect.run_with_inputs(model, image, [path])
    (x,) = inputs[path]
    step = frame.step(x.shape[2:])
    row, column, center = collect.position_at(*at, frame.valid(x.shape[2:]), step)
    with evaluation_mode(model):
        weights = next(collect.iterate_weights(module, x, index=row * x.shape[3] + column))[0, :, 0]  # [heads, N]
    bins = _Bins(top, weights.device)
    statistics, even = _named(bins.add(weights).mean(1).tolist()), uniform(weights.shape[1], top)
    maps = weights.unflatten(1, x.shape[2:]).float().cpu().numpy()
    return PositionAffinity(row, column, center, step, maps, statistics, even, bins.histogram())


def measure(weights: Tensor, top: int = TOP) -> Tensor:
    """Return the statistics of distributions (..., N), float64 (4, ...), in the order of ``STATISTICS``."""
    count = weights.shape[-1]
    top, percent = min(top, count), math.ceil(count / 100)
    largest = weights.topk(max(top, percent), -1).values.double().cumsum(-1).clamp(max=1)
    effective = torch.special.entr(weights).sum(-1, dtype=torch.float64).exp().clamp(1, count)
    return torch.stack([largest[..., top - 1], largest[..., percent - 1], effective, effective / count])


def uniform(count: int, top: int = TOP) -> dict[str, float]:
    """Return the statistics of equal weights for ``count`` positions."""
    return _named([min(top, count) / count, math.ceil(count / 100) / count, float(count), 1.0])


def _named(values: Sequence[float]) -> dict[str, float]:
    return dict(zip(STATISTICS, values, strict=True))


def describe(found: AffinityStatistics, position: PositionAffinity, image: str, data: str) -> str:
    """Return the statistics over ``data`` and of one position of ``image`` as text, in percent."""
    counts = [image["positions"] for image in found.images]
    positions = " to ".join(f"{count:.0f}" for count in sorted({min(counts), max(counts)}))
    mean = "; ".join(format_lines(found.values("mean"), found.values("uniform"), found.top_count))
    own = "; ".join(format_lines(position.statistics, position.uniform, found.top_count))
    return (
        f"{data}, layer {found.layer}, {found.queries} queries, N = {positions}\nmean: {mean}\n"
        f"one position, {image} at {position.at[0]:.1f},{position.at[1]:.1f}: {own}"
    )


def format_lines(values: dict[str, float], uniform: dict[str, float], top: int) -> list[str]:
    """Format the main statistics, with the values for equal weights, one per line."""
    return [
        f"top {top}: {100 * values['top']:.3g} % (uniform {100 * uniform['top']:.3g} %)",
        f"top 1 %: {100 * values['percent']:.3g} % (uniform {100 * uniform['percent']:.3g} %)",
        f"effective number: {values['effective']:.1f} of {uniform['effective']:.0f}",
    ]


def write(
    folder: Path, about: dict[str, Any], found: AffinityStatistics, position: PositionAffinity, names: Sequence[str]
) -> list[Path]:
    """Write ``affinity.json``, which begins with ``about``, and CSV files; the position is in the first image."""
    record = about | asdict(found) | {"one_position": asdict(position)}
    columns = ["statistic", "mean", "uniform", *(f"quantile {share:g}" for share in QUANTILES)]
    labels = f"top {found.top_count}", "top 1 %", "effective", "effective_share"
    summaries = zip(labels, (getattr(found, name) for name in STATISTICS), strict=True)
    table = [[label, one.mean, one.uniform, *one.quantiles.values()] for label, one in summaries]
    bars = found.histogram
    bins = zip(bars.edges, bars.edges[1:], bars.weights, bars.mass, strict=False)
    images = [[name, *image.values()] for name, image in zip(names, found.images, strict=True)]
    return [
        files.write(folder / "affinity.json", json.dumps(record, default=np.ndarray.tolist) + "\n"),
        files.write(folder / "affinity.csv", files.to_csv(columns, table)),
        files.write(folder / "histogram.csv", files.to_csv(["weight x N from", "to", "weights", "mass"], bins)),
        files.write(folder / "images.csv", files.to_csv(["image", "positions", *STATISTICS], images)),
    ]


class _Bins:
    """Histograms of weights and of their statistics; the size does not depend on the number of weights."""

    def __init__(self, top: int, device: torch.device) -> None:
        bins = (HIGHEST - LOWEST) * PER_DECADE
        self.top = top
        self.counts = torch.zeros(bins, dtype=torch.int64, device=device)  # weights, by size
        self.mass = torch.zeros(bins, dtype=torch.float64, device=device)
        self.logs = torch.zeros(len(STATISTICS), 2 * LOG_BINS + 1, dtype=torch.int64, device=device)  # statistics

    def add(self, weights: Tensor) -> Tensor:
        """Add weights (..., queries, N) and return their statistics, (4, ..., queries)."""
        values = measure(weights, self.top)
        for logs, own in zip(self.logs, values.flatten(1), strict=True):
            index = (own.log() / LOG_STEP).round().clamp(-LOG_BINS, LOG_BINS).long() + LOG_BINS
            logs += torch.bincount(index, minlength=len(logs))
        flat = weights.flatten()
        relative = (flat * weights.shape[-1]).log10()
        index = ((relative - LOWEST) * PER_DECADE).floor().clamp(0, len(self.counts) - 1).long()
        self.counts += torch.bincount(index, minlength=len(self.counts))
        self.mass += torch.bincount(index, weights=flat.double(), minlength=len(self.mass))
        return values

    def quantiles(self, name: str) -> dict[float, float]:
        below = self.logs[STATISTICS.index(name)].cumsum(0).cpu()
        ranks = torch.tensor([max(1, math.ceil(share * int(below[-1]))) for share in QUANTILES])
        values = [math.exp((number - LOG_BINS) * LOG_STEP) for number in torch.searchsorted(below, ranks).tolist()]
        return dict(zip(QUANTILES, values, strict=True))

    def histogram(self) -> Histogram:
        edges = tuple(10 ** (LOWEST + i / PER_DECADE) for i in range(len(self.counts) + 1))
        weights, mass = (values.double() / values.sum() for values in (self.counts, self.mass))
        return Histogram(edges, tuple(weights.tolist()), tuple(mass.tolist()))
