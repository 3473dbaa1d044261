"""Time and memory of calls; on the CPU, memory is the peak of the resident set."""

import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Call = Callable[[], object]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Times:
    """A summary of timings, in milliseconds."""

    median: float
    min: float
    p20: float
    p80: float
    count: int


def summarize(milliseconds: Sequence[float]) -> Times:
    median, least, p20, p80 = np.percentile(milliseconds, (50, 0, 20, 80)).tolist()
    return Times(median, least, p20, p80, len(milliseconds))


def warm_up(call: Call, device: torch.device) -> float:
    """Call twice (the first call may compile) and return the seconds of the second call."""
    call()
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def cpu_times(calls: Sequence[Call], rounds: int) -> list[Times]:
    """Time the calls in turns, for a number of rounds."""
    milliseconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, milliseconds, strict=True):
            start = time.perf_counter()
            call()
            found.append((time.perf_counter() - start) * 1e3)
    return [summarize(found) for found in milliseconds]


def cuda_times(call: Call, seconds: float) -> Times:
    """Time calls between events for about ``seconds``, with the L2 cache flushed before each call."""
    from triton.testing import do_bench

    return summarize(do_bench(call, warmup=10, rep=1e3 * seconds, return_mode="all"))


def graph_times(make: Callable[[], Call], seconds: float) -> Times:
    """Time replays of a CUDA graph of one call: GPU time alone, without launch overhead."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a backward pass runs on the stream of its forward pass
        call = make()
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    times = cuda_times(graph.replay, seconds)
    del result
    graph.reset()
    return times


def peak_memory(call: Call, device: torch.device, counts_result: bool = False) -> int | None:
    """Return the peak memory of a call in bytes, by default beyond its result; None if it is unknown."""
    if device.type == "cuda":
        synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        try:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        except (OSError, AttributeError, TypeError):  # without Linux and glibc
            return None
        before = _system_bytes("self/status", "VmRSS")
    result = call()
    synchronize(device)
    storages = [t.untyped_storage() for t in tree_leaves(result) if isinstance(t, Tensor)]
    size = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _system_bytes("self/status", "VmHWM")
    return max(size, peak - before) - (0 if counts_result else size)


@contextlib.contextmanager
def memory_limit() -> Iterator[None]:
    """On Linux, make allocations beyond 80 % of the available memory fail; otherwise the process might be killed."""
    if sys.platform != "linux":
        yield
        return
    import resource

    limits = resource.getrlimit(resource.RLIMIT_DATA)
    new = _system_bytes("self/status", "VmData") + round(0.8 * _system_bytes("meminfo", "MemAvailable"))
    resource.setrlimit(resource.RLIMIT_DATA, (min(n for n in (new, *limits) if n != resource.RLIM_INFINITY), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def _system_bytes(file: str, name: str) -> int:
    """Return an entry of a file in /proc, such as VmRSS (resident memory) or VmHWM (its peak) of self/status."""
    with open(f"/proc/{file}", encoding="ascii", errors="replace") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Collect garbage and, on CUDA, return cached memory to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
