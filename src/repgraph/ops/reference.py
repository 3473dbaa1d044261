"""Representative attention in plain PyTorch, the reference for all kernels.

It stores the sampled nodes (S times the size of the maps), is twice differentiable, and exports to ONNX operators.
"""

from collections.abc import Sequence

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
        if geometry.same(height * width, 0):
            return feature.new_zeros((batch, channels, count, rows, columns))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        index = torch.where(inside, y * width + x, 0).flatten(1)  # [B, S Hc Wc]
        value = flat.gather(2, index[:, None].expand(-1, channels, -1))
        value = value.reshape(batch, channels, count, rows, columns)
        return torch.where(inside[:, None], value, 0)

    tx, ty = tx[:, None], ty[:, None]
    top = corner(x, y) * (1 - tx) + corner(x + 1, y) * tx
    bottom = corner(x, y + 1) * (1 - tx) + corner(x + 1, y + 1) * tx
    return top * (1 - ty) + bottom * ty


def read_nodes(maps: Sequence[Tensor], nodes: Sequence[Tensor], size: Sequence[int], grid: int) -> Tensor:
    """Sample L maps (B, C, H_l, W_l) at nodes (B, K, S_l, 2, Hc, Wc), for all queries: (B, C, S_1 + ... + S_L, H, W).

    Node set k is for channel group k.
    """
    batch, sets = nodes[0].shape[:2]
    found = []
    for feature, places in zip(maps, nodes, strict=True):
        split = feature.to(places.dtype).reshape(batch * sets, feature.shape[1] // sets, *feature.shape[2:])
        found.append(sample(split, places.flatten(0, 1)))  # [B K, C / K, S_l, Hc, Wc]
    sampled = found[0] if len(found) == 1 else torch.cat(found, 2)
    if grid > 1:  # repeat the nodes of a cell for each of its queries
        for axis, length in ((3, size[0]), (4, size[1])):
            sampled = sampled.index_select(axis, torch.arange(length, device=sampled.device) // grid)
    return sampled.reshape(batch, maps[0].shape[1], *sampled.shape[2:])


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Return the sum (B, C, H, W) of node values (B, C, S, H, W) with the weights (B, G, S, H, W) of channel groups."""
    groups = values.unflatten(1, (weights.shape[1], values.shape[1] // weights.shape[1]))
    return (weights[:, :, None] * groups).sum(3).flatten(1, 2)


def attend(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], offsets: Tensor, groups: int, grid: int,
    scale: float, bias: Tensor | None = None, sets: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output (B, Cv, H, W) and the attention weights (B, G, L S, H, W)."""
    size = query.shape[2:]
    dtype = geometry.position_dtype(query.dtype)
    nodes = geometry.nodes(offsets, grid, dtype, size, [key.shape[2:] for key in keys], sets).unbind(2)
    k = read_nodes(keys, nodes, size, grid)  # [B, C, L S, H, W]
    v = k if values is keys else read_nodes(values, nodes, size, grid)
    per_group = (groups, query.shape[1] // groups)
    q = query.to(dtype).unflatten(1, per_group)[:, :, :, None]  # [B, G, C / G, 1, H, W]
    logits = (q * k.unflatten(1, per_group)).sum(2) * scale  # [B, G, L S, H, W]
    if bias is not None:
        logits = logits + bias.to(dtype).unflatten(1, logits.shape[1:3])
    weights = torch.softmax(logits, 2)
    return weighted_sum(weights, v).to(query.dtype), weights


def deform(value: Tensor, sizes: Sequence[Sequence[int]], nodes: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the output (B, C, 1, Q) of given weights (B, M, S_1 + ... + S_L, 1, Q) of nodes (B, M, S_l, 2, 1, Q).

    ``value`` (B, N, C) has the maps of ``sizes`` one after the other, and the M heads are groups of its channels.
    """
    rows = value.split([height * width for height, width in sizes], 1)
    maps = [row.mT.unflatten(2, tuple(size)) for row, size in zip(rows, sizes, strict=True)]
    sampled = read_nodes(maps, nodes, (1, weights.shape[-1]), 1)
    return weighted_sum(weights.to(sampled.dtype), sampled).to(value.dtype)
