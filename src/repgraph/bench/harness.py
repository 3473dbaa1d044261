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
from repgraph.bench.table import CANNOT, FAILED, NO_MEMORY, TOO_SLOW, WRONG, Candidate, Row, Table
from repgraph.errors import out_of_memory

GRAPH_LIMIT = 0.05  # seconds; for slower calls, launch overhead is negligible and CUDA graphs take much memory
Verdict = tuple[str, str]  # status and reason
Key = tuple[str, str, Any]  # name of a candidate, pass, small setting


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
    """The state of a run: verdicts on candidates, and times at smaller sizes."""

    def __init__(self, table: Table, effort: Effort) -> None:
        self.table, self.effort = table, effort
        self.show: Callable[[str], object]
        self.mistake = cache(table.check)
        self.given_up: dict[Key, Verdict] = {}
        self.paces: dict[Key, float] = {}  # seconds per unit of work

    def measure(self, setting: Any, candidates: Sequence[Candidate]) -> list[Row]:
        rows: list[Row] = []
        failed: dict[str, Verdict] = {}
        for candidate in candidates:
            facts, verdict = self._check(candidate, setting)
            if verdict:
                failed[candidate.name] = verdict
            rows += [Row(candidate, setting, pass_, facts=dict(facts)) for pass_ in self.table.passes]
        inputs = cache(partial(self.table.inputs, setting))
        for pass_ in self.table.passes:
            self._measure_pass([row for row in rows if row.pass_ == pass_], inputs, failed)
            measure.free(setting.device)
        return rows

    def _check(self, candidate: Candidate, setting: Any) -> tuple[dict[str, Any], Verdict | None]:
        """Return the facts about a candidate, and the verdict if it cannot be measured, or None."""
        self.show(f"checking {candidate.name}, {setting.size}")
        try:
            if reason := candidate.why_not(setting):
                return {}, (CANNOT, reason)
            mistake = self.mistake(candidate, self.table.small(setting))
            return self.table.facts(candidate, setting), (WRONG, mistake) if mistake else None
        except Exception as error:
            return {}, classify(error)

    def _measure_pass(self, rows: Sequence[Row], inputs: Callable[[], Any], failed: dict[str, Verdict]) -> None:
        """Measure one pass of all candidates; ``failed`` has the verdicts on candidates that failed before."""
        waiting: list[tuple[Row, Call, float]] = []  # on the CPU
        for row in rows:
            name, setting = row.candidate.name, row.setting
            key = name, row.pass_, self.table.small(setting)
            verdict = failed.get(name) or self.given_up.get(key)
            if verdict is None:
                try:
                    if setting.device.type == "cuda":
                        self._measure_on_cuda(row, inputs, key)
                    else:
                        waiting.append((row, *self._prepare(row, inputs, key)))
                except Exception as error:
                    verdict = classify(error)
                    if verdict[0] in (NO_MEMORY, TOO_SLOW):
                        self.given_up[key] = verdict[0], f"at {setting.size} already"
            if verdict is not None:
                row.status, row.reason = failed[name] = verdict
            measure.free(setting.device)
        if waiting:
            self.show(f"{rows[0].pass_} of all in turns, {rows[0].setting.size}")
            mean = sum(seconds for _, _, seconds in waiting) / len(waiting)
            times = measure.cpu_times([call for _, call, _ in waiting], self.effort.calls(mean))
            for (row, _, _), found in zip(waiting, times, strict=True):
                row.times = found

    def _prepare(self, row: Row, inputs: Callable[[], Any], key: Key) -> tuple[Call, float]:
        """Return a call after warm-up and its time in seconds, and measure its memory."""
        limit = self.effort.limit
        self.show(f"{row.pass_} of {row.candidate.name}, {row.setting.size}")
        work = self.table.work(row)
        if (predicted := self.paces.get(key, 0.0) * work) > limit:
            raise TimeoutError(f"about {predicted:.1f} s per call, by the time at a smaller size; limit {limit:g} s")
        call = self.table.call(row, inputs())
        seconds = measure.warm_up(call, row.setting.device)
        if seconds > limit:
            raise TimeoutError(f"{seconds:.1f} s per call; limit {limit:g} s")
        self.paces[key] = seconds / work
        row.memory, row.result = measure.peak_memory(call, row.setting.device)
        return call, seconds

    def _measure_on_cuda(self, row: Row, inputs: Callable[[], Any], key: Key) -> None:
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


def classify(error: Exception) -> Verdict:
    """Return status and reason of an exception."""
    if isinstance(error, TimeoutError):
        return TOO_SLOW, str(error)
    if out_of_memory(error):
        return NO_MEMORY, re.split(r"(?<=\.) GPU \d", first_line(error))[0]  # without the allocator's statistics
    return FAILED, first_line(error)


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


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
