"""What the settings of all benchmarks have in common: maps of a size, dtype and device."""

from dataclasses import dataclass, replace
from typing import Self

import torch

from repgraph.bench.measure import CPU


@dataclass(frozen=True)
class MapSetting:
    """One point of a benchmark on (B, C, H, W) maps with S nodes for each position."""

    height: int
    width: int
    batch: int = 1
    channels: int = 256
    nodes: int = 9
    sigma: float = 4.0  # standard deviation of the offsets, in pixels
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    channels_last: bool = True
    seed: int = 0

    @property
    def positions(self) -> int:
        """N = H W, the positions of one map."""
        return self.height * self.width

    @property
    def size(self) -> str:
        """Height and width as they are given on the command line.

        >>> MapSetting(height=128, width=256).size
        '128x256'
        """
        return f"{self.height}x{self.width}"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def resized(self, height: int, width: int) -> Self:
        return replace(self, height=height, width=width)
