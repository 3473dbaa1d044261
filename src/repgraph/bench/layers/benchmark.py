"""The layer benchmark: all blocks in all settings."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import cast

import torch
from torch import Tensor

from repgraph.bench import measure, runner
from repgraph.bench.layers import forms, gate
from repgraph.bench.layers.blocks import Block, select
from repgraph.bench.layers.count import Uncounted
from repgraph.bench.layers.row import BOTH, MISCOUNTED, PASSES, REPGRAPH, SDPA, Row
from repgraph.bench.layers.setting import Setting, make_input
from repgraph.bench.measure import Call
from repgraph.bench.passes import Entry
from repgraph.bench.row import fastest, first_line, ratio
from repgraph.bench.runner import Effort, Progress
from repgraph.ops.backends import choose
from repgraph.ops.tf32 import tensor_float_32

Finished = Callable[[list[Row]], None]  # gets the rows of a setting when all of it has been measured
Paces = dict[tuple[object, ...], tuple[float, int, str]]  # of blocks and passes: seconds, multiply-adds, at which size


@dataclass(frozen=True, kw_only=True)
class Options(Effort):
    """What to measure; ``run`` goes through all dtypes and sizes."""

    sizes: Sequence[tuple[int, int]] = ((128, 256),)
    dtypes: Sequence[torch.dtype] = (torch.float32,)
    batch: int = 1
    channels: int = 2048
    mid_channels: int = 256
    nodes: int = 9
    sigma: float = 4.0
    channels_last: bool = True
    seed: int = 0
    only: list[str] | None = None  # names of blocks
    compiled: bool = False  # each block through torch.compile too
    least: int = 3
    slowest_graph: float = 0.05  # beyond, launching is nothing beside the call, and graphs need memory

    def settings(self) -> list[Setting]:
        """One setting for each dtype and size, small ones first."""
        common = Setting(
            1, 1, batch=self.batch, channels=self.channels, mid_channels=self.mid_channels, nodes=self.nodes,
            sigma=self.sigma, device=self.device, channels_last=self.channels_last, seed=self.seed,
        )  # fmt: skip
        sizes = sorted(self.sizes, key=lambda size: size[0] * size[1])
        return [replace(common, height=h, width=w, dtype=dtype) for dtype in self.dtypes for h, w in sizes]


def run(
    options: Options,
    blocks: Sequence[Block] | None = None,
    progress: Progress | None = None,
    finished: Finished | None = None,
) -> list[Row]:
    """Measure every block in every setting: two rows for each, also for those that cannot be measured.

    ``finished`` gets the rows of each setting as soon as it is done: what it keeps outlives an interruption.
    """
    chosen = select(options.only, options.compiled) if blocks is None else blocks
    rows: list[Row] = []
    paces: Paces = {}

    def enter(setting: Setting) -> list[Entry]:
        if any(block.compiled for block in chosen):
            torch._dynamo.reset()  # what was compiled for the last size is of no more use
        x = cache(partial(make_input, setting))  # made when first needed, one for all
        return [Contestant(block, setting, x, options.limit, paces) for block in chosen]

    def keep(entries: Sequence[Entry]) -> None:
        found = [cast(Row, row) for entry in entries for row in entry.rows.values()]
        for entry in entries:
            cast(Contestant, entry).note_pace()
        compare(found)
        rows.extend(found)
        if finished:
            finished(found)

    with tensor_float_32(), many_compiled(any(block.compiled for block in chosen)):
        runner.go_through(options.settings(), enter, options, keep, progress)
    return rows


class Contestant(Entry):
    """A block in one setting."""

    rows: dict[str, Row]

    def __init__(self, block: Block, setting: Setting, x: Callable[[], Tensor], limit: float, paces: Paces) -> None:
        self.block, self.setting, self.x, self.limit, self.paces = block, setting, x, limit, paces
        self.name = block.name
        self.compiles = block.name.removesuffix("-compiled") if block.compiled else ""
        self.place = f"{setting.size}, {setting.dtype_name}"
        self.gate_place = f"{setting.resized(*gate.SIZE).size}, {setting.dtype_name}"
        self.key = (block.name, setting.dtype)
        threads = torch.get_num_threads()
        self.rows = {p: Row(block.name, block.family, p, setting, threads, label=block.label) for p in PASSES}

    def why_not(self) -> str | None:
        return self.block.why_not(self.setting)

    def survey(self) -> None:
        parameters, count = forms.parameters(self.block, self.setting), self.block.formula(self.setting)
        represents = self.block.family == REPGRAPH
        for row in self.rows.values():
            row.parameters, row.count = parameters, count
            row.backend = choose("auto", self.setting.device, self.setting.dtype) if represents else ""
        self.confirm()

    def confirm(self) -> None:
        """Count the block's work in execution, at this size; a difference from the formula is a failure."""
        wanted = self.block.formula(self.setting)
        try:
            found = forms.counted(self.block, self.setting)
        except Uncounted as error:
            self.fail(PASSES[0], MISCOUNTED, str(error))
            return
        except Exception as error:  # not every kernel can run without data
            self.rows[PASSES[0]].reason = f"counted by formula alone: {first_line(error)}"
            return
        if found.products != wanted.products:
            reason = f"{wanted.products} multiply-adds by formula, {found.products} in execution"
            self.fail(PASSES[0], MISCOUNTED, reason)
        for row in self.rows.values():
            row.counted = found.products == wanted.products

    def check(self) -> str | None:
        return gate.check(self.block, self.setting)

    def call(self, pass_: str) -> Call:
        seconds, at = self.expected(pass_)
        if seconds > self.limit:
            raise TimeoutError(
                f"one call would take about {seconds:.1f} s by its time at {at}, the limit is {self.limit:g} s"
            )
        x = self.x()
        needed = self.block.bytes_needed(self.setting, backward=pass_ == BOTH)
        measure.require_memory(needed, device=self.setting.device)
        return forms.call(forms.ready(self.block, self.setting, pass_), pass_, x)

    def expected(self, pass_: str) -> tuple[float, str]:
        """Seconds that a call should take by its pace at the size before: no time is lost on what is over the limit."""
        seconds, products, at = self.paces.get((*self.key, pass_), (0.0, 1, ""))
        return seconds * self.block.formula(self.setting).products / products, at

    def note_pace(self) -> None:
        for pass_, row in self.rows.items():
            if row.times and row.count:
                self.paces[*self.key, pass_] = row.times.median / 1e3, row.count.products, self.setting.size


