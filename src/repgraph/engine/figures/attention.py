"""The layers of a network in which every position attends to all others, by their paths."""

import difflib

from torch import nn

from repgraph.engine.sight.affinity import Attention
from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, NonLocal, SimpleRepGraph
from repgraph.layers.dual_attention import PositionAttention


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
