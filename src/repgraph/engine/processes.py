"""Who this process is among those that torchrun started, and the device it works on."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from repgraph.arguments import parse_device
from repgraph.errors import UsageError

# Processes wait for each other once, at the end, for as long as the slowest takes; torchrun ends them if one fails.
PATIENCE = timedelta(days=7)


@dataclass(frozen=True)
class Place:
    """``rank`` of ``world`` processes, on ``device``."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, *counts: int) -> list[int]:
        """Each count summed over all processes, every one of which has to call it."""
        if self.world == 1:
            return list(counts)
        summed = torch.tensor(counts, device=self.device if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(summed)
        return summed.tolist()


@contextlib.contextmanager
def joined(device: str) -> Iterator[Place]:
    """This process among all, which can sum over each other inside; ``device`` as on the command line.

    Under torchrun each process takes a GPU of its own for ``auto`` and ``cuda``.
    """
    world = _variable("WORLD_SIZE", 1)
    if world == 1:
        yield Place(0, 1, parse_device(device))
        return
    rank, local, beside = _variable("RANK"), _variable("LOCAL_RANK"), _variable("LOCAL_WORLD_SIZE", 1)
    count = torch.cuda.device_count()
    found = parse_device(device)
    shared = found.type == "cpu" or found.index is not None or beside > count
    if found.type == "cuda":
        found = found if found.index is not None else torch.device("cuda", local % count)
        torch.cuda.set_device(found)
    # NCCL is for processes with a GPU each.
    dist.init_process_group("gloo" if shared else "nccl", timeout=PATIENCE, device_id=None if shared else found)
    try:
        yield Place(rank, world, found)
    finally:
        dist.destroy_process_group()


def _variable(name: str, usual: int | None = None) -> int:
    text = os.environ.get(name, "")
    if not text and usual is not None:
        return usual
    if not text.isdecimal():
        raise UsageError(f"WORLD_SIZE is set, and {name} is {text!r}; start several processes with torchrun")
    return int(text)
