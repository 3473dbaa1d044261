"""The forward pass: which kernel runs, on what."""

import numpy as np
import torch
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.cpu import cells, direct
from repgraph.ops.cpu.maps import flat, flat_offsets, rows
from repgraph.ops.cpu.nodes import place
from repgraph.ops.cpu.pool import run
from repgraph.ops.cpu.workspace import Workspace
from repgraph.ops.geometry import cells as number_of_cells
from repgraph.ops.geometry import position_dtype


def kinds(features: torch.dtype) -> type:
    """The numpy type that ``features`` are computed in."""
    return np.float64 if position_dtype(features) == torch.float64 else np.float32


def narrow(scale: float, kind: type) -> np.floating:
    """``scale`` as a number of ``kind``, infinite where it is too large; numpy would warn."""
    with np.errstate(over="ignore"):
        return kind(scale)


def strip_rows(batch: int, height: int) -> int:
    """Rows of queries in a task of the direct kernels: a few tasks for each thread, and not too tall."""
    return max(1, min(4, batch * height // (4 * torch.get_num_threads())))


def place_nodes(offsets: Tensor, grid: int, height: int, width: int, kind: type) -> tuple[np.ndarray, np.ndarray]:
    """Left-top corners and fractions of all nodes, each [B, Hc, Wc, S, 2] and flat."""
    batch, channels, cell_rows, cell_columns = offsets.shape
    lefts = np.empty(offsets.numel(), np.int32)
    fractions: np.ndarray = np.empty(offsets.numel(), kind)
    data, strides = flat_offsets(offsets)
    size = (height, width, cell_rows)
    run(
        place,
        batch * cell_rows,
        16 * offsets.numel(),
        data,
        strides,
        cell_columns,
        channels // 2,
        grid,
        size,
        lefts,
        fractions,
    )
    return lefts, fractions


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    offsets: Tensor,
    groups: int,
    grid: int,
    scale: float,
    with_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y, lse, weights) of representative attention; see ``repgraph.ops.library``."""
    y, lse, weights = library.outputs(query, key, value, offsets, groups, with_weights)
    batch, channels, height, width = query.shape
    if y.numel() == 0:
        return y, lse, weights
    kind = kinds(query.dtype)
    count = offsets.shape[1] // 2
    with Workspace() as space:
        q, k = flat(query), rows(key, space)
        v = k if value is None else rows(value, space)
        lefts, fractions = place_nodes(offsets, grid, height, width, kind)
        vchannels = y.shape[1]
        out = flat(y)
        summary, table = lse.numpy().reshape(-1), weights.numpy().reshape(-1)
        work = query.numel() // channels * (channels + vchannels) * count
        if grid == 1:
            strip = strip_rows(batch, height)
            dims = (height, width, channels, vchannels, count, groups, strip)
            tasks = batch * number_of_cells(height, strip)
            run(
                direct.attend,
                tasks,
                work,
                *q,
                *k,
                *v,
                *out,
                summary,
                table,
                lefts,
                fractions,
                dims,
                narrow(scale, kind),
            )
        else:
            dims = (height, width, channels, vchannels, count, groups, grid)
            tasks = batch * number_of_cells(height, grid) * number_of_cells(min(grid, height), cells.PART)
            run(
                cells.attend,
                tasks,
                work // 2,
                *q,
                *k,
                *v,
                *out,
                summary,
                table,
                lefts,
                fractions,
                dims,
                narrow(scale, kind),
                value is None,
            )
    return y, lse, weights
