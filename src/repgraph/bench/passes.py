"""Forward and backward of some candidates in one setting."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from repgraph.bench import measure
from repgraph.bench.competitors import Candidate
from repgraph.bench.measure import Budget, Call
from repgraph.bench.row import OK, PASSES, Row, classify, first_line
from repgraph.bench.setting import Inputs, Setting, make_inputs

Say = Callable[[str, Setting], None]  # what is being done, and where


@dataclass
class Entry:
    """A candidate in one setting, with a row for each pass."""

    candidate: Candidate
    rows: dict[str, Row]

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def alive(self) -> bool:
        return all(row.status == OK for row in self.rows.values())

    def fail(self, pass_: str, status: str, reason: str) -> None:
        """Record a failure for this pass and those after it."""
        for name in PASSES[PASSES.index(pass_) :]:
            self.rows[name].status, self.rows[name].reason = status, reason


def measure_together(entries: list[Entry], setting: Setting, budget: Budget, limit: float, say: Say) -> None:
    """Fill in the rows of the entries; on the CPU their calls take turns."""
    if not entries:
        return
    try:
        inputs = make_inputs(setting)
    except Exception as error:
        for entry in entries:
            entry.fail(PASSES[0], *classify(error))
        free(setting.device)
        return
    for pass_ in PASSES:
        calls: dict[str, Call] = {}
        estimates: dict[str, float] = {}
        for entry in entries:
            if entry.alive:
                compiles = entry.candidate.compiles
                say(f"compiling {compiles}" if compiles else f"{pass_} {entry.name}", setting)
                try:
                    calls[entry.name], estimates[entry.name] = _begin(entry, setting, inputs, pass_, limit)
                    if setting.device.type == "cuda":
                        say(f"{pass_} {entry.name}", setting)
                        times = measure.cuda_times(calls.pop(entry.name), estimates[entry.name], budget)
                        entry.rows[pass_].times = times
                except Exception as error:
                    calls.pop(entry.name, None)
                    entry.fail(pass_, *classify(error))
        if calls:
            say(f"{pass_} in turns", setting)
            found = measure.cpu_times(calls, {name: estimates[name] for name in calls}, budget)
            for entry in entries:
                entry.rows[pass_].times = found.get(entry.name)
        calls.clear()
        free(setting.device)


def measure_graphs(entry: Entry, setting: Setting, budget: Budget, say: Say) -> None:
    """Time the replay of CUDA graphs, where the candidate can be captured in one."""
    for pass_, row in entry.rows.items():
        if row.times is None:
            continue
        try:
            inputs = make_inputs(setting)
            make = partial(_call, entry.candidate, setting, inputs, pass_, say)
            row.graph = measure.graph_times(make, row.times.median / 1e3, budget)
        except Exception as error:  # the other timing stands
            row.reason = f"no CUDA graph: {first_line(error)}"
        free(setting.device)


def _begin(entry: Entry, setting: Setting, inputs: Inputs, pass_: str, limit: float) -> tuple[Call, float]:
    """A call that is warm, and the seconds it takes; its memory is noted on the way."""
    _check_memory(entry.candidate, setting)
    row = entry.rows[pass_]
    function = entry.candidate.build(setting)
    if pass_ == "backward":
        function(*inputs.arguments)  # compiles; its leftovers are not what the graph keeps
        before = measure.held_memory(setting.device)
        call = _backward(function, inputs, entry.candidate.family)
        after = measure.held_memory(setting.device)
        if before is not None and after is not None:
            row.kept = max(0, after - before - inputs.cotangent.nbytes)  # the result is of the cotangent's size
    else:
        call = _forward(function, inputs)
    seconds = measure.warm_up(call, setting.device)
    if seconds > limit:
        raise TimeoutError(f"one call took {seconds:.1f} s, the limit is {limit:g} s")
    row.memory = measure.peak_memory(call, setting.device)
    return call, seconds


def _call(candidate: Candidate, setting: Setting, inputs: Inputs, pass_: str, say: Say) -> Call:
    """A call that is compiled and can be captured."""
    if candidate.compiles:
        say(f"compiling {candidate.compiles}", setting)
    function = candidate.build(setting)
    call = _forward(function, inputs) if pass_ == "forward" else _backward(function, inputs, candidate.family)
    call()
    say(f"graph of {candidate.name}", setting)
    return call


def _forward(function: Callable[..., object], inputs: Inputs) -> Call:
    def forward() -> object:
        with torch.no_grad():
            return function(*inputs.arguments)

    return forward


def _backward(function: Callable[..., torch.Tensor], inputs: Inputs, family: str) -> Call:
    """The gradients of a graph that is built here and kept."""
    y = function(*inputs.arguments)
    leaves = [t for t in inputs.leaves if t is not inputs.offsets or family == "representative"]
    return lambda: torch.autograd.grad(y, leaves, inputs.cotangent, retain_graph=True)


def _check_memory(candidate: Candidate, setting: Setting) -> None:
    if setting.device.type == "cpu":
        measure.require_memory(candidate.bytes_needed(setting))


def free(device: torch.device) -> None:
    """Collect what is no longer referred to and, on CUDA, give cached blocks back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
