"""Sums over the processes that train together."""

import torch.distributed as dist
from torch import Tensor


def several() -> bool:
    """Whether there are other processes to talk to."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def summed(value: Tensor) -> Tensor:
    """The sum over all processes, every one of which has to call it."""
    if several():
        dist.all_reduce(value)
    return value


def leave() -> None:
    """End the talk with the others, before this process ends: threads of it that still run may end it by a signal."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
