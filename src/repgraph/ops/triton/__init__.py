"""Fused kernels for CUDA, in Triton. Reached through ``repgraph.ops.library`` only."""

from repgraph.ops.triton.launch import backward, forward
from repgraph.ops.triton.norm import fold, fold_backward
from repgraph.ops.triton.norm_relu import norm_relu, norm_relu_backward
from repgraph.ops.triton.product import column_sums, residual_product, wide_product

__all__ = [
    "backward",
    "column_sums",
    "fold",
    "fold_backward",
    "forward",
    "norm_relu",
    "norm_relu_backward",
    "residual_product",
    "wide_product",
]
