"""The CPU backend: numba kernels and the thread pool that runs them. Reached through ``repgraph.ops.levels`` only."""

from repgraph.ops.cpu.launch import levels_backward, levels_forward

__all__ = ["levels_backward", "levels_forward"]
