"""Layers in which every position attends to all others, and their weights, which are never in memory as a whole."""

import difflib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, NonLocal, SimpleRepGraph, positions
from repgraph.layers.dual_attention import PositionAttention

CHUNK = 2**22  # weights at a time

Attention = NonLocal | PositionAttention


def attentions(model: nn.Module) -> dict[str, Attention]:
    """The layers that attend to all positions, by their paths: non-local ones, and dual attention's over positions.

    >>> from repgraph.layers import DualAttention
    >>> list(attentions(nn.Sequential(nn.ReLU(), NonLocal(8), DualAttention(8))))
    ['1', '2.position']
    """
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, NonLocal | PositionAttention)}


def choose(model: nn.Module, path: str | None = None) -> tuple[str, Attention]:
    """The layer at a path, or the last one, and its path."""
    found = attentions(model)
    if not found:
        raise UsageError(
            f"the network has no layer that attends to all positions (non-local or dual attention); {_has(model)}"
        )
    if path is None:
        return list(found.items())[-1]
    for known in (path, f"{path}.position"):  # of dual attention, also by its own path
        if known in found:
            return known, found[known]
    close = difflib.get_close_matches(path, list(found), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(map(repr, found))}"
    raise UsageError(f"the network has no layer {path!r} that attends to all positions; {hint}")


def _has(model: nn.Module) -> str:
    """What a network has instead, in words."""
    kinds = (SimpleRepGraph, BottleneckRepGraph)
    others = [f"{type(m).__name__} at {path}" for path, m in model.named_modules() if isinstance(m, kinds)]
    nodes = "; repgraph nodes shows where such layers look" if others else ""
    return f"it has {', '.join(others) or 'no RepGraph layer either'}{nodes}"


def weights(layer: Attention, x: Tensor, chunk: int = CHUNK) -> Iterator[Tensor]:
    """The layer's own weights for its input (B, C, H, W), for some positions after the other.

    Gives (B, heads, rows, N), each row of which sums to 1, in at least float32; in all there are N = H W rows. A part
    has ``chunk`` numbers at most, but at least one row.

    >>> import torch
    >>> layer, x = NonLocal(8, groups=2), torch.randn(1, 8, 5, 7)
    >>> parts = list(weights(layer, x, chunk=1000))
    >>> [part.shape[2] for part in parts], torch.allclose(torch.cat(parts, 2), layer.affinity(x))
    ([14, 14, 7], True)
    """
    query, key, scale = query_and_key(layer, x)
    batch, heads, count, _ = query.shape
    for part in query.split(max(1, chunk // (batch * heads * count)), 2):
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
