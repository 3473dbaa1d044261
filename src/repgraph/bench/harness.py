"""The benchmark harness: it checks the results of all candidates, and measures time and memory of the correct ones."""

import contextlib
import gc
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch

from repgraph.bench import measure
from repgraph.bench.measure import Call, Effort
from repgraph.bench.table import CANNOT, FAILED, NO_MEMORY, OK, TOO_SLOW, WRONG, Candidate, Leaves, Row, Table
from repgraph.errors import out_of_memory

GRAPH_LIMIT = 0.05  # seconds; for slower calls, launch overhead is negligible and CUDA graphs take much memory
Key = tuple[str, str, Any]  # name of a candidate, pass, small setting


class Rejected(Exception):
    """A candidate that is not measured: status and reason."""


def run(
    table: Table,
    settings: Sequence[Any],
    effort: Effort | None = None,
    candidates: Sequence[Candidate] | None = None,
    progress: Callable[[int, str], object] = lambda done, text: None,
    finished: Callable[[list[Row]], object] = lambda rows: None,
) -> list[Row]:
    """Measure candidates of a table, by default all; rows of candidates that cannot be measured have the reason.

    ``settings`` are on one device, small sizes first: a candidate that is too slow or too large is not tried again.
    ``progress`` is called with the number of finished settings and a description of the current step, ``finished`` with
    the rows of each setting.
    """
    runner = _Runner(table, effort or Effort())
    rows: list[Row] = []
    with table.context(), _environment(settings[0].device):
        for done, setting in enumerate(settings):
            runner.show = partial(progress, done)
            with measure.memory_limit() if setting.device.type == "cpu" else contextlib.nullcontext():
                found = runner.measure(setting, table.candidates if candidates is None else candidates)
            rows += found
            finished(found)
    return rows


class _Runner:
    """The state of a run: candidates that were given up, and times, by candidate, pass and small setting."""

    def __init__(self, table: Table, effort: Effort) -> None:
        self.table, self.effort = table, effort
        self.show: Callable[[str], object]
        self.mistake = cache(table.check)
        self.given_up: dict[Key, tuple[str, str]] = {}  # status and reason
        self.paces: dict[Key, float] = {}  # seconds per unit of work

    def measure(self, setting: Any, candidates: Sequence[Candidate]) -> list[Row]:
        rows = [Row(candidate, setting, pass_) for candidate in candidates for pass_ in self.table.passes]
        inputs = cache(partial(self.table.inputs, setting))
        for candidate in candidates:
            own = [row for row in rows if row.candidate is candidate]
            with _recorded(own):
                self._check(candidate, own)
        for pass_ in self.table.passes:
            self._measure_pass(pass_, rows, inputs)
            measure.free(setting.device)
        return rows

    def _check(self, candidate: Candidate, rows: Sequence[Row]) -> None:
        """Raise an error if a candidate cannot be measured; set the facts about it."""
        setting = rows[0].setting
        self.show(f"checking {candidate.name}, {setting.size}")
        if reason := candidate.why_not(setting):
            raise Rejected(CANNOT, reason)
        mistake = self.mistake(candidate, self.table.small(setting))
        facts = self.table.facts(candidate, setting)
        for row in rows:
            row.facts = dict(facts)
        if mistake:
            raise Rejected(WRONG, mistake)

    def _measure_pass(self, pass_: str, rows: Sequence[Row], inputs: Callable[[], Leaves]) -> None:
        waiting: list[tuple[Row, Call, float]] = []  # on the CPU, calls of all candidates take turns
        for row in rows:
            if row.pass_ != pass_ or row.status != OK:
                continue
            key = row.candidate.name, pass_, self.table.small(row.setting)
            with _recorded([other for other in rows if other.candidate is row.candidate and other.times is None]):
                if key in self.given_up:
                    raise Rejected(*self.given_up[key])
                if row.setting.device.type == "cuda":
                    self._measure_on_cuda(row, inputs, key)
                else:
                    waiting.append((row, *self._prepare(row, inputs, key)))
            if row.status in (NO_MEMORY, TOO_SLOW):
                self.given_up.setdefault(key, (row.status, f"at {row.setting.size} already"))
            measure.free(row.setting.device)
        if waiting:
            self.show(f"{pass_} of all in turns, {rows[0].setting.size}")
            mean = sum(seconds for _, _, seconds in waiting) / len(waiting)
            times = measure.cpu_times([call for _, call, _ in waiting], self.effort.calls(mean))
            for (row, _, _), found in zip(waiting, times, strict=True):
                row.times = found

    def _prepare(self, row: Row, inputs: Callable[[], Leaves], key: Key) -> tuple[Call, float]:
        """Return a call after warm-up and its time in seconds, and measure its memory."""
        limit = self.effort.limit
        self.show(f"{row.pass_} of {row.candidate.name}, {row.setting.size}")
        work = self.table.work(row)
        if (predicted := self.paces.get(key, 0.0) * work) > limit:
            reason = f"about {predicted:.1f} s per call, by the time at a smaller size; limit {limit:g} s"
            raise Rejected(TOO_SLOW, reason)
        call = self.table.call(row, inputs())
        seconds = measure.warm_up(call, row.setting.device)
        if seconds > limit:
            raise Rejected(TOO_SLOW, f"{seconds:.1f} s per call; limit {limit:g} s")
        self.paces[key] = seconds / work
        row.memory, row.result = measure.peak_memory(call, row.setting.device)
        return call, seconds

    def _measure_on_cuda(self, row: Row, inputs: Callable[[], Leaves], key: Key) -> None:
        call, seconds = self._prepare(row, inputs, key)
        duration = self.effort.calls(seconds) * seconds
        row.times = measure.cuda_times(call, duration)
        del call
        measure.free(row.setting.device)
        if seconds <= GRAPH_LIMIT:
            try:
                row.graph = measure.graph_times(lambda: self.table.call(row, inputs()), duration)
            except Exception as error:  # the times between events are still valid
                row.reason = f"no CUDA graph: {first_line(error)}"


@contextlib.contextmanager
def _recorded(rows: Sequence[Row]) -> Iterator[None]:
    """Record an exception as the status and reason of rows."""
    try:
        yield
    except Exception as error:
        status, reason = FAILED, first_line(error)
        if isinstance(error, Rejected):
            status, reason = error.args
        elif out_of_memory(error):
            status, reason = NO_MEMORY, re.split(r"(?<=\.) GPU \d", reason)[0]  # without the allocator's statistics
        for row in rows:
            row.status, row.reason = status, reason


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")


@contextlib.contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    """Select the device, ignore warnings, and exclude existing objects from garbage collection, which takes time."""
    with torch.cuda.device(device if device.type == "cuda" else -1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
