"""Fused kernels for CUDA, in Triton. Reached through ``repgraph.ops.library`` only."""

from repgraph.ops.triton.launch import backward, forward
from repgraph.ops.triton.norm import fold, fold_backward, settle
from repgraph.ops.triton.norm_relu import norm_relu, norm_relu_backward
from repgraph.ops.triton.product import column_sums, narrow_rows, relu_products, residual_product, wide_product

__all__ = [
    "backward",
    "column_sums",
    "fold",
    "fold_backward",
    "forward",
    "narrow_rows",
    "norm_relu",
    "norm_relu_backward",
    "relu_products",
    "residual_product",
    "settle",
    "wide_product",
]
