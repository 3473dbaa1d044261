"""Where a node lies on the map: the coordinate convention, in PyTorch.

Positions are in pixels and pixel centres sit at integers. Queries are cut into ``grid`` x ``grid``
cells (``grid`` 1: every query is its own cell); a cell's anchor is its left-top position; node n of a
cell is anchor + offset n. A node is read from the corners floor(p) and floor(p) + 1 of each axis with
weights 1 - t and t, t = p - floor(p); a corner outside the map counts as zero.

The kernels state the same rule in their own languages (``triton/geometry.py``, ``cpu/geometry.py``).
All three limit positions to [-2, size + 1] first: everything beyond reads as outside the map anyway, and
infinite offsets stay finite. A NaN offset stays NaN in t, so it shows at its own query, and reads no
memory.
"""

import torch
from torch import Tensor


def cells(size: int, grid: int) -> int:
    """Number of cells along an axis of ``size`` positions; the last one may be smaller."""
    return (size + grid - 1) // grid


def position_dtype(features: torch.dtype) -> torch.dtype:
    """Positions and sums are float64 for float64 features and float32 for all others."""
    return torch.float64 if features == torch.float64 else torch.float32


def nodes(offsets: Tensor, grid: int, dtype: torch.dtype) -> Tensor:
    """Absolute node positions (B, S, 2, Hc, Wc), [x, y] in unclamped pixels, from offsets (B, 2S, Hc, Wc)."""
    batch, channels, rows, columns = offsets.shape
    x = torch.arange(columns, device=offsets.device, dtype=dtype) * grid  # [Wc]
    y = torch.arange(rows, device=offsets.device, dtype=dtype) * grid  # [Hc]
    anchors = torch.stack((x.expand(rows, columns), y[:, None].expand(rows, columns)))  # [2, Hc, Wc]
    return offsets.reshape(batch, channels // 2, 2, rows, columns).to(dtype) + anchors


def corners(position: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Left corner (integer) and fraction t of each position along an axis of ``size`` positions."""
    limited = position.clamp(-2, size + 1)
    left = limited.detach().floor()
    index = torch.where(left.isnan(), -2, left)  # a NaN position reads nothing
    return index.long(), limited - left
