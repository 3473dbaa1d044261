"""The CPU backend: numba kernels on a thread pool of their own."""

from repgraph.ops.cpu.backward import backward
from repgraph.ops.cpu.forward import forward

__all__ = ["backward", "forward"]
