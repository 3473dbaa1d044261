"""The operator's figures: one for each way to give the value."""

from pathlib import Path

from matplotlib.figure import Figure

from repgraph.bench import chart, row
from repgraph.bench.operator.report import conditions
from repgraph.bench.operator.row import PASSES, Row

# Colours are chosen to be told apart by colour-blind readers.
STYLES = {
    "reference": ("#999999", "o", "-"),
    "cpu": ("#d55e00", "o", "-"),
    "triton": ("#d55e00", "D", "-"),
    "composition": ("#0072b2", "s", "-"),
    "composition-compiled": ("#56b4e9", "s", "-"),
    "sdpa-math": ("#000000", "^", "-"),
    "sdpa-flash": ("#009e73", "v", "-"),
    "sdpa-efficient": ("#cc79a7", "<", "-"),
    "sdpa-cudnn": ("#e69f00", ">", "-"),
}


def write(rows: list[Row], folder: Path) -> list[Path]:
    """``operator-shared-kv`` and ``operator-separate-kv`` as PNG and SVG, where there is something."""
    written = []
    for shared in (True, False):
        found = [row for row in rows if row.times and row.setting.shared_kv == shared]
        if found:
            written += chart.save(figure(found), folder, f"operator-{'shared' if shared else 'separate'}-kv")
    return written


def figure(rows: list[Row]) -> Figure:
    """Four panels: time of forward and backward above, their memory below."""
    return chart.figure(rows, PASSES, _memory, STYLES, conditions(rows[0]))


def _memory(row: row.Row) -> float | None:
    return row.memory / 2**20 if row.memory else None
