"""The coordinate convention: where nodes are on the map.

Positions are in pixels, with pixel centres at integers. Queries are divided into cells of ``grid`` x ``grid`` (``grid``
1: every query is a cell). The anchor of a cell is its top-left position, and node n is at anchor + offset n. A node at
p is interpolated between the corners floor(p) and floor(p) + 1 of each axis with weights 1 - t and t, t = p - floor(p).
Corners off the map are zero.

The kernels implement the same rule (``triton/geometry.py``, ``cpu/geometry.py``). All three clamp positions to [-2,
size + 1] first: positions beyond are off the map anyway, and infinite offsets become finite. A NaN offset has a NaN t,
so that the result of its query is NaN, and reads no memory.
"""

import torch
from torch import Tensor


def cells(size: int, grid: int) -> int:
    """Return the number of cells along an axis of ``size`` positions; the last cell may be smaller."""
    return (size + grid - 1) // grid


def position_dtype(features: torch.dtype) -> torch.dtype:
    """Return the dtype of positions and sums: float64 for float64 features, else float32."""
    return torch.float64 if features == torch.float64 else torch.float32


def nodes(offsets: Tensor, grid: int, dtype: torch.dtype) -> Tensor:
    """Return absolute node positions (B, S, 2, Hc, Wc), unclamped [x, y] in pixels, of offsets (B, 2S, Hc, Wc)."""
    batch, channels, rows, columns = offsets.shape
    x = torch.arange(columns, device=offsets.device, dtype=dtype) * grid  # [Wc]
    y = torch.arange(rows, device=offsets.device, dtype=dtype) * grid  # [Hc]
    anchors = torch.stack((x.expand(rows, columns), y[:, None].expand(rows, columns)))  # [2, Hc, Wc]
    return offsets.reshape(batch, channels // 2, 2, rows, columns).to(dtype) + anchors


def corners(position: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the left corner (integer) and the fraction t of each position along an axis of ``size`` positions."""
    limited = position.clamp(-2, size + 1)
    left = limited.detach().floor()
    index = torch.where(left.isnan(), -2, left)  # a NaN position is off the map
    return index.long(), limited - left
