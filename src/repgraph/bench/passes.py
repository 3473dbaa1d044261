"""Candidates in one setting, and how their passes are measured."""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import torch

from repgraph.bench import measure
from repgraph.bench.measure import Budget, Call
from repgraph.bench.row import OK, Row, classify, first_line

Say = Callable[[str], None]  # what is being done


class Entry(ABC):
    """A candidate in one setting, with a row for each pass, forward first."""

    name: str
    compiles: str = ""  # what is compiled anew for every size, if anything: it takes long, and progress says so
    place: str  # the setting, for progress
    gate_place: str  # the small setting in which the results are checked
    key: tuple[object, ...]  # of the verdict on the results: what they hang on apart from the size
    rows: Mapping[str, Row]

    @abstractmethod
    def why_not(self) -> str | None:
        """Why the candidate cannot run here; None if it can."""

    def survey(self) -> None:  # noqa: B027 - most have nothing to find out
        """Fill in what is known of the candidate before anything runs."""

    @abstractmethod
    def check(self) -> str | None:
        """What is wrong with the candidate's results, or None; its own exceptions pass through."""

    @abstractmethod
    def call(self, pass_: str) -> Call:
        """A call of that pass that can be made again and again. MemoryError where it would not fit."""

    @property
    def alive(self) -> bool:
        return all(row.status == OK for row in self.rows.values())

    def runs(self, pass_: str) -> bool:
        return self.rows[pass_].status == OK

    def fail(self, pass_: str, status: str, reason: str) -> None:
        """Record a failure for this pass and those after it."""
        names = list(self.rows)
        for name in names[names.index(pass_) :]:
            self.rows[name].status, self.rows[name].reason = status, reason


def measure_together(entries: list[Entry], device: torch.device, budget: Budget, limit: float, say: Say) -> None:
    """Fill in the rows of the entries; on the CPU their calls take turns."""
    for pass_ in entries[0].rows if entries else ():
        calls: dict[str, Call] = {}
        estimates: dict[str, float] = {}
        for entry in entries:
            if entry.runs(pass_):
                say(f"{f'compiling {entry.compiles}' if entry.compiles else f'{pass_} {entry.name}'} for {entry.place}")
                try:
                    calls[entry.name], estimates[entry.name] = _begin(entry, pass_, device, limit)
                    if device.type == "cuda":
                        say(f"{pass_} {entry.name} for {entry.place}")
                        times = measure.cuda_times(calls.pop(entry.name), estimates[entry.name], budget)
                        entry.rows[pass_].times = times
                except Exception as error:
                    calls.pop(entry.name, None)
                    entry.fail(pass_, *classify(error))
        if calls:
            say(f"{pass_} in turns for {entries[0].place}")
            found = measure.cpu_times(calls, {name: estimates[name] for name in calls}, budget)
            for entry in entries:
                entry.rows[pass_].times = found.get(entry.name)
        calls.clear()
        free(device)


def measure_graphs(entry: Entry, device: torch.device, budget: Budget, slowest: float, say: Say) -> None:
    """Time the replay of CUDA graphs, where the candidate can be captured in one and takes less than ``slowest`` s."""
    for pass_, row in entry.rows.items():
        if row.times is None or row.times.median / 1e3 > slowest:
            continue
        try:
            row.graph = measure.graph_times(partial(_ready, entry, pass_, say), row.times.median / 1e3, budget)
        except Exception as error:  # the other timing stands
            row.reason = f"no CUDA graph: {first_line(error)}"
        free(device)


def _begin(entry: Entry, pass_: str, device: torch.device, limit: float) -> tuple[Call, float]:
    """A call that is warm, and the seconds it takes; its memory is noted on the way."""
    call = entry.call(pass_)
    seconds = measure.warm_up(call, device)
    if seconds > limit:
        raise TimeoutError(f"one call took {seconds:.1f} s, the limit is {limit:g} s")
    if peak := measure.peak_memory(call, device):
        entry.rows[pass_].memory, entry.rows[pass_].result = peak.beyond, peak.result
    return call, seconds


def _ready(entry: Entry, pass_: str, say: Say) -> Call:
    """A call that is compiled and can be captured."""
    if entry.compiles:
        say(f"compiling {entry.compiles} for {entry.place}")
    call = entry.call(pass_)
    call()
    say(f"graph of {entry.name} for {entry.place}")
    return call


def free(device: torch.device) -> None:
    """Collect what is no longer referred to and, on CUDA, give cached blocks back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
