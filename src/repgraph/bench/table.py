"""A benchmark as data: settings, candidates, rows of results, and the base class of tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from repgraph.bench import gate
from repgraph.bench.measure import CPU, Call, Times, allocated_memory
from repgraph.errors import UsageError

FORWARD, BACKWARD, BOTH = "forward", "backward", "forward+backward"  # passes

OK, WRONG, CANNOT, FAILED = "ok", "wrong", "cannot run", "failed"
NO_MEMORY, TOO_SLOW = "out of memory", "over the time limit"
Function = Callable[..., Tensor]
Leaves = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sizes, dtype and device of a measurement; tables add their own fields."""

    height: int
    width: int
    batch: int = 1
    channels: int = 256
    nodes: int = 9
    sigma: float = 4.0  # standard deviation of the offsets, in pixels
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    memory_format: torch.memory_format = torch.channels_last
    seed: int = 0

    @property
    def positions(self) -> int:
        return self.height * self.width

    @property
    def size(self) -> str:
        return f"{self.height}x{self.width}"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def tf32(self) -> bool:
        """Whether float32 products may use TF32."""
        return self.device.type == "cuda" and self.dtype == torch.float32

    @property
    def case(self) -> str:
        """Settings that distinguish the figures of a table."""
        return self.dtype_name

    @property
    def title(self) -> str:
        return f"{self.height} x {self.width} (N = {self.positions}), {self.case}"

    def columns(self) -> dict[str, Any]:
        """Return the columns of the CSV file that describe the setting."""
        columns = vars(self) | {"positions": self.positions, "dtype": self.dtype_name}
        del columns["device"]  # it has its own columns
        return columns | {"memory_format": str(self.memory_format).removeprefix("torch.").removesuffix("_format")}


@dataclass(frozen=True)
class Candidate:
    name: str  # in tables and for --only
    build: Callable[..., Any]  # returns the function or module to call in a setting
    family: str = ""
    why_not: Callable[[Any], str | None] = lambda setting: None  # why it cannot run in a setting, or None


@dataclass
class Row:
    """A pass of a candidate in a setting: time and memory, or the reason why there is none."""

    candidate: Any
    setting: Any
    pass_: str
    status: str = OK
    reason: str = ""
    times: Times | None = None  # between events on CUDA, wall-clock on the CPU
    graph: Times | None = None  # of the replay of a CUDA graph
    memory: int | None = None  # peak beyond what was allocated before and beyond the result, in bytes
    result: int | None = None  # size of the result, in bytes
    facts: dict[str, Any] = field(default_factory=dict)  # the table's own columns


class Baseline(NamedTuple):
    """The fastest of these candidates, which rows are compared with."""

    column: str  # in CSV files
    head: str  # in the terminal
    names: Sequence[str]


