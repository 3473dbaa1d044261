"""A benchmark as data: settings, candidates, rows of results, and the base class of tables."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch

from repgraph.bench.measure import CPU, Call, Times
from repgraph.errors import UsageError

OK, WRONG, CANNOT, FAILED = "ok", "wrong", "cannot run", "failed"
NO_MEMORY, TOO_SLOW = "out of memory", "over the time limit"
SMALL = (19, 22)  # size of the maps for the gate: not a multiple of tiles, with several cells of any usual grid


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
    candidates: ClassVar[Sequence[Any]]
    baselines: ClassVar[Sequence[Baseline]] = ()
    memory_note: ClassVar[str] = "not counting the result"
    sized: ClassVar[str] = "maps"  # what has the size of a setting

    @abstractmethod
    def inputs(self, setting: Any) -> Any:
        """Return the inputs that all candidates share."""

    @abstractmethod
    def call(self, row: Row, inputs: Any) -> Call:
        """Return the call to measure; it may add to the row's facts."""

    @abstractmethod
    def check(self, candidate: Any, setting: Any) -> str | None:
        """Return what is wrong with the results of a candidate in a small setting, or None."""

    def small(self, setting: Any) -> Any:
        """Return the small setting in which results are checked, once for all settings with the same one."""
        return replace(setting, height=SMALL[0], width=SMALL[1], sigma=4.0)

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
