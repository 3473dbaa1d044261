"""The end of every layer: the last product, its normalisation, and fusion with the layer's input."""

import torch
from torch import Tensor, nn

from repgraph.layers.batch_norm import add_normalised


def fuse(x: Tensor, response: Tensor, last: nn.Module, norm: nn.Module, fusion: str) -> Tensor:
    """``x + norm(last(response))``, or for "concat" the two side by side; in the memory format of ``x``."""
    if fusion == "sum":
        return add_normalised(x, response, last, norm)
    return torch.cat((x, norm(last(response))), 1)
