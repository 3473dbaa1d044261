"""Representative attention in plain PyTorch, the reference for all kernels.

It stores the sampled nodes (S times the size of the maps), is twice differentiable, and exports to ONNX operators.
"""

import torch
from torch import Tensor

from repgraph.ops import geometry


def sample(feature: Tensor, nodes: Tensor) -> Tensor:
    """Sample features (B, C, H, W) at nodes (B, S, 2, Hc, Wc) by bilinear interpolation: (B, C, S, Hc, Wc)."""
    batch, channels, height, width = feature.shape
    _, count, _, rows, columns = nodes.shape
    x, tx = geometry.corners(nodes[:, :, 0], width)  # [B, S, Hc, Wc]
    y, ty = geometry.corners(nodes[:, :, 1], height)
    flat = feature.flatten(2)  # [B, C, HW]

    def corner(x: Tensor, y: Tensor) -> Tensor:
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        index = torch.where(inside, y * width + x, 0).flatten(1)  # [B, S Hc Wc]
        value = flat.gather(2, index[:, None].expand(-1, channels, -1))
        value = value.reshape(batch, channels, count, rows, columns)
        return torch.where(inside[:, None], value, 0)

    tx, ty = tx[:, None], ty[:, None]
    top = corner(x, y) * (1 - tx) + corner(x + 1, y) * tx
    bottom = corner(x, y + 1) * (1 - tx) + corner(x + 1, y + 1) * tx
    return top * (1 - ty) + bottom * ty


def attend(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, groups: int, grid: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output (B, Cv, H, W) and the attention weights (B, G, S, H, W)."""
    batch, _, height, width = query.shape
    dtype = geometry.position_dtype(query.dtype)
    nodes = geometry.nodes(offsets, grid, dtype)
    keys = sample(key.to(dtype), nodes)  # [B, C, S, Hc, Wc]
    values = keys if value is key else sample(value.to(dtype), nodes)
    if grid > 1:  # repeat the nodes of a cell for each of its queries
        row = torch.arange(height, device=query.device) // grid
        column = torch.arange(width, device=query.device) // grid
        keys = keys.index_select(3, row).index_select(4, column)
        values = values.index_select(3, row).index_select(4, column)
    count = keys.shape[2]
    per_group = query.shape[1] // groups
    q = query.to(dtype).reshape(batch, groups, per_group, 1, height, width)
    k = keys.reshape(batch, groups, per_group, count, height, width)
    v = values.reshape(batch, groups, value.shape[1] // groups, count, height, width)
    weights = torch.softmax((q * k).sum(2) * scale, 2)  # [B, G, S, H, W]
    y = (weights[:, :, None] * v).sum(3).reshape(batch, value.shape[1], height, width)
    return y.to(query.dtype), weights
