"""The two passes of attention to nodes on several maps: prepare arrays, run the kernels on threads, reduce gradients.

Offsets, bias and their gradients are float32 here (float64 for float64 features), whatever their dtype, so that there
is one kernel for each dtype of features.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from repgraph.ops import levels
from repgraph.ops.cpu.levels import attend_levels, attend_levels_backward, scatter_levels
from repgraph.ops.cpu.maps import Map, flat, floats, rows, scratch, workspace, write_floats
from repgraph.ops.cpu.memory import BLOCK
from repgraph.ops.cpu.pool import run
from repgraph.ops.geometry import cells

SLICE = 64  # channels in a task of ``scatter_levels``, at most
ROWS = 4  # of queries in a tile


def levels_forward(
    query: Tensor | None, key: Tensor | None, value: Tensor | None, offsets: Tensor, bias: Tensor | None,
    sizes: Sequence[int], points: Sequence[int], groups: int, sets: int, grid: int, scale: float, training: bool,
    with_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (y, lse, weights, response), of which lse and response are empty; see ``repgraph.ops.levels``."""
    results = levels.outputs(query, key, value, offsets, groups, points, "cpu", training, with_weights)
    y, _, weights, _ = results
    if y.numel() == 0:
        return results
    call = _Call(query, key, value, offsets, bias, sizes, points, groups, sets, grid, y.shape[2:])
    with workspace() as space:
        q, k, v = call.maps(space)
        tensors = (*q, *k, *v, *flat(y), weights.numpy().reshape(-1), *call.offsets(offsets), *call.bias(bias))
        run(attend_levels, call.tasks, call.work, *tensors, *call.tables, call.dims, call.dtype(scale))
    return results


