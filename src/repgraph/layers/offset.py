"""The regression of the offsets, always in float32: half precision moves in steps of 1/8 pixel at 16 pixels."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.layers.spread import Spread, shrink
from repgraph.ops import library
from repgraph.ops.backends import direct
from repgraph.ops.product import wide_fork, wide_product

WHOLE = 2**30  # a grid that is larger than any map: one cell
SIDE = 64  # steps along a side of the paper's 65 x 65 map, on which an offset in units of the map is one in pixels

View = int | Literal["map"]
Unit = Literal["pixels", "map"]
UNITS = ("pixels", "map")


class Offset(nn.Conv2d):
    """A convolution C -> 2S with bias that starts at a spread: channel 2n is x of node n, 2n + 1 its y.

    The convolution is in float32 also under autocast and for a module in half precision (float64 for float64). With
    a grid its input is the mean of each cell. The bias of a spread is scaled to the map: on a map too small for it a
    spread in pixels shrinks, and one in half maps is multiplied by half of the map's sides. What the weight adds is in
    pixels, unless the unit is the map: then all offsets are scaled with the map, and are in pixels on one of 65 x 65.

    With a spread of regions the bias starts at zero, and the offsets are those from the middles of the regions.

    What a position's offsets are regressed from is its ``view``: its own feature (1, the paper's), those of a window of
    so many positions (an odd number; of cells, for a grid), or its own and the mean of the map ("map": ``around``).
    """

    around: nn.Parameter | None
    regions: Tensor | None  # their middles, as fractions: whole numbers, which a module's half precision does not round

    def __init__(
        self,
        channels: int,
        spread: Spread,
        nodes: int,
        grid: int | Literal["map"] = 1,
        view: View = 1,
        unit: Unit = "pixels",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.spread = spread
        # Worked out here: torch.compile would have to trace it.
        self.extent = spread.extent if spread.unit == "pixels" else 0.0
        self.grid = grid
        self.view, self.unit = view, unit
        # How far the middle of a cell, around which the nodes are spread, is from its anchor.
        fixed = spread.points is None or spread.unit == "maps"
        self.middle = 0.0 if fixed or grid == "map" else (int(grid) - 1) / 2
        self.seen: tuple[Tensor, int, int] | None = None  # the last offsets and the map they are of, for ``reach``
        side = 1 if view == "map" else int(view)
        super().__init__(channels, 2 * nodes, side, padding=side // 2, device=device, dtype=dtype)
        around = nn.Parameter(torch.empty_like(self.weight.flatten(1))) if view == "map" else None
        self.register_parameter("around", around)
        regions = torch.tensor(_fractions(spread.points or ()), device=device) if spread.unit == "maps" else None
        self.register_buffer("regions", regions, persistent=False)
        if around is not None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """PyTorch's initialisation for the spread "default"; else a weight of zero, and the points as bias."""
        around = self._parameters.get("around")
        with torch.no_grad():
            if self.spread.points is None:
                super().reset_parameters()
                if around is not None:
                    around.uniform_(-(self.in_channels**-0.5), self.in_channels**-0.5)
                return
            assert self.bias is not None
            self.weight.zero_()
            if self.spread.unit == "maps":
                self.bias.zero_()
            else:
                self.bias.copy_(torch.tensor(self.spread.points).flatten())
            if around is not None:
                around.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Offsets (B, 2S, Hc, Wc) from features (B, C, H, W)."""
        height, width = x.shape[2:]
        return self.noted(self._regressed(self.pooled(x), height, width), height, width)

    def fork(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The offsets, and the features for what else is done with them: in training that saves an addition."""
        height, width = x.shape[2:]
        linear = self.linear(height, width)
        if linear is None:
            return self.forward(x), x
        offsets, x = wide_fork(x, *linear)
        return self.noted(offsets, height, width), x

    def linear(self, height: int, width: int) -> tuple[Tensor, Tensor] | None:
        """Weight (2S, C) and bias of offsets that are one product with each position's features, before they are
        ``noted``; None if they are more than that."""
        if self.kernel_size != (1, 1) or self.grid != 1 or self.around is not None:
            return None
        return self._scaled(self.weight, height, width).flatten(1), self.bias_on(height, width)

    def noted(self, offsets: Tensor, height: int, width: int) -> Tensor:
        if self.regions is not None:
            offsets = offsets + self._to_regions(self.regions, offsets, height, width)
        if direct(offsets) and not offsets.is_meta:
            self.seen = offsets.detach(), height, width
        return offsets

    def _regressed(self, x: Tensor, height: int, width: int) -> Tensor:
        bias = self.bias_on(height, width)
        weight = self._scaled(self.weight, height, width)
        if self.kernel_size == (1, 1):
            offsets = wide_product(x, weight.flatten(1), bias)
        else:
            with library.unrounded(x.device.type):
                wide = torch.promote_types(x.dtype, torch.float32)
                offsets = F.conv2d(x.to(wide), weight.to(wide), bias.to(wide), padding=self.padding)
        if self.around is None:
            return offsets
        with library.unrounded(x.device.type):
            mean = x.mean((2, 3), dtype=offsets.dtype)
            shift = mean @ self._scaled(self.around, height, width).to(offsets.dtype).t()
        return offsets + shift[:, :, None, None]

    def _to_regions(self, regions: Tensor, offsets: Tensor, height: int, width: int) -> Tensor:
        """How far it is (2S, Hc, Wc) from the anchors of the cells to the middles of the regions."""
        rows, columns = offsets.shape[2:]
        step = 1 if self.grid == "map" else int(self.grid)
        above, below = regions.to(offsets.dtype)
        x, y = (above / below).unbind(1)
        right = (x * (width - 1))[:, None] - step * torch.arange(columns, device=x.device)
        down = (y * (height - 1))[:, None] - step * torch.arange(rows, device=y.device)
        shape = len(x), rows, columns
        return torch.stack((right[:, None].expand(shape), down[:, :, None].expand(shape)), 1).flatten(0, 1)

    def pooled(self, x: Tensor) -> Tensor:
        """The mean of each cell; the last cells of a row or column may be smaller."""
        if self.grid == 1:
            return x
        if self.grid == "map":
            return x.mean((2, 3), keepdim=True)
        return F.avg_pool2d(x, min(int(self.grid), WHOLE), ceil_mode=True, count_include_pad=False)

    def bias_on(self, height: int, width: int) -> Tensor:
        """The bias in pixels on a map of that size; what it is multiplied by is not rounded to half precision."""
        assert self.bias is not None
        wide = torch.promote_types(self.bias.dtype, torch.float32)
        if self.spread.unit == "half maps":
            return _times(self.bias.to(wide), (width - 1) / 2, (height - 1) / 2)
        if self.unit == "map":
            return self.middle + self._scaled(self.bias.to(wide) - self.middle, height, width)
        if torch.jit.is_tracing():
            height, width = int(height), int(width)
        factor = shrink(self.extent, height, width)
        if not torch.compiler.is_compiling() and factor == 1:  # a traced factor is not asked: it is one for all sizes
            return self.bias
        return self.bias.to(wide) * factor

    def _scaled(self, weight: Tensor, height: int, width: int) -> Tensor:
        """What gives offsets in the unit, such that it gives them in pixels of a map of that size."""
        if self.unit == "pixels":
            return weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        return _times(weight.to(wide), (width - 1) / SIDE, (height - 1) / SIDE)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"seen": None}

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, spread={self.spread.name!r}"
        shown += "" if self.view == 1 else f", view={self.view!r}"
        return shown + ("" if self.unit == "pixels" else f", unit={self.unit!r}")


def _fractions(points: Iterable[Sequence[float]]) -> list[list[list[int]]]:
    """[2, S, 2]: numerators and denominators."""
    parts = [[Fraction(c).limit_denominator(10**6) for c in point] for point in points]
    return [[[c.numerator for c in point] for point in parts], [[c.denominator for c in point] for point in parts]]


def _times(numbers: Tensor, x: float, y: float) -> Tensor:
    """Rows of x and y in turn, (2S, ...), each times its factor."""
    return torch.stack((numbers[0::2] * x, numbers[1::2] * y), 1).flatten(0, 1)
