"""Benchmarks of speed and memory. Plots and terminal tables need the extra ``repgraph[bench]``."""

from repgraph.bench.harness import run
from repgraph.bench.measure import Effort

__all__ = ["Effort", "run"]
