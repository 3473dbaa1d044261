"""Pyramid pooling (PSPNet): means of the map over a few coarse grids."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.layers import checks
from repgraph.layers.pointwise import Pointwise, make_norm_act
from repgraph.ops.formats import memory_format


class PyramidPooling(nn.Module):
    """Pyramid pooling: the map is averaged over ``bins`` x ``bins`` cells, projected, upsampled and concatenated.

    The output (B, C + branches * C', H, W) begins with the input (B, C, H, W).

    Args:
        mid_channels: channels of each branch. Default: C / number of branches.
        bins: sides of the grids. Default: 1, 2, 3 and 6.
    """

    def __init__(self, channels: int, mid_channels: int | None = None, *, bins: Sequence[int] | None = None) -> None:
        super().__init__()
        self.channels = checks.check_int("channels", channels)
        self.bins = [checks.check_int("bins", side) for side in ((1, 2, 3, 6) if bins is None else bins)]
        width = max(1, channels // max(1, len(self.bins)))
        self.mid_channels = width if mid_channels is None else checks.check_int("mid_channels", mid_channels)
        self.out_channels = channels + len(self.bins) * self.mid_channels
        self.branches = nn.ModuleList(
            nn.Sequential(Pointwise(channels, self.mid_channels, bias=False), make_norm_act(True, self.mid_channels))
            for _ in self.bins
        )

    def forward(self, x: Tensor) -> Tensor:
        size = checks.check_map(x, self.channels).shape[2:]
        maps = [x]
        for side, branch in zip(self.bins, self.branches, strict=True):
            means = branch(F.adaptive_avg_pool2d(x, side))
            maps.append(F.interpolate(means, size=size, mode="bilinear", align_corners=False))
        return torch.cat(maps, 1).contiguous(memory_format=memory_format(x))
