"""The two passes: prepare arrays, choose the kernels, run them on threads."""

import numpy as np
import torch
from torch import Tensor

from repgraph.ops import geometry, library
from repgraph.ops.cpu import cells, direct
from repgraph.ops.cpu.geometry import locate_nodes
from repgraph.ops.cpu.maps import SLICE, flat, float_rows, rows, slice_width, workspace, write_floats
from repgraph.ops.cpu.memory import BLOCK
from repgraph.ops.cpu.pool import run
from repgraph.ops.cpu.scatter import scatter


def forward(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, grid: int, scale: float,
    with_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (y, lse, weights); see ``repgraph.ops.library``."""
    y, lse, weights = library.outputs(query, key, value, offsets, groups, with_weights)
    batch, channels, height, width = query.shape
    if y.numel() == 0:
        return y, lse, weights
    dtype: type = np.float64 if query.dtype == torch.float64 else np.float32
    count, vchannels = offsets.shape[1] // 2, y.shape[1]
    with workspace() as space:
        k = rows(key, space)
        v = k if value is None else rows(value, space)
        nodes = _locate_nodes(offsets, grid, height, width, dtype, space)
        tensors = (*flat(query), *k, *v, *flat(y), lse.numpy().reshape(-1), weights.numpy().reshape(-1), *nodes)
        work = batch * height * width * (channels + vchannels) * count
        tasks, size = _tasks(batch, height, grid)
        options = ((height, width, channels, vchannels, count, groups, size), dtype(scale))
        if grid == 1:
            run(direct.attend, tasks, work, *tensors, *options)
        else:
            run(cells.attend, tasks, work // 2, *tensors, *options, value is None)
    return y, lse, weights


def backward(
    grad: Tensor, grad_weights: Tensor | None, query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor,
    y: Tensor | None, lse: Tensor, groups: int, grid: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value and offsets; the softmax is recomputed without ``lse``."""
    grad_query, grad_key, grad_value, grad_offsets = library.gradients(query, key, value, offsets)
    batch, channels, height, width = query.shape
    if grad_query.numel() == 0:
        return grad_query, grad_key, grad_value, grad_offsets
    dtype: type = np.float64 if query.dtype == torch.float64 else np.float32
    count, vchannels = offsets.shape[1] // 2, grad.shape[1]
    shared = value is None
    extra: np.ndarray = np.empty(0, dtype)
    if grad_weights is not None:
        extra = np.ascontiguousarray(grad_weights.detach().resolve_neg().numpy()).reshape(-1)
    with workspace() as space:
        q, g, k = flat(query), flat(grad), rows(key, space)
        v = k if value is None else rows(value, space)
        nodes = _locate_nodes(offsets, grid, height, width, dtype, space)
        p: np.ndarray = np.empty(batch * height * width * groups * count, dtype)
        d = np.empty_like(p)
        work = batch * height * width * (channels + vchannels) * count
        parts = 1 if grid == 1 else geometry.cells(min(grid, height), cells.PART)
        grad_nodes: np.ndarray = np.empty(offsets.numel() * parts, dtype)
        tensors = (*g, *q, *k, *v, *flat(grad_query), extra, *nodes)
        tasks, size = _tasks(batch, height, grid)
        options = ((height, width, channels, vchannels, count, groups, size), dtype(scale))
        if grid == 1:
            run(direct.attend_backward, tasks, work, *tensors, *options, p, d, grad_nodes)
        else:
            run(cells.attend_backward, tasks, work, *tensors, *options, p, d, grad_nodes, shared)
        widest = min(SLICE, max(BLOCK, (1 << 18) // (height * width)))  # for the cache of a core
        pitch = slice_width(channels, widest, batch)
        tasks = batch * (geometry.cells(channels, pitch) + (0 if shared else geometry.cells(vchannels, pitch)))
        targets = (*flat(grad_key), *flat(grad_key if shared else grad_value))
        dims = (height, width, count, groups, grid)
        run(scatter, tasks, work, *g, *q, p, d, *nodes, dims, pitch, channels, vchannels, *targets, shared)
    (_, twice, rows_, columns) = offsets.shape
    by_part = grad_nodes.reshape(batch, rows_, parts, columns, twice)
    write_floats(grad_offsets, by_part[:, :, 0] if parts == 1 else by_part.sum(2))
    return grad_query, grad_key, grad_value, grad_offsets


def _tasks(batch: int, height: int, grid: int) -> tuple[int, int]:
    """Return the number of tasks, and the rows of queries in one (grid 1) or the grid."""
    if grid > 1:
        return batch * geometry.cells(height, grid) * geometry.cells(min(grid, height), cells.PART), grid
    strip = max(1, min(4, batch * height // (4 * torch.get_num_threads())))  # a few tasks per thread, not too tall
    return batch * geometry.cells(height, strip), strip


def _locate_nodes(
    offsets: Tensor, grid: int, height: int, width: int, dtype: type, space: list
) -> tuple[np.ndarray, np.ndarray]:
    """Return the top-left corners and fractions of all nodes, each [B, Hc, Wc, S, 2] and flat."""
    batch, channels, cell_rows, cell_columns = offsets.shape
    lefts = np.empty(offsets.numel(), np.int32)
    fractions: np.ndarray = np.empty(offsets.numel(), dtype)
    sizes = (cell_columns, channels // 2, grid, (height, width, cell_rows))
    source = float_rows(offsets, dtype, space)
    run(locate_nodes, batch * cell_rows, 16 * offsets.numel(), *source, *sizes, lefts, fractions)
    return lefts, fractions
