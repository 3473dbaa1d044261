"""Benchmarks of speed and memory."""

from repgraph.bench.harness import run

__all__ = ["run"]
