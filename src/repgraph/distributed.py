"""Rank and device of this process, and collective operations, which also work with a single process."""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from repgraph.errors import UsageError

# Processes that evaluate wait for each other once, at the end; torchrun ends all of them if one fails.
TIMEOUT = timedelta(days=7)
T = TypeVar("T")


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def shard(count: int) -> range:
    """Return the indices of this process's items: every n-th item, of n processes."""
    return range(rank(), count, world_size())


def all_reduce(value: Tensor, op: Any = None) -> Tensor:
    """Reduce a tensor over all processes, in place (sum by default). Every process has to call it."""
    if world_size() > 1:
        moved = value.cuda() if dist.get_backend() == "nccl" else value
        dist.all_reduce(moved, dist.ReduceOp.SUM if op is None else op)
        value.copy_(moved)
    return value


def gather(value: T) -> list[T]:
    """Gather values on rank 0; other ranks get an empty list."""
    if world_size() == 1:
        return [value]
    values: list[Any] | None = [None] * world_size() if rank() == 0 else None
    dist.gather_object(value, values)
    return values or []


def broadcast(value: T) -> T:
    """Broadcast a value from rank 0 to all processes."""
    if world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


@contextlib.contextmanager
def process_group(device: str) -> Iterator[torch.device]:
    """Yield this process's device; under torchrun, with a process group that ends with the block.

    With ``auto`` or ``cuda`` as the device, each process gets its own GPU.
    """
    found, gpus = parse_device(device), torch.cuda.device_count()
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield found
        return
    shared = found.type == "cpu" or found.index is not None or int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > gpus
    if found.type == "cuda":
        found = found if found.index is not None else torch.device("cuda", int(os.environ["LOCAL_RANK"]) % gpus)
        torch.cuda.set_device(found)
    # NCCL needs a GPU for each process.
    dist.init_process_group("gloo" if shared else "nccl", timeout=TIMEOUT, device_id=None if shared else found)
    try:
        yield found
    finally:
        destroy_process_group()


def destroy_process_group() -> None:
    """Leave the process group, if there is one; its threads may otherwise abort the process at exit."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def parse_device(text: str) -> torch.device:
    """Return the named device if it is available; ``auto`` is CUDA if possible."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    names = ["cpu", "cuda", *gpus] if gpus else ["cpu"]
    if text == "auto":
        return torch.device("cuda" if gpus else "cpu")
    if text not in names:
        raise UsageError(f"--device {text!r} is not available; choose auto, {', '.join(names)}")
    return torch.device(text)
