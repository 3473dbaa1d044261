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
from repgraph.bench.measure import Call
from repgraph.bench.table import CANNOT, FAILED, NO_MEMORY, OK, TOO_SLOW, WRONG, Candidate, Leaves, Row, Table
from repgraph.errors import first_line, out_of_memory

MIN_CALLS = 5  # to time, even if they are slow
GRAPH_LIMIT = 0.2  # seconds; for slower calls, launch overhead is negligible and CUDA graphs take much memory


class Rejected(Exception):
    """A candidate that is not measured: status and reason."""


def run(
    table: Table,
    settings: Sequence[Any],
    candidates: Sequence[Candidate] | None = None,
    *,
    seconds: float = 1.0,
    limit: float = 30.0,
    progress: Callable[[int, str], object] = lambda done, text: None,
    finished: Callable[[list[Row]], object] = lambda rows: None,
) -> list[Row]:
    """Measure candidates of a table, by default all; rows of candidates that cannot be measured have the reason.

    ``settings`` are on one device, small sizes first: a candidate that is too slow (``limit``, seconds per call) or too
    large is not tried again. Each measurement takes ``seconds`` on average. ``progress`` is called with the number of
    finished settings and the current step, ``finished`` with the rows of each setting.
    """
    runner = _Runner(table, seconds, limit)
    rows: list[Row] = []
    with table.context(), _environment(settings[0].device):
        for done, setting in enumerate(settings):
            runner.show = partial(progress, done)
            found = runner.measure(setting, table.candidates if candidates is None else candidates)
            rows += found
            finished(found)
    return rows


class _Runner:
    """The state of a run: the mistakes that the gate found, and the passes of candidates that were given up."""

    def __init__(self, table: Table, seconds: float, limit: float) -> None:
        self.table, self.seconds, self.limit = table, seconds, limit
        self.show: Callable[[str], object]
        self.mistake = cache(table.check)
        self.given_up: dict[tuple[str, str, Any], tuple[str, str]] = {}  # status and reason

    def measure(self, setting: Any, candidates: Sequence[Candidate]) -> list[Row]:
        rows = [Row(candidate, setting, pass_) for candidate in candidates for pass_ in self.table.passes]
        for candidate in candidates:
            own = [row for row in rows if row.candidate is candidate]
            self.show(f"checking {candidate.name}, {setting.size}")
            with _recorded(own):
                if reason := candidate.why_not(setting):
                    raise Rejected(CANNOT, reason)
                mistake = self.mistake(candidate, self.table.small(setting))
                facts = self.table.facts(candidate, setting)
                for row in own:
                    row.facts = facts
                if mistake:
                    raise Rejected(WRONG, mistake)
        inputs = cache(partial(self.table.inputs, setting))
        for pass_ in self.table.passes:
            self._measure_pass(pass_, rows, inputs)
            measure.free(setting.device)
        return rows

    def _measure_pass(self, pass_: str, rows: Sequence[Row], inputs: Callable[[], Leaves]) -> None:
        waiting: list[tuple[Row, Call, float]] = []  # on the CPU, calls of all candidates take turns
        for row in rows:
            if row.pass_ != pass_ or row.status != OK:
                continue
            self.show(f"{pass_} of {row.candidate.name}, {row.setting.size}")
            key = row.candidate.name, pass_, self.table.small(row.setting)
            with _recorded([other for other in rows if other.candidate is row.candidate and other.times is None]):
                if key in self.given_up:
                    raise Rejected(*self.given_up[key])
                call, seconds = self._prepare(row, inputs)
                if row.setting.device.type == "cuda":
                    row.times = measure.cuda_times(call, self._calls(seconds) * seconds)
                    del call
                    self._measure_graph(row, inputs, seconds)
                else:
                    waiting.append((row, call, seconds))
            if row.status in (NO_MEMORY, TOO_SLOW):
                self.given_up.setdefault(key, (row.status, f"at {row.setting.size} already"))
            measure.free(row.setting.device)
        if waiting:
            self.show(f"{pass_} of all in turns, {rows[0].setting.size}")
            mean = sum(seconds for _, _, seconds in waiting) / len(waiting)
            times = measure.cpu_times([call for _, call, _ in waiting], self._calls(mean))
            for (row, _, _), found in zip(waiting, times, strict=True):
                row.times = found

    def _calls(self, estimate: float) -> int:
        """Return the number of calls to time if one takes ``estimate`` seconds."""
        return max(MIN_CALLS, round(self.seconds / max(estimate, 1e-6)))

    def _prepare(self, row: Row, inputs: Callable[[], Leaves]) -> tuple[Call, float]:
        """Return a call after warm-up and its time in seconds, and measure its memory."""
        call = self.table.call(row, inputs())
        seconds = measure.warm_up(call, row.setting.device)
        if seconds > self.limit:
            raise Rejected(TOO_SLOW, f"{seconds:.1f} s per call; limit {self.limit:g} s")
        row.memory = measure.peak_memory(call, row.setting.device, self.table.counts_result)
        return call, seconds

    def _measure_graph(self, row: Row, inputs: Callable[[], Leaves], seconds: float) -> None:
        """Time the replay of a CUDA graph; without one, the times between events are still valid."""
        measure.free(row.setting.device)
        if seconds <= GRAPH_LIMIT:
            try:
                make = partial(self.table.call, row, inputs())
                row.graph = measure.graph_times(make, self._calls(seconds) * seconds)
            except Exception as error:
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


@contextlib.contextmanager
def _environment(device: torch.device) -> Iterator[None]:
    """Select the GPU, or limit the CPU's memory; exclude existing objects from garbage collection, which takes time."""
    selected = torch.cuda.device(device) if device.type == "cuda" else measure.memory_limit()
    with selected, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
