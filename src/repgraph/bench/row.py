"""The result of one measurement, and the ways in which one can end."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from repgraph.bench.measure import Times
from repgraph.bench.setting import MapSetting

OK, WRONG, CANNOT, FAILED = "ok", "wrong", "cannot run", "failed"
NO_MEMORY, TOO_SLOW = "out of memory", "over the time limit"
# What a ratio compares: GPU time alone, GPU time with the gaps that launching leaves, time of the clock.
GRAPH, EVENTS, WALL = "graph", "events", "wall"


@dataclass
class Row:
    """One pass of a candidate in one setting."""

    candidate: str
    family: str
    pass_: str
    setting: MapSetting
    threads: int
    status: str = OK
    reason: str = ""
    times: Times | None = None
    graph: Times | None = None  # the same by replay of a CUDA graph
    memory: int | None = None  # highest use beyond what was there before and beyond the result, bytes
    result: int | None = None  # size of the result, bytes


def timing_record(row: Row) -> dict[str, Any]:
    """The times of a row as flat, named values."""
    record: dict[str, Any] = {}
    for name, times in (("", row.times), ("graph_", row.graph)):
        record[f"{name}median_ms"] = times.median if times else None
        record[f"{name}min_ms"] = times.least if times else None
        record[f"{name}p20_ms"] = times.p20 if times else None
        record[f"{name}p80_ms"] = times.p80 if times else None
        record[f"{name}count"] = times.count if times else None
    return record


def ratio(row: Row, yardsticks: Iterable[Row]) -> tuple[float | None, str]:
    """How many times faster a row is than the fastest yardstick, and by which medians.

    By those of CUDA graphs, which are GPU time alone, where this row and the yardstick have them. Whether a
    yardstick has one is asked of the fastest by events: a slow kernel without a graph decides nothing.
    """
    timed = [(y.times.median, y.graph) for y in yardsticks if y.times]
    if not timed or row.times is None:
        return None, ""
    least, graph = min(timed, key=lambda pair: pair[0])
    if row.graph and graph:
        return min(g.median for _, g in timed if g) / row.graph.median, GRAPH
    return least / row.times.median, EVENTS if row.setting.device.type == "cuda" else WALL


R = TypeVar("R", bound=Row)


def fastest(rows: Iterable[R]) -> R | None:
    """The row with the least median, by events or by the clock."""
    timed = [(row.times.median, index, row) for index, row in enumerate(rows) if row.times]
    return min(timed)[2] if timed else None


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
