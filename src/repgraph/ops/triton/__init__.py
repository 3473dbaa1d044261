"""Fused kernels for CUDA, in Triton. Reached through ``repgraph.ops.library`` only."""

from repgraph.ops.triton.launch import backward, forward

__all__ = ["backward", "forward"]