def levels_backward(
    grad: Tensor, grad_weights: Tensor | None, query: Tensor | None, key: Tensor | None, value: Tensor | None,
    offsets: Tensor, bias: Tensor | None, response: Tensor, lse: Tensor, sizes: Sequence[int], points: Sequence[int],
    groups: int, sets: int, grid: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the five tensors; the softmax is recomputed."""
    results = levels.gradients(query, key, value, offsets, bias)
    grad_query, grad_key, grad_value, grad_offsets, grad_bias = results
    call = _Call(query, key, value, offsets, bias, sizes, points, groups, sets, grid, grad.shape[2:])
    if grad.numel() == 0:
        for each in results:
            _zero(each)
        return results
    kind, (batch, vchannels, height, width) = call.dtype, grad.shape
    positions, channels = sum(call.areas), call.dims[2]
    extra: np.ndarray = np.empty(0, kind)
    if grad_weights is not None:
        extra = np.ascontiguousarray(grad_weights.detach().resolve_neg().numpy()).reshape(-1)
    with workspace() as space:
        q, k, v = call.maps(space)
        own_q = call.nothing if query is None else flat(grad_query)
        nodes = batch * height * width * sum(points)
        places = scratch(space, nodes * sets * 2, kind)
        ps, ds = (scratch(space, nodes * groups, kind) for _ in range(2))
        go, offset_rows = _target(grad_offsets, (height, width), kind, space)
        gb, bias_rows = (call.empty, None) if bias is None else _target(grad_bias, (height, width), kind, space, batch)
        g = flat(grad)
        tensors = (*g, *q, *k, *v, *own_q, extra, *call.offsets(offsets), *go, *call.bias(bias), *gb)
        options = (*call.tables, call.dims, kind(scale))
        run(attend_levels_backward, call.tasks, 2 * call.work, *tensors, *options, places, ps, ds)
        shared = value is None
        pitch = _slice_width(batch, groups, max(channels, vchannels) // groups)
        pieces = cells(channels // groups, pitch) + (0 if shared else cells(vchannels // groups, pitch))
        dims = (height, width, channels, vchannels, sum(points), groups, sets, positions)
        targets = [np.empty(0, k.data.dtype) if t.numel() == 0 else flat(t).data for t in (grad_key, grad_value)]
        if positions:
            table, limits = call.tables[:2]
            tasks = batch * groups * pieces
            run(scatter_levels, tasks, call.work, *g, *q, places, ps, ds, table, limits, dims, pitch, *targets, shared)
        if offset_rows is not None:
            for axis, length in ((1, height), (2, width)):
                if grid > 1:
                    starts = np.arange(0, length, grid)
                    offset_rows = np.add.reduceat(offset_rows, starts, axis, dtype=np.float64)
            write_floats(grad_offsets, offset_rows)
        if bias is not None and bias_rows is not None:
            axes = tuple(axis for axis in range(3) if bias.permute(0, 2, 3, 1).shape[axis] != bias_rows.shape[axis])
            write_floats(grad_bias, bias_rows.sum(axes, dtype=np.float64, keepdims=True) if axes else bias_rows)
    return results


class _Call:
    """Sizes and tables of a call, for both passes."""

    def __init__(self, query, key, value, offsets, bias, sizes, points, groups, sets, grid, size):
        self.query, self.key, self.value = query, key, value
        features = value if key is None else key
        double = features.dtype == torch.float64
        self.dtype: type = np.float64 if double else np.float32
        self.nothing = Map(flat(features.new_empty(1, 1, 1, 1)).data[:0], (0, 1, 0, 0))
        self.empty = Map(np.empty(0, self.dtype), (0, 1, 0, 0))
        self.areas = [height * width for height, width in zip(sizes[::2], sizes[1::2], strict=True)]
        count = sum(points)
        (height, width), batch = size, features.shape[0]
        channels = 0 if query is None else query.shape[1]
        vchannels = (key if value is None else value).shape[2]
        tall = min(ROWS, height)
        columns = cells(width, max(1, width // BLOCK)) or 1  # at least a block, if there are as many
        self.tasks = batch * cells(height, tall) * cells(width, columns)
        self.work = batch * height * width * (channels + vchannels) * count
        steps = (0, 0) if query is None else (count, count)
        self.dims = (height, width, channels, vchannels, count, groups, sets, grid, tall, columns, *steps)
        self.tables = _tables(sizes, points, None if query is None else size, grid, self.dtype)
        self.size = size

    def maps(self, space):
        """Return query, key and value as maps with adjacent channels of key and value."""
        q = self.nothing if self.query is None else flat(self.query)
        k = self.nothing if self.key is None else self._rows(self.key, space)
        return q, k, k if self.value is None else self._rows(self.value, space)

    def _rows(self, t, space):
        return rows(t.mT.unsqueeze(2), space) if t.numel() else self.nothing

    def offsets(self, t):
        return floats(t, self.dtype)

    def bias(self, t):
        """Return the bias as a map of all queries, with stride 0 along dimensions of size 1."""
        if t is None:
            return self.empty
        data, strides = floats(t, self.dtype)
        return Map(data, tuple(0 if n == 1 else s for n, s in zip(t.shape, strides, strict=True)))


def _tables(sizes, points, size, grid, dtype):
    """Return the tables of ``nodes``, and factor and shift from offset to position along x and y.

    The shifts of representative attention are the anchors [cells, nodes]; ``size`` is None for given weights.
    """
    maps = [np.repeat(np.array(each, np.int64), points) for each in (sizes[1::2], sizes[::2])]
    starts = np.cumsum([0] + [h * w for h, w in zip(sizes[::2], sizes[1::2], strict=True)])[:-1]
    table = np.concatenate((*maps, np.repeat(starts, points)))
    widths = np.concatenate(maps).astype(dtype)
    if size is None:
        shifts = np.full(len(maps[0]), -0.5, dtype)
        return table, widths + dtype(1), widths, shifts, shifts
    anchors = []
    for length, other in ((size[1], maps[0]), (size[0], maps[1])):
        x = np.arange(0, length, grid).astype(dtype)[:, None]
        carried = (x + dtype(0.5)) * other.astype(dtype) / dtype(length) - dtype(0.5)
        anchors.append(np.where(other == length, x, carried).reshape(-1))
    return table, widths + dtype(1), np.ones_like(widths), *anchors


def _target(grad, size, dtype, space, batch=None):
    """Return the map that kernels write the gradient of each query to, and its rows if they are not ``grad`` itself."""
    shape = (grad.shape[0] if batch is None else batch, *size, grad.shape[1])
    wanted = torch.float64 if dtype is np.float64 else torch.float32
    if grad.dtype == wanted and tuple(grad.permute(0, 2, 3, 1).shape) == shape:
        return flat(grad), None
    data = scratch(space, int(np.prod(shape)), dtype)
    strides = np.cumprod((1, *shape[:0:-1]))[::-1].tolist()
    return Map(data, (strides[0], 1, strides[1], strides[2])), data.reshape(shape)


def _zero(t: Tensor) -> None:
    if t.numel():
        flat(t).data[...] = 0


def _slice_width(batch: int, groups: int, channels: int) -> int:
    """Return the channels of a slice: a group or a part of it, and small enough for every thread to get one."""
    pieces = max(cells(channels, SLICE), cells(torch.get_num_threads(), max(1, batch * groups)))
    return min(channels, cells(cells(channels, pieces), BLOCK) * BLOCK)
