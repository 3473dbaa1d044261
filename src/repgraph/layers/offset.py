"""The regression of the offsets, always in float32: half precision moves in steps of 1/8 pixel at 16 pixels."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.layers.pointwise import Pointwise
from repgraph.layers.spread import Spread, shrink
from repgraph.ops.backends import direct
from repgraph.ops.product import wide_product

WHOLE = 2**30  # a grid that is larger than any map: one cell


class Offset(Pointwise):
    """A 1 x 1 convolution C -> 2S with bias that starts at a spread: channel 2n is x of node n, 2n + 1 its y.

    The convolution is in float32 also under autocast and for a module in half precision (float64 for float64). With
    a grid its input is the mean of each cell. The bias of a spread is scaled to the map: on a map too small for it a
    spread in pixels shrinks, and one in half maps is multiplied by half of the map's sides. What the weight adds is in
    pixels.
    """

    def __init__(
        self,
        channels: int,
        spread: Spread,
        nodes: int,
        grid: int | Literal["map"] = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.spread = spread
        self.extent = spread.extent  # worked out here: torch.compile would have to trace it
        self.grid = grid
        self.seen: tuple[Tensor, int, int] | None = None  # the last offsets and the map they are of, for ``reach``
        super().__init__(channels, 2 * nodes, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """PyTorch's initialisation for the spread "default"; else a weight of zero, and the points as bias."""
        if self.spread.points is None:
            super().reset_parameters()
            return
        assert self.bias is not None
        with torch.no_grad():
            self.weight.zero_()
            self.bias.copy_(torch.tensor(self.spread.points).flatten())

    def forward(self, x: Tensor) -> Tensor:
        """Offsets (B, 2S, Hc, Wc) from features (B, C, H, W)."""
        height, width = x.shape[2:]
        offsets = wide_product(self.pooled(x), self.weight.flatten(1), self.bias_on(height, width))
        if direct(offsets) and not offsets.is_meta:
            self.seen = offsets.detach(), height, width
        return offsets

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
            points = self.bias.to(wide).view(-1, 2)
            return torch.stack((points[:, 0] * ((width - 1) / 2), points[:, 1] * ((height - 1) / 2)), 1).flatten()
        if torch.jit.is_tracing():
            height, width = int(height), int(width)
        factor = shrink(self.extent, height, width)
        if not torch.compiler.is_compiling() and factor == 1:  # a traced factor is not asked: it is one for all sizes
            return self.bias
        return self.bias.to(wide) * factor

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"seen": None}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, spread={self.spread.name!r}"
