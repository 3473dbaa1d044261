"""A benchmark as data: settings, candidates, rows of results, and the base class of tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from repgraph.bench import gate
from repgraph.bench.measure import CPU, Call, Times
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
    def title(self) -> str:
        return f"{self.height} x {self.width} (N = {self.height * self.width}), {self.dtype_name}"

    def columns(self) -> dict[str, Any]:
        """Return the columns of the CSV file that describe the setting."""
        columns = {name: value for name, value in vars(self).items() if name != "device"}  # it has its own columns
        layout = str(self.memory_format).removeprefix("torch.").removesuffix("_format")
        return columns | {"positions": self.height * self.width, "dtype": self.dtype_name, "memory_format": layout}


@dataclass(frozen=True)
class Candidate:
    name: str  # in tables and for --only
    build: Callable[..., Any]  # returns the function or module to call in a setting
    family: str = ""
    why_not: Callable[[Any], str | None] = lambda setting: None  # why it cannot run in a setting, or None


@dataclass
class Row:
    """A pass of a candidate in a setting: time and memory, or the reason why there is none."""

    candidate: Candidate
    setting: Any
    pass_: str
    status: str = OK
    reason: str = ""
    times: Times | None = None  # between events on CUDA, wall-clock on the CPU
    graph: Times | None = None  # of the replay of a CUDA graph
    memory: int | None = None  # peak beyond what was allocated before, in bytes
    facts: dict[str, Any] = field(default_factory=dict)  # the table's own columns


class Table(ABC):
    """A benchmark: its candidates, how to call and to check them, and its columns."""

    name: ClassVar[str]  # of the command and of the files
    noun: ClassVar[str] = "candidate"  # head of the first column
    passes: ClassVar[tuple[str, ...]]
    checked: ClassVar[tuple[str, ...]]  # passes that the gate compares; all but FORWARD with gradients
    candidates: ClassVar[Sequence[Candidate]]
    baselines: ClassVar[dict[str, Sequence[str]]] = {}  # rows are compared with the fastest of these candidates
    memory_column: ClassVar[str] = "memory_bytes"  # in the CSV file
    counts_result: ClassVar[bool] = False  # whether that memory includes the result
    small_size: ClassVar[tuple[int, int]] = (19, 22)  # for the gate: no multiple of tiles, several cells of usual grids
    context: ClassVar[Any] = nullcontext  # function that returns a context manager, in which everything runs

    @abstractmethod
    def inputs(self, setting: Any) -> Leaves:
        """Return the inputs that all candidates share; gradients of those that require them are computed."""

    @abstractmethod
    def versions(self, candidate: Candidate, setting: Any, pass_: str) -> Sequence[Function]:
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
        """Return the call to measure."""
        function, leaves = self.bind(self.build(row), inputs, row.pass_)
        if row.pass_ == FORWARD:
            return torch.no_grad()(function)
        y = function()  # the first call may compile
        cotangent = make_cotangent(y, row.setting)
        gradients = partial(torch.autograd.grad, inputs=list(leaves.values()), allow_unused=True)
        if row.pass_ == BACKWARD:
            return partial(gradients, y, grad_outputs=cotangent, retain_graph=True)
        return lambda: gradients(function(), grad_outputs=cotangent)

    def check(self, candidate: Candidate, setting: Any) -> str | None:
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

    def precision(self, candidate: Candidate, setting: Any) -> gate.Precision:
        return gate.PRECISIONS["tf32" if setting.tf32 else setting.dtype_name]

    def small(self, setting: Any) -> Any:
        """Return the small setting in which results are checked, once for all settings with the same one."""
        return replace(setting, height=self.small_size[0], width=self.small_size[1])

    def facts(self, candidate: Candidate, setting: Any) -> dict[str, Any]:
        """Return additional columns, before anything is measured. An exception is recorded as a failure."""
        return {}

    def cells(self, row: Row) -> dict[str, str]:
        """Return additional columns of a measured row in the terminal."""
        return {}

    def select(self, names: Sequence[str] | None) -> list[Candidate]:
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
