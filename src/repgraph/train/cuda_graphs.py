"""CUDA graphs: the network's kernels are recorded once and replayed, which saves the CPU the time to launch them."""

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError, out_of_memory
from repgraph.recipes import Train
from repgraph.train.devices import Devices


def use(train: Train, devices: Devices, fixed_size: bool) -> bool:
    """Return whether to record the network; raise an error if ``train.graph`` is set and that is impossible."""
    one_gpu = devices.kind == "cuda" and devices.world_size == 1
    possible = one_gpu and fixed_size and not train.compile and train.accumulate == 1  # a replay overwrites gradients
    if train.graph and not possible:
        raise UsageError("train.graph is for segmentation on one GPU, without train.compile and train.accumulate")
    return train.graph is not False and possible


def record(model: nn.Module, *inputs: Tensor) -> None:
    """Record the network for inputs of these sizes: later calls in training mode replay its kernels.

    Calls in evaluation mode are not changed. Call it under the autocast of training; a second call has no effect.
    """
    if "forward" in vars(model):
        return
    device = inputs[0].device
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    rng_state = torch.cuda.get_rng_state(device)
    dtype, enabled = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
    # The kernels run several times before they are recorded. Casts of weights are part of the graph, so autocast must
    # not reuse them from one call to the next.
    try:
        with torch.autocast(device.type, dtype, enabled, cache_enabled=False):
            torch.cuda.make_graphed_callables(model, inputs)
    except RuntimeError as error:
        if out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        raise UsageError(f"the network cannot be recorded as a CUDA graph ({reason}); set train.graph=false") from error
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    torch.cuda.set_rng_state(rng_state, device)


def discard(model: nn.Module) -> None:
    """Remove the graphs, which are invalid once the weights are moved."""
    vars(model).pop("forward", None)
