"""How the weights of a non-local layer are spread over positions: the paper's first figure in numbers.

Every position (query) has a distribution over all N positions. What is told of it: the share of its mass in the few
largest weights and in the largest 1 % of them, and the effective number of positions, the exponential of its entropy.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from repgraph.engine.figures import attention
from repgraph.engine.figures.network import run
from repgraph.engine.figures.statistics import NAMES, TOP, Histogram, Statistics, Summary
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.sight import affinity as all_pairs
from repgraph.engine.sight.affinity import CHUNK

Progress = Callable[[float], None]  # images done


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
        >>> import torch
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
            for part in all_pairs.weights(module, seen.features, chunk):
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


def _finite(weights: Tensor, number: int, path: str) -> Tensor:
    if not bool(weights.isfinite().all()):
        raise NotFinite(
            f"the weights of {path} are not finite for image {number + 1}: the network's own are not, or overflow"
        )
    return weights


def _gathered(own: list[OfImage]) -> list[OfImage]:
    """Of all processes, one after the other."""
    if not (dist.is_available() and dist.is_initialized()):
        return own
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return [one for part in everyone for one in part]
