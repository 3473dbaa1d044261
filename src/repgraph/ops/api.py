"""The public operator: checks its arguments and calls a backend."""

from typing import Any

from torch import Tensor

from repgraph.ops import geometry, library, reference
from repgraph.ops.backends import choose
from repgraph.ops.checks import check, check_not_forward_mode
from repgraph.ops.formats import memory_format


def representative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    offsets: Tensor,
    *,
    groups: int = 1,
    grid: int = 1,
    scale: float = 1.0,
    backend: str = "auto",
    return_nodes: bool = False,
) -> Any:
    """Attend from every position to S representative nodes at the given offsets.

    ::

        y(p) = sum_n softmax_n(scale * q(p) . k(p + offset_n)) v(p + offset_n)      n = 1..S

    Keys and values are sampled by bilinear interpolation, with pixel centres at integers and zeros off the map.

    Args:
        query, key: (B, C, H, W).
        value: (B, Cv, H, W), of the same dtype. If it is the tensor ``key``, memory is read only once.
        offsets: (B, 2S, ceil(H/grid), ceil(W/grid)), any floating dtype. Channel 2n is the x offset of node n and
            channel 2n + 1 its y offset, in pixels.
        groups: Number of channel groups G (Group RepGraph), a divisor of C and Cv. Each group has its own softmax.
        grid: Cell size g (Grid RepGraph). The g x g queries of a cell share its nodes, and offsets are relative to the
            top-left position of the cell.
        scale: Factor on the logits.
        backend: "reference" (PyTorch, any device), "triton" (CUDA), "cpu" (numba), or "auto" for the fastest that can
            run. There is no fallback from a named backend.
        return_nodes: Whether to return nodes and weights as well.

    Returns:
        y (B, Cv, H, W) in the dtype and memory format of ``query``. With ``return_nodes``, the tuple (y, nodes,
        weights): nodes (B, S, 2, ceil(H/g), ceil(W/g)) are absolute [x, y] in pixels, and weights (B, G, S, H, W) sum
        to 1 over S.

    Example:
        >>> import torch
        >>> x = torch.randn(1, 8, 5, 6)
        >>> offsets = torch.randn(1, 2 * 9, 5, 6)
        >>> y, nodes, weights = representative_attention(x, x, x, offsets, return_nodes=True)
        >>> y.shape, nodes.shape, weights.shape
        (torch.Size([1, 8, 5, 6]), torch.Size([1, 9, 2, 5, 6]), torch.Size([1, 1, 9, 5, 6]))
    """
    query, key, value = library.to_autocast(query, key, value)  # type: ignore[assignment]
    check(query, key, value, offsets, groups, grid, scale)
    grid = min(grid, 2**30)  # larger than any map, and no overflow in kernels
    backend = choose(backend, query.device, query.dtype)
    if backend == "reference":
        y, weights = reference.attend(query, key, value, offsets, groups, grid, scale)
        y = y.contiguous(memory_format=memory_format(query))
    else:
        check_not_forward_mode(query, key, value, offsets)
        own_value = None if value is key else value
        y, _, weights = library.attention(
            query, key, own_value, offsets, groups, grid, float(scale), backend, bool(return_nodes)
        )
    if not return_nodes:
        return y
    return y, geometry.nodes(offsets, grid, geometry.position_dtype(query.dtype)), weights
