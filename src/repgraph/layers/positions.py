"""Attention from every position of a map to every other: what non-local layers and DANet have in common."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops.formats import channels_together, memory_format

ATTENTIONS = ("sdpa", "plain")


def chosen(value: Any) -> str:
    """The name of a way to compute it."""
    if value not in ATTENTIONS:
        raise ValueError(f"unknown attention {value!r}: choose one of {', '.join(map(repr, ATTENTIONS))}")
    return value


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int = 1, scale: float = 1.0, attention: str = "sdpa"
) -> Tensor:
    """``softmax(scale * q k^T) v`` over all positions, in each head on its own.

    "sdpa" leaves the kernel to PyTorch: with one that is fused the N x N weights are never in memory. The fused kernels
    want one width for query, key and value (on CUDA up to 256); only the memory-efficient one of CUDA takes values of
    another width, if both widths are multiples of 8 (of 4 in float32). Where none fits, PyTorch does what "plain" does.

    Args:
        query, key: (B, C, H, W); channels-last maps are used without a copy.
        value: (B, Cv, H, W).

    Returns:
        (B, Cv, H, W) in the memory format of the value.

    >>> attend(torch.randn(1, 4, 5, 6), torch.randn(1, 4, 5, 6), torch.randn(1, 8, 5, 6), heads=2).shape
    torch.Size([1, 8, 5, 6])
    """
    q, k, v = rows(query, heads), rows(key, heads), rows(value, heads)
    if attention == "sdpa":
        response = F.scaled_dot_product_attention(q, k, v, scale=scale)
    else:
        response = weigh(q, k, scale).to(v.dtype) @ v
    height, width = query.shape[2:]
    return map_of(response, height, width).contiguous(memory_format=memory_format(value))


def weigh(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Softmax weights [B, heads, N of the query, N of the key], in float32 for half precision."""
    logits = (q * scale) @ k.mT
    return logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def rows(x: Tensor, heads: int) -> Tensor:
    """A map's positions as rows, [B, heads, N, C / heads]: a view where a position's channels lie together."""
    flat = channels_together(x).permute(0, 2, 3, 1).flatten(1, 2)
    return flat.unflatten(2, (heads, x.shape[1] // heads)).transpose(1, 2)


def map_of(rows: Tensor, height: int, width: int) -> Tensor:
    """The channels-last map of rows [B, heads, N, C / heads]: a view where a position's heads lie together."""
    return rows.transpose(1, 2).flatten(2).unflatten(1, (height, width)).permute(0, 3, 1, 2)
