"""The coordinate convention: where nodes are on the map.

Positions are in pixels, with pixel centers at integers. Queries are divided into cells of ``grid`` x ``grid`` (``grid``
1: every query is a cell). The anchor of a cell is its top-left position, and node n is at anchor + offset n. A node at
p is interpolated between the corners floor(p) and floor(p) + 1 of each axis with weights 1 - t and t, t = p - floor(p).
Corners off the map are zero.

The kernels implement the same rule (``triton/geometry.py``, ``cpu/nodes.py``). All three clamp positions to [-2,
size + 1] first: positions beyond are off the map anyway, and infinite offsets become finite. A NaN offset has a NaN t:
it reads no memory, and the result of its query is NaN.

The anchor (x, y) of an H x W query map is at x_l = (x + 1/2) W_l / W - 1/2 on an H_l x W_l map, and likewise for y. All
backends evaluate this from left to right with exact division, and so agree on the corners.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor


def cells(size: int, grid: int) -> int:
    """Return the number of cells along an axis of ``size`` positions; the last cell may be smaller."""
    return (size + grid - 1) // grid


def position_dtype(features: torch.dtype) -> torch.dtype:
    """Return the dtype of positions and sums: float64 for float64 features, else float32."""
    return torch.float64 if features == torch.float64 else torch.float32


def nodes(
    offsets: Tensor,
    grid: int,
    dtype: torch.dtype,
    size: Sequence[int] = (1, 1),
    maps: Sequence[Sequence[int]] = ((1, 1),),
    sets: int = 1,
) -> Tensor:
    """Return absolute node positions (B, K, L, S, 2, Hc, Wc), unclamped [x, y] in pixels of each node's own map.

    Args:
        offsets: (B, 2 K L S, Hc, Wc).
        grid: cell size.
        dtype: of the positions.
        size: height and width of the query map.
        maps: height and width of each of the L maps.
        sets: number K of node sets.
    """
    batch, _, rows, columns = offsets.shape
    anchors = []
    for height, width in maps:
        x = _rescaled(torch.arange(columns, device=offsets.device, dtype=dtype) * grid, size[1], width)  # [Wc]
        y = _rescaled(torch.arange(rows, device=offsets.device, dtype=dtype) * grid, size[0], height)  # [Hc]
        anchors.append(torch.stack((x.expand(rows, columns), y[:, None].expand(rows, columns))))
    count = offsets.shape[1] // (2 * sets * len(maps))
    offsets = offsets.reshape(batch, sets, len(maps), count, 2, rows, columns)
    return offsets.to(dtype) + torch.stack(anchors)[:, None]  # [L, 1, 2, Hc, Wc]


def same(a: object, b: object) -> bool:
    """Return whether sizes are equal. During ``torch.jit.trace`` PyTorch would warn that this becomes a constant."""
    if not torch.jit.is_tracing():
        return bool(a == b)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(a == b)


def _rescaled(x: Tensor, size: int, other: int) -> Tensor:
    """Map positions on an axis of ``size`` pixels to an axis of ``other`` pixels over the same image."""
    if same(size, other):
        return x
    divisor = torch.full((), size, dtype=x.dtype, device=x.device)  # PyTorch multiplies by 1 / size on CUDA otherwise
    return (x + 0.5) * other / divisor - 0.5


def corners(position: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the left corner (integer) and the fraction t of each position along an axis of ``size`` positions."""
    limited = position.clamp(-2, size + 1)
    left = limited.detach().floor()
    index = torch.where(left.isnan(), -2, left)  # a NaN position is off the map
    return index.long(), limited - left
