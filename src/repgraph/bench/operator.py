"""Speed and memory of representative attention against what could be used instead.

>>> from repgraph.bench.operator import Options, run
>>> rows = run(Options(sizes=((6, 7),), channels=8, only=["composition"], repeat=2, shared_kv=(True,)))
>>> [(row.candidate, row.pass_, row.status) for row in rows]
[('composition', 'forward', 'ok'), ('composition', 'backward', 'ok')]
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch._functorch.config

from repgraph.bench import gate, passes
from repgraph.bench.competitors import Candidate, select
from repgraph.bench.measure import Budget
from repgraph.bench.passes import Entry, Say
from repgraph.bench.row import (
    CANNOT,
    EVENTS,
    GRAPH,
    NO_MEMORY,
    PASSES,
    TOO_SLOW,
    WALL,
    WRONG,
    Row,
    classify,
    first_line,
)
from repgraph.bench.setting import CPU, Setting
from repgraph.errors import UsageError

Progress = Callable[[str, int, int], None]  # what is being done, settings done, settings in all
Finished = Callable[[list[Row]], None]  # gets the rows of a setting when all of it has been measured
Verdict = tuple[str, str]  # a status and its reason


@dataclass(frozen=True)
class Options:
    """What to measure; ``run`` goes through all sizes and both ways to give the value."""

    sizes: Sequence[tuple[int, int]] = ((65, 65),)
    shared_kv: Sequence[bool] = (True, False)
    batch: int = 1
    channels: int = 256
    nodes: int = 9
    groups: int = 1
    grid: int = 1
    sigma: float = 4.0
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    channels_last: bool = True
    seed: int = 0
    seconds: float = 1.0  # for each measurement, on average
    repeat: int | None = None  # calls to time, instead of seconds
    limit: float = 30.0  # seconds for one call
    threads: int | None = None
    graph: bool = True  # on CUDA, also time the replay of graphs
    only: list[str] | None = None  # names of candidates

    def settings(self) -> list[Setting]:
        """One setting for each way to give the value and each size, small ones first."""
        common = Setting(
            1, 1, self.batch, self.channels, self.nodes, self.groups, self.grid, self.sigma, self.dtype,
            self.device, self.channels_last, False, self.seed,
        )  # fmt: skip
        sizes = sorted(self.sizes, key=lambda size: size[0] * size[1])
        return [replace(common, height=h, width=w, shared_kv=s) for s in self.shared_kv for h, w in sizes]


def run(
    options: Options,
    candidates: Sequence[Candidate] | None = None,
    progress: Progress | None = None,
    finished: Finished | None = None,
) -> list[Row]:
    """Measure every candidate in every setting: two rows for each, also for those that cannot be measured.

    ``finished`` gets the rows of each setting as soon as it is done: what it keeps outlives an interruption.
    """
    chosen = select(options.only) if candidates is None else candidates
    settings = options.settings()
    rows: list[Row] = []
    # Verdicts on candidates, for a shared value and for one of its own: None for those that passed the gate.
    verdicts: dict[tuple[str, bool], Verdict | None] = {}
    with _surroundings(options):
        for index, setting in enumerate(settings):

            def say(text: str, where: Setting, index: int = index) -> None:
                if progress:
                    value = "shared kv" if where.shared_kv else "separate kv"
                    progress(f"{text} for {where.size}, {value}", index, len(settings))

            entries = _admit(chosen, setting, verdicts, say)
            alive = [entry for entry in entries if entry.alive]
            budget = Budget(options.seconds, options.repeat)
            # CUDA calls are timed one by one, so that no candidate's memory stands in the way of another.
            for batch in [alive] if setting.device.type == "cpu" else [[entry] for entry in alive]:
                passes.measure_together(batch, setting, budget, options.limit, say)
            for entry in alive:
                if options.graph and setting.device.type == "cuda":
                    passes.measure_graphs(entry, setting, budget, say)
                status = entry.rows["forward"].status
                if status in (NO_MEMORY, TOO_SLOW):  # larger sizes need not be tried
                    verdicts[entry.name, setting.shared_kv] = status, f"at {setting.size} already"
            found = [row for entry in entries for row in entry.rows.values()]
            _compare(found)
            rows += found
            if finished:
                finished(found)
    return rows


def _admit(
    chosen: Sequence[Candidate],
    setting: Setting,
    verdicts: dict[tuple[str, bool], Verdict | None],
    say: Say,
) -> list[Entry]:
    """Entries for all candidates; those that cannot run or were stopped before are marked so."""
    threads = torch.get_num_threads()
    entries = [Entry(c, {p: Row(c.name, c.family, p, setting, threads) for p in PASSES}) for c in chosen]
    for entry in entries:
        key = (entry.name, setting.shared_kv)
        if reason := entry.candidate.why_not(setting):
            entry.fail("forward", CANNOT, reason)
            continue
        if key not in verdicts:
            compiles = entry.candidate.compiles
            doing = f"compiling and checking {compiles}" if compiles else f"checking {entry.name}"
            say(doing, setting.resized(*gate.SIZE))
            verdicts[key] = _judge(entry.candidate, setting)
        if verdict := verdicts[key]:
            entry.fail("forward", *verdict)
    return entries


def _judge(candidate: Candidate, setting: Setting) -> Verdict | None:
    """What is wrong with a candidate's results, if anything."""
    try:
        reason = gate.check(candidate, setting)
    except Exception as error:
        return classify(error)
    return (WRONG, reason) if reason else None


def _compare(rows: list[Row]) -> None:
    """Ratios to composition and to the fastest SDPA kernel, of the medians in this setting."""
    for pass_ in PASSES:
        timed = [row for row in rows if row.pass_ == pass_ and row.times]
        composition = [row for row in timed if row.candidate == "composition"]
        sdpa = [row for row in timed if row.family == "non-local"]
        for row in timed:
            row.versus_composition, row.versus_composition_basis = _ratio(row, composition)
            row.versus_sdpa, row.versus_sdpa_basis = _ratio(row, sdpa)


def _ratio(row: Row, yardsticks: list[Row]) -> tuple[float | None, str]:
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


@contextlib.contextmanager
def _surroundings(options: Options) -> Iterator[None]:
    """Device and thread count of a run, no warnings, and graphs that can be differentiated again."""
    before = torch.get_num_threads()
    cuda = options.device.type == "cuda"
    on_device = torch.cuda.device(options.device) if cuda else contextlib.nullcontext()
    # torch.compile lets the backward overwrite what the forward kept, unless told not to.
    with on_device, warnings.catch_warnings(), torch._functorch.config.patch(donated_buffer=False):
        warnings.simplefilter("ignore")
        try:
            if options.threads is not None:
                _set_threads(options.threads)
            yield
        finally:
            torch.set_num_threads(before)


def _set_threads(count: int) -> None:
    try:
        torch.set_num_threads(count)
    except (RuntimeError, ValueError, TypeError) as error:
        raise UsageError(f"--threads {count} cannot be had ({first_line(error)}); give fewer") from error
