"""The end of every layer: the last product, its normalisation, and fusion with the layer's input."""

import torch
from torch import Tensor, nn


def fuse(x: Tensor, response: Tensor, last: nn.Module, norm: nn.Module, fusion: str) -> Tensor:
    """``x + norm(last(response))``, or for "concat" the two side by side; in the memory format of ``x``."""
    update = norm(last(response))
    return x + update if fusion == "sum" else torch.cat((x, update), 1)
