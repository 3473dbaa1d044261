"""The result of one measurement of a layer."""

from dataclasses import dataclass

from repgraph.bench import row
from repgraph.bench.layers.formulas import Count
from repgraph.bench.layers.setting import Setting

FORWARD, BOTH = PASSES = ("forward", "forward+backward")
NON_LOCAL, SDPA, DANET, REPGRAPH, COMPILED = "non-local", "non-local SDPA", "danet", "repgraph", "compiled"  # families
MISCOUNTED = "miscounted"  # the formula and the count in execution differ


@dataclass
class Row(row.Row):
    """A block's forward pass, or forward and backward, in one setting."""

    setting: Setting
    label: str = ""
    count: Count | None = None
    counted: bool = False  # whether the count was confirmed in execution
    parameters: int = 0
    backend: str = ""  # of representative attention, in the blocks that have it
    versus_sdpa: float | None = None  # how many times faster than the fastest SDPA non-local block in the same run
    versus_sdpa_basis: str = ""  # the medians that were compared: GRAPH, EVENTS or WALL
    versus_plain: float | None = None  # than the plain non-local block
    versus_plain_basis: str = ""
    memory_versus_sdpa: float | None = None  # how many times less extra memory than that SDPA block takes
    memory_versus_plain: float | None = None

    @property
    def extra(self) -> int | None:
        """Highest use beyond what was there before, the result included, bytes."""
        return None if self.memory is None or self.result is None else self.memory + self.result
