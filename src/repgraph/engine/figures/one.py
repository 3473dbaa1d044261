"""The weights of one position of a non-local layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repgraph.engine.figures import attention
from repgraph.engine.figures.network import Seen, run
from repgraph.engine.figures.statistics import TOP, Histogram, Statistics, measure, uniform
from repgraph.engine.sight import affinity as all_pairs
from repgraph.engine.sight.affinity import CHUNK
from repgraph.errors import UsageError
from repgraph.layers import positions


@dataclass(frozen=True)
class Position:
    """A position of a layer's map, and its weights (heads, h, w) for all positions.

    ``at`` is its centre and ``step`` what is from one position to the next, both x and y in pixels of the image.
    ``statistics`` are means over heads, ``uniform`` the same for equal weights.
    """

    layer: str
    row: int
    column: int
    at: tuple[float, float]
    step: tuple[float, float]
    weights: np.ndarray
    statistics: dict[str, float]
    uniform: dict[str, float]
    histogram: Histogram

    @property
    def positions(self) -> int:
        return self.weights[0].size

    def to_dict(self) -> dict[str, Any]:
        """What there is to say, for JSON; not the weights."""
        size = list(self.weights.shape[1:])
        place = {"row": self.row, "column": self.column, "x": self.at[0], "y": self.at[1], "map": size}
        return {**place, **self.statistics, "uniform": self.uniform}


def one_position(
    model: nn.Module,
    image: Tensor,
    at: tuple[float, float] | None = None,
    *,
    layer: str | None = None,
    top: int = TOP,
) -> Position:
    """What one position of a network's non-local layer attends to.

    Args:
        model, layer, top: as for :func:`~repgraph.engine.figures.affinity_statistics`.
        image: uint8 (3, H, W) RGB.
        at: pixel x, y of the image; default: the position whose effective number of positions is the median of all in
            the image, which is neither a good nor a bad example.

    Example:
        >>> from repgraph.models import RGNet
        >>> model = RGNet(3, "resnet10t", context="non_local", channels=16, output_stride=32)
        >>> found = one_position(model, torch.zeros(3, 64, 96, dtype=torch.uint8), at=(40, 10))
        >>> (found.row, found.column), found.at, found.weights.shape
        ((0, 1), (47.5, 15.5), (1, 2, 3))
    """
    path, module = attention.choose(model, layer)
    if at is not None:
        check_inside(at, (image.shape[-2], image.shape[-1]))
    with run(model, image, module) as seen:
        row, column = _median(module, seen, top) if at is None else seen.place(*at)
        query, key, scale = all_pairs.query_and_key(module, seen.features)
        place = row * seen.shape[1] + column
        weights = positions.weigh(query[:, :, place : place + 1], key, scale)[0, :, 0]  # [heads, N]
    if not bool(weights.isfinite().all()):
        raise UsageError(f"the weights of {path} are not finite for this image: the network's own are not, or overflow")
    statistics = Statistics(top, weights.device)
    found = {name: float(values.mean()) for name, values in statistics.add(weights).items()}
    return Position(
        layer=path,
        row=row,
        column=column,
        at=seen.pixel(row, column),
        step=seen.frame.step(seen.shape),
        weights=weights.unflatten(1, seen.shape).float().cpu().numpy(),
        statistics=found,
        uniform=uniform(weights.shape[1], top),
        histogram=statistics.histogram(),
    )


def check_inside(at: tuple[float, float], size: Sequence[int], where: str = "the image") -> None:
    """Refuse a pixel x, y outside of an image of ``size`` (H, W).

    >>> check_inside((3, 9), (8, 8))
    Traceback (most recent call last):
    repgraph.errors.UsageError: position 3,9 is outside of the image, which has 8 x 8 pixels: x is 0 to 7, y 0 to 7
    """
    (x, y), (height, width) = at, size
    if not (0 <= x <= width - 1 and 0 <= y <= height - 1):
        raise UsageError(
            f"position {x:g},{y:g} is outside of {where}, which has {width} x {height} pixels: "
            f"x is 0 to {width - 1}, y 0 to {height - 1}"
        )


def _median(layer: attention.Attention, seen: Seen, top: int) -> tuple[int, int]:
    """Row and column of the position with the median effective number, of those that lie on the image."""
    parts = [measure(part, top)["effective"][0].mean(0) for part in all_pairs.weights(layer, seen.features, CHUNK)]
    rows, columns = seen.frame.kept(seen.shape)
    effective = torch.cat(parts).unflatten(0, seen.shape)[:rows, :columns].flatten()
    place = int(effective.argsort(stable=True)[(len(effective) - 1) // 2])
    return place // columns, place % columns
