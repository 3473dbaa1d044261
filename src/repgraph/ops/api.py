"""The one public operator: checks its arguments and hands them to a backend."""

from typing import Literal, overload

from torch import Tensor

from repgraph.ops import geometry, library, reference
from repgraph.ops.backends import choose
from repgraph.ops.checks import check, check_not_forward_mode
from repgraph.ops.formats import memory_format


@overload
def representative_attention(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, *, groups: int = 1, grid: int = 1,
    scale: float = 1.0, backend: str = "auto", return_nodes: Literal[False] = False,
) -> Tensor: ...  # fmt: skip


@overload
def representative_attention(
    query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, *, groups: int = 1, grid: int = 1,
    scale: float = 1.0, backend: str = "auto", return_nodes: Literal[True],
) -> tuple[Tensor, Tensor, Tensor]: ...  # fmt: skip


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
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """Attend from every position to S representative nodes, read where ``offsets`` point to.

    ::

        y(p) = sum_n softmax_n(scale * q(p) . k(p + offset_n)) v(p + offset_n)      n = 1..S

    Keys and values are read by bilinear interpolation; pixel centres sit at integers, and what lies
    outside the map counts as zero.

    Args:
        query: (B, C, H, W).
        key: (B, C, H, W).
        value: (B, Cv, H, W); pass the very tensor given as ``key`` and memory is read once. The three
            have one floating dtype; channels-last maps are used without a copy.
        offsets: (B, 2S, ceil(H/grid), ceil(W/grid)), any floating dtype: channel 2n is the x offset of node
            n and channel 2n + 1 its y offset, in pixels.
        groups: channel groups G (Group RepGraph), a divisor of C and Cv; each has its own softmax.
        grid: cell size g (Grid RepGraph); the g x g queries of a cell share the nodes, which are counted
            from the cell's left-top position.
        scale: factor on the logits.
        backend: "reference" (PyTorch, any device), "triton" (CUDA), "cpu" (numba), or "auto": the fastest
            that can run. A backend named here never falls back to another.
        return_nodes: also give the nodes and the weights.

    Returns:
        y (B, Cv, H, W) in the dtype and memory format of ``query``; with ``return_nodes`` the tuple
        (y, nodes, weights): nodes (B, S, 2, ceil(H/g), ceil(W/g)), absolute [x, y] in pixels, and weights
        (B, G, S, H, W), which sum to 1 over S.

    Example:
        >>> import torch
        >>> x = torch.randn(1, 8, 5, 6)
        >>> offsets = torch.randn(1, 2 * 9, 5, 6)
        >>> y, nodes, weights = representative_attention(x, x, x, offsets, return_nodes=True)
        >>> y.shape, nodes.shape, weights.shape
        (torch.Size([1, 8, 5, 6]), torch.Size([1, 9, 2, 5, 6]), torch.Size([1, 1, 9, 5, 6]))
        >>> torch.allclose(representative_attention(x, x, x, torch.zeros_like(offsets)), x)
        True
    """
    if isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor):
        query, key, value = library.to_autocast(query, key, value)  # type: ignore[assignment]
    check(query, key, value, offsets, groups, grid, scale)
    grid = min(grid, 2**30)  # larger than any map, and safe to compute with
    backend = choose(backend, query.device, query.dtype)
    if backend == "reference":
        y, weights = reference.attend(query, key, value, offsets, groups, grid, scale)
        y = y.contiguous(memory_format=memory_format(query))
    else:
        check_not_forward_mode(query, key, value, offsets)
        y, _, weights = library.attention(
            query,
            key,
            None if value is key else value,
            offsets,
            groups,
            grid,
            float(scale),
            backend,
            bool(return_nodes),
        )
    if not return_nodes:
        return y
    return y, geometry.nodes(offsets, grid, geometry.position_dtype(query.dtype)), weights