def compare(rows: list[Row]) -> None:
    """Ratios to the fastest SDPA non-local block and to the plain one, of this setting."""
    for pass_ in PASSES:
        timed = [row for row in rows if row.pass_ == pass_ and row.times]
        sdpa = [row for row in timed if row.family == SDPA]
        plain = [row for row in timed if row.candidate == "nl-plain"]
        best = fastest(sdpa)
        for row in timed:
            row.versus_sdpa, row.versus_sdpa_basis = ratio(row, sdpa)
            row.versus_plain, row.versus_plain_basis = ratio(row, plain)
            row.memory_versus_sdpa = _less(row, best)
            row.memory_versus_plain = _less(row, plain[0] if plain else None)


def _less(row: Row, yardstick: Row | None) -> float | None:
    """How many times less extra memory a row takes."""
    if yardstick is None or not row.extra or yardstick.extra is None:
        return None
    return yardstick.extra / row.extra


@contextlib.contextmanager
def many_compiled(wanted: bool) -> Iterator[None]:
    """As many compiled layers of one class as it takes: from the ninth on they would quietly run uncompiled."""
    if not wanted:
        yield
        return
    import torch._dynamo

    with torch._dynamo.config.patch(recompile_limit=2**16, accumulated_recompile_limit=2**16):
        yield
