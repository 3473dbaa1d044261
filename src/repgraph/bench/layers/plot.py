"""The layers' figures: one for each dtype."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from repgraph.bench import chart
from repgraph.bench.layers.report import by_setting, conditions, shown
from repgraph.bench.layers.row import PASSES, SDPA, Row

FASTEST = "NL (fastest SDPA)"
# Colours are chosen to be told apart by colour-blind readers; variants of a layer share one.
STYLES = {
    "NL (plain)": ("#000000", "^", "-"),
    "NL (phi = theta)": ("#999999", "^", "--"),
    FASTEST: ("#e69f00", "v", "-"),
    "NL (nn.Conv2d)": ("#e69f00", "<", "--"),
    "DANet block": ("#cc79a7", "s", "-"),
    "DANet head": ("#cc79a7", "D", "--"),
    "Simple": ("#0072b2", "o", "-"),
    "Bottleneck": ("#d55e00", "o", "-"),
    "Bottleneck, grid 2": ("#009e73", "1", "-"),
    "Bottleneck, grid 4": ("#009e73", "2", "--"),
    "Bottleneck, grid 8": ("#009e73", "3", ":"),
    "Bottleneck, groups 4": ("#56b4e9", "1", "-"),
    "Bottleneck, groups 8": ("#56b4e9", "2", "--"),
    "Bottleneck, groups 16": ("#56b4e9", "3", ":"),
}


def write(rows: list[Row], folder: Path) -> list[Path]:
    """``layers-float32`` and so on, as PNG and SVG, where there is something."""
    written = []
    for dtype in dict.fromkeys(row.setting.dtype for row in rows):
        found = [row for row in rows if row.times and row.setting.dtype == dtype]
        if found:
            written += chart.save(figure(found), folder, f"layers-{found[0].setting.dtype_name}")
    return written


def figure(rows: list[Row]) -> Figure:
    """Four panels: time of both passes above, their memory below; of SDPA's kernels the fastest at each size."""
    lines = []
    for found in by_setting(rows).values():
        for pass_ in PASSES:
            for row in shown(row for row in found if row.pass_ == pass_):
                lines.append(replace(row, candidate=FASTEST if row.family == SDPA else row.label))
    name = "time [ms], median" + (" of CUDA graphs" if any(row.graph for row in rows) else "")
    time = name, chart.graph_time
    return chart.figure(lines, PASSES, _memory, STYLES, conditions(rows[0]), guides=True, time=time)


def _memory(row: chart.Row) -> float | None:
    assert isinstance(row, Row)
    return row.extra / 2**20 if row.extra else None
