"""Whom each position attends to most, of a layer that attends to all: the N x N weights are never in memory at once."""

import torch
from torch import Tensor

from repgraph.layers import NonLocal, positions
from repgraph.layers.dual_attention import PositionAttention

CHUNK = 2**24  # weights at once, of all heads: 64 MiB in float32


def strongest(layer: NonLocal | PositionAttention, x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``count`` positions with the largest weights for each position of one map x (1, C, h, w).

    Returns:
        index (K, h, w), as row w + column, the strongest first; their weights (K, h, w), the mean of all heads; and the
        share (h, w) that they have of all weight. K is ``count``, or h w where that is less.

    >>> index, weights, share = strongest(NonLocal(8), torch.randn(1, 8, 5, 6), 4)
    >>> index.shape, bool((weights.sum(0) - share).abs().max() < 1e-6)
    (torch.Size([4, 5, 6]), True)
    """
    if isinstance(layer, NonLocal):
        (query, key), heads, scale = layer.query_and_key(x), layer.groups, layer.scale
    else:
        query, key, heads, scale = layer.query(x), layer.key(x), 1, 1.0
    q, k = positions.rows(query, heads), positions.rows(key, heads)
    places = q.shape[2]
    found = []
    for part in q.split(max(1, CHUNK // (heads * places)), dim=2):
        weights = positions.weigh(part, k, scale)[0].mean(0)  # [rows, N]
        found.append(weights.topk(min(count, places), dim=1))
    size = x.shape[2:]
    values = torch.cat([top.values for top in found]).T.unflatten(1, size).float()
    index = torch.cat([top.indices for top in found]).T.unflatten(1, size)
    return index, values, values.sum(0)
