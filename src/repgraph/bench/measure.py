"""How time and memory are measured.

CUDA: events around single calls with the second-level cache flushed in between, and replay of a CUDA graph
for what the GPU needs without the host; memory from PyTorch's allocator. CPU: a monotonic clock, all
candidates in turn, so that whatever else the machine does hits all alike; memory from the kernel's
resident-set high-water mark, after what was freed has been handed back to the system.
"""

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], object]
CPU = torch.device("cpu")

# As large as the largest second-level cache there is, several times over.
_FLUSH_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Times:
    """A summary of single timings, in milliseconds."""

    median: float
    least: float
    p20: float
    p80: float
    count: int


@dataclass(frozen=True)
class Budget:
    """How long to measure: ``repeat`` calls, or as many as fit into ``seconds`` within bounds."""

    seconds: float = 1.0
    repeat: int | None = None
    least: int = 5
    most: int = 1000

    def calls(self, estimate: float) -> int:
        """Number of calls for one that takes ``estimate`` seconds.

        >>> Budget(seconds=1).calls(0.01), Budget(seconds=1).calls(10), Budget(repeat=3).calls(10)
        (100, 5, 3)
        """
        if self.repeat is not None:
            return self.repeat
        return int(min(self.most, max(self.least, self.seconds / max(estimate, 1e-9))))


def summarise(milliseconds: list[float]) -> Times:
    """Median, least, and 20th and 80th percentile.

    >>> summarise([3.0, 1.0, 2.0])
    Times(median=2.0, least=1.0, p20=1.0, p80=3.0, count=3)
    """
    ordered = sorted(milliseconds)
    last = len(ordered) - 1
    return Times(
        statistics.median(ordered),
        ordered[0],
        ordered[round(0.2 * last)],
        ordered[round(0.8 * last)],
        len(ordered),
    )


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warm_up(call: Call, device: torch.device) -> float:
    """Call twice (the first compiles what has to be compiled); seconds of the second."""
    for _ in range(2):
        synchronise(device)
        start = time.perf_counter()
        call()
        synchronise(device)
        seconds = time.perf_counter() - start
    return seconds


def cpu_times(calls: dict[str, Call], estimates: dict[str, float], budget: Budget) -> dict[str, Times]:
    """Time the calls in turn, round after round; every one gets the same number of rounds."""
    if not calls:
        return {}
    rounds = budget.calls(sum(estimates.values()) / len(estimates))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append((time.perf_counter() - start) * 1e3)
    return {name: summarise(times) for name, times in found.items()}


def cuda_times(call: Call, estimate: float, budget: Budget) -> Times:
    """Time each call by events, with the second-level cache flushed before it."""
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
    repeats = budget.calls(estimate)
    for _ in range(min(repeats, 10, 1 + int(0.1 / max(estimate, 1e-9)))):  # once is enough for slow ones
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return summarise([start.elapsed_time(end) for start, end in events])


def graph_times(make: Callable[[], Call], estimate: float, budget: Budget) -> Times:
    """Time replays of a CUDA graph of one call: what the GPU needs, with no time for launching.

    ``make`` prepares the call on the capturing stream, because a backward runs on its forward's stream.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call = make()
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call()
    torch.cuda.current_stream().wait_stream(stream)
    times = cuda_times(graph.replay, estimate, budget)
    del result
    graph.reset()
    return times


def size_of(result: object) -> int:
    """Bytes of the tensor or tensors that a call gives back."""
    tensors = [result] if isinstance(result, Tensor) else [t for t in result if isinstance(t, Tensor)]  # type: ignore[attr-defined]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@dataclass(frozen=True)
class Peak:
    """What a call takes at its highest beyond what was there before, in bytes: its result, and all the rest."""

    beyond: int
    result: int


def peak_memory(call: Call, device: torch.device) -> Peak | None:
    """Memory of one call; None where the system does not tell (CPU memory is measured on Linux with glibc only)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = call()
        torch.cuda.synchronize(device)
        size = size_of(result)
        return Peak(max(0, torch.cuda.max_memory_allocated(device) - before - size), size)
    if not reset_resident_peak():
        return None
    before = resident()["VmRSS"]
    result = call()
    size = size_of(result)
    return Peak(max(0, resident()["VmHWM"] - before - size), size)


def held_memory(device: torch.device) -> int | None:
    """Bytes in use now: by PyTorch's allocator on CUDA, resident in the process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return resident()["VmRSS"] if reset_resident_peak() else None


def reset_resident_peak() -> bool:
    """Hand freed memory back and start the high-water mark anew; False where that is impossible."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except (OSError, AttributeError, TypeError):
        return False
    return True


def resident() -> dict[str, int]:
    """Resident memory of this process in bytes: VmRSS now and VmHWM at its highest."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        lines = dict(line.split(":", 1) for line in file if line.startswith(("VmRSS", "VmHWM")))
    return {name: int(value.split()[0]) * 1024 for name, value in lines.items()}


def require_memory(needed: float, what: str = "", device: torch.device = CPU) -> None:
    """MemoryError where less memory can be had, with some to spare.

    >>> require_memory(2**80, "the inputs")  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    MemoryError: the inputs need about 1125899906842624.0 GiB, 7.5 GiB are free
    """
    available = available_memory(device)
    if needed > (0.8 if device.type == "cpu" else 1.0) * available:  # the CPU's memory has other users
        need = f"{what} need" if what else "needs"
        raise MemoryError(f"{need} about {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are free")


def available_memory(device: torch.device = CPU) -> float:
    """Memory that can still be had, in bytes; infinite where the system does not tell."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return float("inf")
