"""How far the nodes of RepGraph layers are from their queries."""

import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from repgraph.errors import UsageError
from repgraph.layers.modes import evaluation_mode
from repgraph.layers.pyramid import PyramidRound
from repgraph.layers.repgraph import RepGraph

NODE_LAYERS = (RepGraph, PyramidRound)  # layers with representative nodes


@dataclass(frozen=True)
class Reach:
    """Distances of a layer's nodes, in all rounds, from their query or, for a grid, from the center of its cell.

    ``mean`` and ``p95``, the 95th percentile, are in pixels of the queries' map; shares are fractions of its diagonal.
    """

    mean: float
    p95: float
    mean_share: float
    p95_share: float
    height: int
    width: int

    def __str__(self) -> str:
        shares = f"{100 * self.mean_share:.1f} %, {100 * self.p95_share:.1f} %"
        size = f"{self.height} x {self.width}"
        return f"{self.mean:.1f} px mean, {self.p95:.1f} px p95 ({shares} of the {size} map's diagonal)"


def reach(model: nn.Module, *inputs: Any, **kwargs: Any) -> dict[str, Reach]:
    """Measure how far the nodes of each RepGraph layer are from their queries, over all positions and images.

    The model runs once, uncompiled and in evaluation mode, with the given arguments. Without arguments it does not run;
    the result is then for each layer's last call outside compiled code.

    Returns a :class:`Reach` for the path of each layer that has run ("" is the model itself).
    """
    layers = {path: module for path, module in model.named_modules() if isinstance(module, NODE_LAYERS)}
    if not layers:
        raise UsageError(f"{type(model).__name__} contains no RepGraph layer")
    if inputs or kwargs:
        for layer in layers.values():
            for offset in layer.offsets():
                offset.seen = None
        devices = sorted({t.get_device() for t in model.parameters() if t.is_cuda})
        # Importing the compiler is slow; if it is not imported, nothing is compiled.
        eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
        with eager, evaluation_mode(model), torch.random.fork_rng(devices):
            model(*inputs, **kwargs)
    found = {path: _reach(layer) for path, layer in layers.items() if layer.offset.seen is not None}
    if not found:
        raise UsageError("no eager call of a RepGraph layer was recorded; call reach(model, *inputs)")
    return found


def _reach(layer: RepGraph | PyramidRound) -> Reach:
    _, height, width = layer.offset.seen  # type: ignore[misc]
    offsets = torch.cat([offset.seen[0] for offset in layer.offsets() if offset.seen is not None], 1)
    if isinstance(layer, PyramidRound):
        offsets = layer.in_query_pixels(offsets)
    sides = (width, height) if layer.grid == "map" else (min(layer.grid, width), min(layer.grid, height))
    x, y = ((side - 1) / 2 for side in sides)  # center of a cell, from its top-left position
    distances = torch.hypot(offsets[:, 0::2].double() - x, offsets[:, 1::2].double() - y).flatten()
    # Sorted, as torch.quantile takes no more than 16 million numbers in older versions.
    p95 = distances.sort().values[math.ceil(0.95 * len(distances)) - 1].item() if len(distances) else math.nan
    mean, diagonal = distances.mean().item(), math.hypot(height, width)
    return Reach(mean, p95, mean / diagonal, p95 / diagonal, height, width)
