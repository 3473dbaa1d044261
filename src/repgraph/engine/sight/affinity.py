"""The weights of layers in which every position attends to all others: they are never in memory as a whole."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from repgraph.layers import NonLocal, positions
from repgraph.layers.dual_attention import PositionAttention

CHUNK = 2**22  # weights at a time

Attention = NonLocal | PositionAttention


def weights(layer: Attention, x: Tensor, chunk: int | None = None) -> Iterator[Tensor]:
    """The layer's own weights for its input (B, C, H, W), for some positions after the other.

    Gives (B, heads, rows, N), each row of which sums to 1, in at least float32; in all there are N = H W rows. A part
    has ``chunk`` numbers (CHUNK) at most, but at least one row.

    >>> layer, x = NonLocal(8, groups=2), torch.randn(1, 8, 5, 7)
    >>> parts = list(weights(layer, x, chunk=1000))
    >>> [part.shape[2] for part in parts], torch.allclose(torch.cat(parts, 2), layer.affinity(x))
    ([14, 14, 7], True)
    """
    query, key, scale = query_and_key(layer, x)
    batch, heads, count, _ = query.shape
    for part in query.split(max(1, (CHUNK if chunk is None else chunk) // (batch * heads * count)), 2):
        yield positions.weigh(part, key, scale)


def query_and_key(layer: Attention, x: Tensor) -> tuple[Tensor, Tensor, float]:
    """What the weights are made of: two tensors (B, heads, N, C' / heads), and the factor on their products."""
    maps: Any
    if isinstance(layer, NonLocal):
        maps, heads, scale = layer.query_and_key(x), layer.groups, layer.scale
    else:
        maps, heads, scale = (layer.query(x), layer.key(x)), 1, 1.0
    query, key = (positions.rows(one, heads) for one in maps)
    return query, key, scale


def strongest(layer: Attention, x: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ``count`` positions with the largest weights for each position of one map x (1, C, h, w).

    Returns:
        index (K, h, w), as row w + column, the strongest first; their weights (K, h, w), the mean of all heads; and the
        share (h, w) that they have of all weight. K is ``count``, or h w where that is less.

    >>> index, values, share = strongest(NonLocal(8), torch.randn(1, 8, 5, 6), 4)
    >>> index.shape, bool((values.sum(0) - share).abs().max() < 1e-6)
    (torch.Size([4, 5, 6]), True)
    """
    size = x.shape[2:]
    found = [part[0].mean(0).topk(min(count, size.numel()), dim=1) for part in weights(layer, x)]
    values = torch.cat([top.values for top in found]).T.unflatten(1, size).float()
    index = torch.cat([top.indices for top in found]).T.unflatten(1, size)
    return index, values, values.sum(0)
