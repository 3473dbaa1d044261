"""What ``repgraph bench layers`` measures, shows and writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from repgraph.bench.layers import plot, report
from repgraph.bench.layers.benchmark import Options, run
from repgraph.bench.layers.row import Row
from repgraph.bench.runner import Progress
from repgraph.bench.session import Session


class LayersSession(Session[Row]):
    name = "layers"

    def __init__(self, options: Options) -> None:
        self.effort = self.options = options
        self.settings = options.settings()

    def measure(self, progress: Progress, finished: Callable[[list[Row]], None]) -> None:
        run(self.options, progress=progress, finished=finished)

    def record(self, row: Row) -> dict[str, Any]:
        return report.as_record(row)

    def tables(self, rows: list[Row]) -> list[Table]:
        return list(report.tables(rows))

    def notes(self, rows: list[Row]) -> list[str]:
        return report.notes(rows)

    def plot(self, rows: list[Row], folder: Path) -> list[Path]:
        return plot.write(rows, folder)
