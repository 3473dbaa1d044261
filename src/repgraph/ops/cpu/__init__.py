"""The CPU backend: numba kernels and the thread pool that runs them. Reached through ``repgraph.ops.library`` only."""

from repgraph.ops.cpu.launch import backward, forward

__all__ = ["backward", "forward"]
