"""The result of one measurement of the operator."""

from dataclasses import dataclass

from repgraph.bench import row
from repgraph.bench.operator.setting import Setting

PASSES = ("forward", "backward")


@dataclass
class Row(row.Row):
    """A candidate's forward or backward in one setting."""

    setting: Setting
    kept: int | None = None  # held from forward to backward beyond the result, bytes
    versus_composition: float | None = None  # how many times faster than composition in the same run
    versus_composition_basis: str = ""  # the medians that were compared: GRAPH, EVENTS or WALL
    versus_sdpa: float | None = None  # how many times faster than the fastest SDPA kernel in the same run
    versus_sdpa_basis: str = ""
