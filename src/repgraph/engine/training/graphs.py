"""A network's kernels recorded once, as CUDA graphs, and replayed in every iteration.

A step of training starts a thousand kernels or more. Where the CPU takes longer to start them than the GPU to run
them, the GPU waits; replaying costs the CPU next to nothing. What is computed stays the same.
"""

from typing import Any

import torch
from torch import Tensor, nn

from repgraph.engine.training.places import Place
from repgraph.errors import UsageError
from repgraph.recipes import Train


def check(train: Train, place: Place, fixed: bool) -> None:
    """Whether the network can be recorded: on one GPU, batches of one size in one part, not compiled."""
    if not train.graph:
        return
    reason = (
        "it is for CUDA devices, and this is the CPU"
        if place.kind != "cuda"
        else f"it is for one GPU, and there are {place.world} processes"
        if place.world > 1
        else "images of a detector have sizes of their own"
        if not fixed
        else "the network is compiled"
        if train.compile
        else f"gradients of train.accumulate={train.accumulate} parts are summed, and a replay overwrites the last"
        if train.accumulate > 1
        else None
    )
    if reason is not None:
        raise UsageError(f"train.graph is true, and kernels cannot be recorded: {reason}; leave train.graph out")


def record(model: nn.Module, *inputs: Tensor) -> None:
    """From now on calls of the network in training mode replay its kernels, for inputs of these sizes.

    Calls in evaluation mode are as ever, for inputs of any size. A second call changes nothing.
    """
    if "forward" in vars(model):
        return
    device = inputs[0].device
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    generator = torch.cuda.get_rng_state(device)
    # Kernels run some times before they are recorded. Casts of weights are part of the record: none may be kept from
    # one call for the next.
    with torch.autocast(device.type, _autocast(device), _autocast(device) is not None, cache_enabled=False):
        torch.cuda.make_graphed_callables(model, inputs)
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)
    torch.cuda.set_rng_state(generator, device)


def forget(model: nn.Module) -> None:
    """Calls are as ever again. Kernels know where the weights lay: the record is of no use once these have moved."""
    vars(model).pop("forward", None)


def _autocast(device: torch.device) -> Any:
    """The dtype of autocast, where that is on."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
