"""The CPU backend: numba kernels and the thread pool that runs them. Reached through ``repgraph.ops.library`` only."""

from repgraph.ops.cpu.launch import backward, forward
from repgraph.ops.cpu.levels_launch import levels_backward, levels_forward

__all__ = ["backward", "forward", "levels_backward", "levels_forward"]
