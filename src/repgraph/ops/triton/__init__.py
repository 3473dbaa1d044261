"""The Triton backend: fused kernels for CUDA. Reached through ``repgraph.ops.library`` only."""

from repgraph.ops.triton.launch import one_map_backward, one_map_forward  # noqa: F401
from repgraph.ops.triton.levels_launch import backward, forward  # noqa: F401
from repgraph.ops.triton.norm import (  # noqa: F401
    fold,
    fold_backward,
    fold_running,
    norm_relu,
    norm_relu_backward,
    norm_relu_running,
    slope_and_shift,
)
from repgraph.ops.triton.product import column_parts, column_sums, residual_product, wide_product  # noqa: F401
from repgraph.ops.triton.resize import resize, resize_backward  # noqa: F401
