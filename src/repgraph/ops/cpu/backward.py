"""The backward pass: which kernels run, on what."""

import numpy as np
import torch
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.cpu import cells, cells_backward, direct_backward
from repgraph.ops.cpu.forward import kinds, narrow, place_nodes, strip_rows
from repgraph.ops.cpu.maps import flat, rows
from repgraph.ops.cpu.memory import BLOCK
from repgraph.ops.cpu.nodes import give_back
from repgraph.ops.cpu.pool import run
from repgraph.ops.cpu.scatter import scatter
from repgraph.ops.cpu.workspace import Workspace
from repgraph.ops.geometry import cells as number_of_cells

SLICE = 64  # channels of a gradient that are summed up at a time, at most


def slice_width(batch: int, channels: int, positions: int) -> int:
    """Channels of a slice: few enough for the cache of a core, and for every thread to get one."""
    width = min(SLICE, max(BLOCK, (1 << 18) // positions))
    pieces = max(number_of_cells(channels, width), number_of_cells(torch.get_num_threads(), batch))
    return number_of_cells(number_of_cells(channels, pieces), BLOCK) * BLOCK


def backward(
    grad: Tensor,
    grad_weights: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    offsets: Tensor,
    y: Tensor | None,
    lse: Tensor,
    groups: int,
    grid: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and offsets; see ``repgraph.ops.library``.

    The softmax is taken again from the logits, not from ``lse``: so weights sum to 1 however large these are.
    """
    grad_query, grad_key, grad_value, grad_offsets = library.gradients(query, key, value, offsets)
    batch, channels, height, width = query.shape
    if grad_query.numel() == 0:
        return grad_query, grad_key, grad_value, grad_offsets
    kind = kinds(query.dtype)
    count, vchannels = offsets.shape[1] // 2, grad.shape[1]
    shared = value is None
    with Workspace() as space:
        q, g, k = flat(query), flat(grad), rows(key, space)
        v = k if value is None else rows(value, space)
        lefts, fractions = place_nodes(offsets, grid, height, width, kind)
        p: np.ndarray = np.empty(batch * height * width * groups * count, kind)
        d = np.empty_like(p)
        extra = np.empty(0, kind) if grad_weights is None else _contiguous(grad_weights)
        work = batch * height * width * (channels + vchannels) * count
        cell_rows = number_of_cells(height, grid)
        parts = 1 if grid == 1 else number_of_cells(min(grid, height), cells.PART)
        grad_nodes: np.ndarray = np.empty(offsets.numel() * parts, kind)
        maps = (*g, *q, *k, *v, *flat(grad_query), extra, lefts, fractions)
        if grid == 1:
            strip = strip_rows(batch, height)
            dims = (height, width, channels, vchannels, count, groups, strip)
            tasks = batch * number_of_cells(height, strip)
            run(direct_backward.differentiate_queries, tasks, work, *maps, dims, narrow(scale, kind), p, d, grad_nodes)
        else:
            dims = (height, width, channels, vchannels, count, groups, grid)
            tasks = batch * cell_rows * parts
            run(
                cells_backward.differentiate_queries,
                tasks,
                work,
                *maps,
                dims,
                narrow(scale, kind),
                p,
                d,
                grad_nodes,
                shared,
            )
        pitch = slice_width(batch, channels, height * width)
        tasks = batch * (number_of_cells(channels, pitch) + (0 if shared else number_of_cells(vchannels, pitch)))
        target = flat(grad_key)
        run(
            scatter,
            tasks,
            work,
            *g,
            *q,
            p,
            d,
            lefts,
            fractions,
            (height, width, count, groups, grid),
            pitch,
            channels,
            vchannels,
            *target,
            *(target if shared else flat(grad_value)),
            shared,
        )
    _return_offsets(grad_offsets, grad_nodes, parts)
    return grad_query, grad_key, grad_value, grad_offsets


def _contiguous(grad_weights: Tensor) -> np.ndarray:
    return np.ascontiguousarray(grad_weights.detach().resolve_neg().numpy()).reshape(-1)


def _return_offsets(grad_offsets: Tensor, grad_nodes: np.ndarray, parts: int) -> None:
    batch, channels, cell_rows, cell_columns = grad_offsets.shape
    half = grad_offsets.dtype == torch.float16
    target = np.empty(grad_offsets.numel(), np.float32) if half else flat(grad_offsets).data
    run(
        give_back,
        batch * cell_rows,
        8 * grad_nodes.size,
        cell_columns,
        channels // 2,
        cell_rows,
        parts,
        grad_nodes,
        target,
    )
    if half:
        with np.errstate(over="ignore"):  # to infinity, as PyTorch does
            grad_offsets.numpy()[...] = target.reshape(grad_offsets.shape)