class Table(ABC):
    """A benchmark: its candidates, how to call and to check them, and its columns."""

    name: ClassVar[str]  # of the command and of the files
    noun: ClassVar[str] = "candidate"  # head of the first column
    passes: ClassVar[tuple[str, ...]]
    checked: ClassVar[tuple[str, ...]]  # passes that the gate compares; all but FORWARD with gradients
    candidates: ClassVar[Sequence[Any]]
    baselines: ClassVar[Sequence[Baseline]] = ()
    memory_note: ClassVar[str] = "not counting the result"
    small_size: ClassVar[tuple[int, int]] = (19, 22)  # for the gate: no multiple of tiles, several cells of usual grids

    @abstractmethod
    def inputs(self, setting: Any) -> Leaves:
        """Return the inputs that all candidates share; gradients of those that require them are computed."""

    @abstractmethod
    def versions(self, candidate: Any, setting: Any, pass_: str) -> Sequence[Function]:
        """Return a candidate and its plain PyTorch version, in the setting's dtype and for float64, for the gate."""

    def build(self, row: Row) -> Function:
        """Return the function or module to measure."""
        return row.candidate.build(row.setting)

    def bind(self, function: Function, inputs: Leaves, pass_: str) -> tuple[Function, Leaves]:
        """Return a function without arguments for a pass, and the tensors whose gradients are computed."""
        parameters = dict(function.named_parameters()) if isinstance(function, nn.Module) else {}
        leaves = {name: t for name, t in (inputs | parameters).items() if t.requires_grad}
        return partial(function, *inputs.values()), leaves

    def call(self, row: Row, inputs: Leaves) -> Call:
        """Return the call to measure. For BACKWARD, ``kept_bytes`` is what the forward pass saves."""
        function, leaves = self.bind(self.build(row), inputs, row.pass_)
        if row.pass_ == FORWARD:
            return torch.no_grad()(function)
        cotangent = make_cotangent(function(), row.setting)  # the first call may compile
        gradients = partial(torch.autograd.grad, inputs=list(leaves.values()), allow_unused=True)
        if row.pass_ != BACKWARD:
            return lambda: gradients(function(), grad_outputs=cotangent)
        before = allocated_memory(row.setting.device)
        y = function()
        after = allocated_memory(row.setting.device)
        if before is not None and after is not None:
            row.facts.setdefault("kept_bytes", max(0, after - before - y.nbytes))
        return partial(gradients, y, grad_outputs=cotangent, retain_graph=True)

    def check(self, candidate: Any, setting: Any) -> str | None:
        """Return what is wrong with the results of a candidate in a small setting, or None."""
        for pass_ in self.checked:
            dtypes = (None, None, torch.float64)
            versions = zip(self.versions(candidate, setting, pass_), dtypes, strict=True)
            found = [self.results(function, setting, pass_, dtype) for function, dtype in versions]
            if mistake := gate.mistake(self.precision(candidate, setting), *found):
                return f"{pass_}: {mistake}"
        return None

    def results(self, function: Function, setting: Any, pass_: str, dtype: torch.dtype | None = None) -> gate.Results:
        """Return the result of a function, with inputs in ``dtype``, and its gradients."""
        inputs = {
            name: t.detach().to(dtype or t.dtype, copy=True).requires_grad_(t.requires_grad)
            for name, t in self.inputs(setting).items()
        }
        bound, leaves = self.bind(function, inputs, pass_)
        if pass_ == FORWARD:
            return {"result": torch.no_grad()(bound)()}
        y = bound()
        gradients = torch.autograd.grad(y, list(leaves.values()), make_cotangent(y, setting), allow_unused=True)
        found = {f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True) if g is not None}
        return {"result": y.detach(), **found}

    def precision(self, candidate: Any, setting: Any) -> gate.Precision:
        return gate.PRECISIONS["tf32" if setting.tf32 else setting.dtype_name]

    def small(self, setting: Any) -> Any:
        """Return the small setting in which results are checked, once for all settings with the same one."""
        return replace(setting, height=self.small_size[0], width=self.small_size[1], sigma=4.0)

    def context(self) -> AbstractContextManager[Any]:
        """Return a context in which everything runs."""
        return nullcontext()

    def facts(self, candidate: Any, setting: Any) -> dict[str, Any]:
        """Return additional columns, before anything is measured. An exception is recorded as a failure."""
        return {}

    def work(self, row: Row) -> float:
        """Return a number proportional to the time of a call, to predict it from the time at a smaller size."""
        return row.setting.positions

    def memory(self, row: Row) -> dict[str, int | None]:
        """Return the columns about memory, in bytes; the first one is shown in the terminal and in plots."""
        return {"memory_bytes": row.memory}

    def summary(self, rows: Sequence[Row]) -> tuple[str, list[dict[str, str]]] | None:
        """Return title and lines of a table to show first; lines are dicts by column."""
        return None

    def select(self, names: Sequence[str] | None) -> list[Any]:
        """Return the candidates with these names, or all of them."""
        known = [candidate.name for candidate in self.candidates]
        for name in names or ():
            if name not in known:
                raise UsageError(f"unknown {self.noun} {name!r}; choose from {', '.join(known)}")
        return [candidate for candidate in self.candidates if not names or candidate.name in names]


def number(value: float | None) -> str:
    """Format a number with three significant digits, and all digits before the point."""
    if value is None:
        return ""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def make_cotangent(y: Tensor, setting: Setting) -> Tensor:
    """Return a random gradient of a result, rounded to the setting's dtype and so the same in all dtypes."""
    cotangent = torch.randn(y.shape, generator=torch.Generator(y.device).manual_seed(0), device=y.device)
    cotangent = cotangent.to(setting.dtype).to(y.dtype)
    return cotangent.contiguous(memory_format=setting.memory_format) if y.dim() == 4 else cotangent
