"""The regression of node offsets, in float32: at 16 pixels, bfloat16 has a resolution of 1/8 pixel."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.layers.spread import Grid, Spread, shrink_factor
from repgraph.ops.backends import direct
from repgraph.ops.product import wide_product

ONE_CELL = 2**30  # a grid larger than any map


class Offset(nn.Conv2d):
    """A 1 x 1 convolution from C channels to the offsets of S nodes: channel 2n is the x and 2n + 1 the y of node n.

    It runs in float32, also under autocast and in half-precision modules (float64 for float64). For a grid its input is
    the mean of each cell. The weight starts at zero and the bias at the points of the spread. At every call the bias is
    scaled to the map: a spread in pixels shrinks on small maps, a relative one is multiplied by half the map's sides.
    """

    bias: nn.Parameter

    def __init__(
        self,
        channels: int,
        spread: Spread,
        nodes: int,
        grid: Grid = 1,
        map_size: tuple[int, int] | None = None,
        **factory: Any,
    ) -> None:
        self.spread = spread
        # Stored: torch.compile does not have to trace it.
        self.extent = 0.0 if spread.relative else spread.extent
        self.grid = grid
        self.map_size = map_size  # to which a spread in pixels is scaled; None: the map of each call
        self.seen: tuple[Tensor, int, int] | None = None  # last eager offsets with the map's size, for repgraph.reach
        super().__init__(channels, 2 * nodes, 1, **factory)

    def reset_parameters(self) -> None:
        """Zero the weight and set the bias to the spread; for "default", initialize as PyTorch does."""
        if self.spread.points is None:
            super().reset_parameters()
            return
        with torch.no_grad():
            self.weight.zero_()
            self.bias.copy_(torch.tensor(self.spread.points).flatten())

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        weight, bias = self.weight.flatten(1), self.scaled_bias(height, width)
        if self.grid == "map":
            x = x.mean((2, 3), keepdim=True)
        elif self.grid != 1:  # the last cells of a row or column may be smaller
            x = F.avg_pool2d(x, self.grid, ceil_mode=True, count_include_pad=False)
        offsets = wide_product(x, weight, bias)
        if direct(offsets) and not offsets.is_meta:
            self.seen = offsets.detach(), height, width
        return offsets

    def scaled_bias(self, height: int, width: int) -> Tensor:
        """Return the bias in pixels of a map of this size; factors are not rounded to half precision."""
        if self.spread.relative:
            bias = self.bias.to(torch.promote_types(self.bias.dtype, torch.float32))
            return torch.stack((bias[0::2] * ((width - 1) / 2), bias[1::2] * ((height - 1) / 2)), 1).flatten()
        if self.map_size is not None:
            height, width = self.map_size
        factor = shrink_factor(self.extent, height, width)
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()) and factor == 1:  # one program for all sizes
            return self.bias
        return self.bias.to(torch.promote_types(self.bias.dtype, torch.float32)) * factor

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"seen": None}
