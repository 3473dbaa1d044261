"""The public operator: checks its arguments and calls a backend."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repgraph.ops import geometry, library, reference
from repgraph.ops.backends import choose
from repgraph.ops.checks import check, check_not_forward_mode
from repgraph.ops.formats import memory_format


def representative_attention(
    query: Tensor,
    key: Tensor | Sequence[Tensor],
    value: Tensor | Sequence[Tensor],
    offsets: Tensor,
    *,
    groups: int = 1,
    grid: int = 1,
    scale: float = 1.0,
    bias: Tensor | None = None,
    own_nodes: bool = False,
    backend: str = "auto",
    return_nodes: bool = False,
) -> Any:
    """Attend from every position to S representative nodes at the given offsets, on one map or on each of L maps.

    ::

        y(p) = sum_n softmax_n(scale * q(p) . k(p + offset_n)) v(p + offset_n)      n = 1..S

    Keys and values are sampled by bilinear interpolation, with pixel centers at integers and zeros outside the map.
    With several maps there is one softmax over all L S nodes. A query position (x, y) is at ((x + 1/2) W_l / W - 1/2,
    (y + 1/2) H_l / H - 1/2) on a map of another size, and offsets are in pixels of that map.

    Args:
        query: (B, C, H, W).
        key: (B, C, H, W), or a sequence of L maps (B, C, H_l, W_l) of any sizes.
        value: (B, Cv, H, W), or a sequence of L maps with the sizes of the keys. Query, key and value have one dtype.
            If ``value is key``, memory is read only once.
        offsets: (B, 2 K L S, ceil(H/grid), ceil(W/grid)) for K sets of nodes (see ``own_nodes``), any floating dtype,
            in pixels. Channel 2 ((k L + l) S + n) is the x offset of node n of map l in set k, and the next one y.
        groups: Number of channel groups G (Group RepGraph), a divisor of C and Cv. Each group has its own softmax.
        grid: Cell size g (Grid RepGraph). The g x g queries of a cell share its nodes, and offsets are relative to the
            top-left position of the cell.
        scale: Factor on the logits.
        bias: (1 or B, G L S, 1 or H, 1 or W), added to the logits in order group, map, node.
        own_nodes: Whether each group has its own nodes (K = G) or all groups share one set (K = 1).
        backend: "reference" (PyTorch, any device), "triton" (CUDA), "cpu" (numba), or "auto" for the fastest that can
            run. A named backend raises an error if it cannot run.
        return_nodes: Whether to return nodes and weights as well.

    Returns:
        y (B, Cv, H, W) in the dtype and memory format of ``query``. With ``return_nodes``, the tuple (y, nodes,
        weights). Nodes are absolute [x, y] in pixels of their map: (B, S, 2, ceil(H/g), ceil(W/g)) for one map and one
        set, else (B, K, L S, 2, ceil(H/g), ceil(W/g)). Weights (B, G, L S, H, W) sum to 1 over the nodes.

    Example:
        >>> import torch
        >>> x = torch.randn(1, 8, 5, 6)
        >>> offsets = torch.randn(1, 2 * 9, 5, 6)
        >>> y, nodes, weights = representative_attention(x, x, x, offsets, return_nodes=True)
        >>> y.shape, nodes.shape, weights.shape
        (torch.Size([1, 8, 5, 6]), torch.Size([1, 9, 2, 5, 6]), torch.Size([1, 1, 9, 5, 6]))

        Two maps, and two groups with their own four nodes on each map:

        >>> maps = [x, torch.randn(1, 8, 3, 3)]
        >>> representative_attention(x, maps, maps, torch.randn(1, 32, 5, 6), groups=2, own_nodes=True).shape
        torch.Size([1, 8, 5, 6])
    """
    keys = tuple(key) if isinstance(key, list | tuple) else (key,)
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    shared = len(keys) == len(values) and all(k is v for k, v in zip(keys, values, strict=True))
    if library.autocasting(query):
        query, keys = library.autocast(query), tuple(map(library.autocast, keys))
        values = values if shared else tuple(map(library.autocast, values))
    values = keys if shared else values
    check(query, keys, values, offsets, groups, grid, scale, bias, own_nodes)
    grid = min(grid, 2**30)  # larger than any map, and no overflow in kernels
    sets = groups if own_nodes else 1
    one_map = len(keys) == 1 and geometry.same(keys[0].shape[2:], query.shape[2:])
    if backend == "auto" and not one_map and torch.jit.is_tracing():
        backend = "reference"  # a trace cannot pass sizes of maps to an operator
    backend = choose(backend, query.device, query.dtype)
    if backend == "reference":
        y, weights = reference.attend(query, keys, values, offsets, groups, grid, scale, bias, sets)
        y = y.contiguous(memory_format=memory_format(query))
    else:
        check_not_forward_mode(query, *keys, *values, offsets, bias)
        features = [keys] if shared else [keys, values]
        rows = [maps[0] if one_map else library.flat(maps) for maps in features]
        sizes = [] if one_map else [n for each in keys for n in each.shape[2:]]
        options = (sizes, groups, sets, grid, float(scale), backend, bool(return_nodes))
        y, weights = library.attention(query, rows[0], None if shared else rows[1], offsets, bias, *options)
    if not return_nodes:
        return y
    sizes = [each.shape[2:] for each in keys]
    nodes = geometry.nodes(offsets, grid, geometry.position_dtype(query.dtype), query.shape[2:], sizes, sets)
    return y, nodes[:, 0, 0] if len(sizes) == sets == 1 else nodes.flatten(2, 3), weights
