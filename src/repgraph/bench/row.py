"""The result of one measurement, and the ways in which one can end."""

import re
from dataclasses import dataclass

import torch

from repgraph.bench.measure import Times
from repgraph.bench.setting import Setting

PASSES = ("forward", "backward")
OK, WRONG, CANNOT, FAILED = "ok", "wrong", "cannot run", "failed"
NO_MEMORY, TOO_SLOW = "out of memory", "over the time limit"
# What a ratio compares: GPU time alone, GPU time with the gaps that launching leaves, time of the clock.
GRAPH, EVENTS, WALL = "graph", "events", "wall"


@dataclass
class Row:
    """A candidate's forward or backward in one setting."""

    candidate: str
    family: str
    pass_: str
    setting: Setting
    threads: int
    status: str = OK
    reason: str = ""
    times: Times | None = None
    graph: Times | None = None  # the same by replay of a CUDA graph
    memory: int | None = None  # highest use beyond what was there before and beyond the result, bytes
    kept: int | None = None  # held from forward to backward beyond the result, bytes
    versus_composition: float | None = None  # how many times faster than composition in the same run
    versus_composition_basis: str = ""  # the medians that were compared: GRAPH, EVENTS or WALL
    versus_sdpa: float | None = None  # how many times faster than the fastest SDPA kernel in the same run
    versus_sdpa_basis: str = ""


def classify(error: Exception) -> tuple[str, str]:
    """Status and reason that an exception stands for.

    >>> classify(RuntimeError("no such kernel"))
    ('failed', 'RuntimeError: no such kernel')
    >>> classify(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has a total"))
    ('out of memory', 'OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.')
    """
    if isinstance(error, TimeoutError):
        return TOO_SLOW, str(error)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error):
        return NO_MEMORY, re.split(r"(?<=\.) GPU \d", first_line(error))[0]  # without the allocator's figures
    return FAILED, first_line(error)


def first_line(error: BaseException) -> str:
    """An exception on one line, without what PyTorch appends to it."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
