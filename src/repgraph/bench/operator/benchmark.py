"""The operator benchmark: all candidates in all settings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import cast

import torch
from torch import Tensor

from repgraph.bench import measure, runner
from repgraph.bench.measure import Call
from repgraph.bench.operator import gate
from repgraph.bench.operator.competitors import Candidate, select
from repgraph.bench.operator.row import PASSES, Row
from repgraph.bench.operator.setting import Inputs, Setting, make_inputs
from repgraph.bench.passes import Entry
from repgraph.bench.row import ratio
from repgraph.bench.runner import Effort, Progress

Finished = Callable[[list[Row]], None]  # gets the rows of a setting when all of it has been measured


@dataclass(frozen=True, kw_only=True)
class Options(Effort):
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
    channels_last: bool = True
    seed: int = 0
    only: list[str] | None = None  # names of candidates

    def settings(self) -> list[Setting]:
        """One setting for each way to give the value and each size, small ones first."""
        common = Setting(
            1, 1, batch=self.batch, channels=self.channels, nodes=self.nodes, groups=self.groups, grid=self.grid,
            sigma=self.sigma, dtype=self.dtype, device=self.device, channels_last=self.channels_last, seed=self.seed,
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
    rows: list[Row] = []

    def enter(setting: Setting) -> list[Entry]:
        inputs = cache(partial(make_inputs, setting))  # made when first needed, one for all
        return [Contestant(candidate, setting, inputs) for candidate in chosen]

    def keep(entries: Sequence[Entry]) -> None:
        found = [cast(Row, row) for entry in entries for row in entry.rows.values()]
        compare(found)
        rows.extend(found)
        if finished:
            finished(found)

    runner.go_through(options.settings(), enter, options, keep, progress)
    return rows


class Contestant(Entry):
    """A candidate in one setting."""

    rows: dict[str, Row]

    def __init__(self, candidate: Candidate, setting: Setting, inputs: Callable[[], Inputs]) -> None:
        value = "shared kv" if setting.shared_kv else "separate kv"
        self.candidate, self.setting, self.inputs = candidate, setting, inputs
        self.name, self.compiles = candidate.name, candidate.compiles
        self.place = f"{setting.size}, {value}"
        self.gate_place = f"{setting.resized(*gate.SIZE).size}, {value}"
        self.key = (candidate.name, setting.shared_kv)
        threads = torch.get_num_threads()
        self.rows = {p: Row(candidate.name, candidate.family, p, setting, threads) for p in PASSES}

    def why_not(self) -> str | None:
        return self.candidate.why_not(self.setting)

    def check(self) -> str | None:
        return gate.check(self.candidate, self.setting)

    def call(self, pass_: str) -> Call:
        inputs = self.inputs()
        if self.setting.device.type == "cpu":
            measure.require_memory(self.candidate.bytes_needed(self.setting))
        function = self.candidate.build(self.setting)
        if pass_ == "forward":
            return _forward(function, inputs)
        function(*inputs.arguments)  # compiles; its leftovers are not what the graph keeps
        before = measure.held_memory(self.setting.device)
        call = _backward(function, inputs, self.candidate.family)
        after = measure.held_memory(self.setting.device)
        if before is not None and after is not None and self.rows[pass_].kept is None:
            # The result is of the cotangent's size.
            self.rows[pass_].kept = max(0, after - before - inputs.cotangent.nbytes)
        return call


def _forward(function: Callable[..., object], inputs: Inputs) -> Call:
    def forward() -> object:
        with torch.no_grad():
            return function(*inputs.arguments)

    return forward


def _backward(function: Callable[..., Tensor], inputs: Inputs, family: str) -> Call:
    """The gradients of a graph that is built here and kept."""
    y = function(*inputs.arguments)
    leaves = [t for t in inputs.leaves if t is not inputs.offsets or family == "representative"]
    return lambda: torch.autograd.grad(y, leaves, inputs.cotangent, retain_graph=True)


def compare(rows: list[Row]) -> None:
    """Ratios to composition and to the fastest SDPA kernel, of the medians in this setting."""
    for pass_ in PASSES:
        timed = [row for row in rows if row.pass_ == pass_ and row.times]
        composition = [row for row in timed if row.candidate == "composition"]
        sdpa = [row for row in timed if row.family == "non-local"]
        for row in timed:
            row.versus_composition, row.versus_composition_basis = ratio(row, composition)
            row.versus_sdpa, row.versus_sdpa_basis = ratio(row, sdpa)
