"""How a benchmark goes through its settings: who may take part, who is measured, what is given up."""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch._functorch.config

from repgraph.bench import passes
from repgraph.bench.measure import CPU, Budget
from repgraph.bench.passes import Entry, Say
from repgraph.bench.row import CANNOT, NO_MEMORY, TOO_SLOW, WRONG, classify, first_line
from repgraph.bench.setting import MapSetting
from repgraph.errors import UsageError

S = TypeVar("S", bound=MapSetting)
Progress = Callable[[str, int, int], None]  # what is being done, settings done, settings in all
Verdict = tuple[str, str]  # a status and its reason


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Where to measure, and how long: what the options of every benchmark begin with."""

    device: torch.device = CPU
    seconds: float = 1.0  # for each measurement, on average
    repeat: int | None = None  # calls to time, instead of seconds
    least: int = 5  # calls to time, however long they take
    limit: float = 30.0  # seconds for one call
    threads: int | None = None
    graph: bool = True  # on CUDA, also time the replay of graphs
    slowest_graph: float = float("inf")  # seconds; of what takes longer no graph is made

    @property
    def budget(self) -> Budget:
        return Budget(self.seconds, self.repeat, self.least)


def go_through(
    settings: Sequence[S],
    enter: Callable[[S], Sequence[Entry]],
    effort: Effort,
    finished: Callable[[Sequence[Entry]], None],
    progress: Progress | None = None,
) -> None:
    """Measure every entry of every setting; settings come small ones first.

    ``finished`` gets the entries of each setting as soon as it is done, their rows filled in: what it keeps outlives
    an interruption.
    """
    judged: dict[tuple[object, ...], Verdict | None] = {}  # by key; None for those that passed the gate
    given_up: dict[tuple[object, ...], Verdict] = {}  # by key and pass
    with _surroundings(effort):
        for index, setting in enumerate(settings):

            def say(text: str, index: int = index) -> None:
                if progress:
                    progress(text, index, len(settings))

            entries = enter(setting)
            for entry in entries:
                _admit(entry, judged, given_up, say)
            running = [entry for entry in entries if any(map(entry.runs, entry.rows))]
            # CUDA calls are timed one by one, so that no candidate's memory stands in the way of another.
            for group in [running] if effort.device.type == "cpu" else [[entry] for entry in running]:
                passes.measure_together(group, effort.device, effort.budget, effort.limit, say)
            for entry in running:
                if effort.graph and effort.device.type == "cuda":
                    passes.measure_graphs(entry, effort.device, effort.budget, effort.slowest_graph, say)
                for pass_, row in entry.rows.items():
                    if row.status in (NO_MEMORY, TOO_SLOW):  # larger sizes need not be tried
                        given_up.setdefault((*entry.key, pass_), (row.status, f"at {setting.size} already"))
            finished(entries)
            del entries, running
            passes.free(effort.device)


def _admit(
    entry: Entry,
    judged: dict[tuple[object, ...], Verdict | None],
    given_up: dict[tuple[object, ...], Verdict],
    say: Say,
) -> None:
    """Mark an entry that cannot run, computes something wrong, or was given up at a smaller size."""
    first = next(iter(entry.rows))
    if reason := entry.why_not():
        entry.fail(first, CANNOT, reason)
    else:
        entry.survey()
    if not entry.alive:
        return
    if entry.key not in judged:
        doing = f"compiling and checking {entry.compiles}" if entry.compiles else f"checking {entry.name}"
        say(f"{doing} for {entry.gate_place}")
        judged[entry.key] = _judge(entry)
    if verdict := judged[entry.key]:
        entry.fail(first, *verdict)
        return
    for pass_ in entry.rows:
        if verdict := given_up.get((*entry.key, pass_)):
            entry.fail(pass_, *verdict)
            return


def _judge(entry: Entry) -> Verdict | None:
    """What is wrong with a candidate's results, if anything."""
    try:
        reason = entry.check()
    except Exception as error:
        return classify(error)
    return (WRONG, reason) if reason else None


@contextlib.contextmanager
def _surroundings(effort: Effort) -> Iterator[None]:
    """Device and thread count of a run, no warnings, and graphs that can be differentiated again."""
    before = torch.get_num_threads()
    cuda = effort.device.type == "cuda"
    on_device = torch.cuda.device(effort.device) if cuda else contextlib.nullcontext()
    # torch.compile lets the backward overwrite what the forward kept, unless told not to.
    with on_device, warnings.catch_warnings(), torch._functorch.config.patch(donated_buffer=False):
        warnings.simplefilter("ignore")
        gc.collect()
        gc.freeze()  # else every collection between measurements would go through all of PyTorch's objects
        try:
            if effort.threads is not None:
                _set_threads(effort.threads)
            yield
        finally:
            gc.unfreeze()
            torch.set_num_threads(before)


def _set_threads(count: int) -> None:
    try:
        torch.set_num_threads(count)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UsageError(f"--threads {count} cannot be had ({first_line(error)}); give fewer") from error
