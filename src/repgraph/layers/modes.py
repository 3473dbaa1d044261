"""Networks in evaluation mode, and their layers fused for inference."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from repgraph.layers.checks import check_eval
from repgraph.layers.pointwise import Fusible

Model = TypeVar("Model", bound=nn.Module)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Context with evaluation mode and without gradients; restores the mode of every module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def fuse(model: Model) -> Model:
    """Fold batch normalization into the convolutions of all RepGraph and non-local layers, for inference, in place.

    The model has to be in evaluation mode. This cannot be undone: load weights before, compile or export after.
    """
    layers: list[Fusible] = [module for module in model.modules() if isinstance(module, Fusible)]
    check_eval(model)
    for layer in layers:  # before any of them is modified
        check_eval(layer)
    for layer in layers:
        layer.fuse()
    return model
