"""The two passes: prepare arrays, run the kernels on threads, reduce gradients.

Offsets, bias and their gradients are float32 here (float64 for float64 features), whatever their dtype, so that there
is one kernel for each dtype of features.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.cpu.attention import attend, attend_backward, scatter
from repgraph.ops.cpu.maps import (
    SLICE,
    Map,
    copied_rows,
    copy_rows,
    flat,
    float_rows,
    new_rows,
    rows,
    rows_of,
    scratch,
    slice_width,
    workspace,
    write_floats,
)
from repgraph.ops.cpu.memory import VECTOR
from repgraph.ops.cpu.pool import run
from repgraph.ops.geometry import cells

READS = 4  # of nodes for each position of the maps, from which on a copy of the maps pays
ROWS, QUERIES = 4, 128  # of a tile; it may have more queries


def forward(
    query: Tensor | None, key: Tensor | None, value: Tensor | None, offsets: Tensor, bias: Tensor | None,
    sizes: Sequence[int], points: Sequence[int], groups: int, sets: int, grid: int, scale: float, training: bool,
    with_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (y, lse, weights, response), of which lse and response are empty; see ``repgraph.ops.library``."""
    results = library.outputs(query, key, value, offsets, bias, sizes, groups, sets, "cpu", training, with_weights)
    y, _, weights, _ = results
    if y.numel() == 0:
        return results
    key, value, sizes, points = library.flattened(query, key, value, offsets, sizes, points, sets)
    with workspace() as space:
        call = _Call(key, value, offsets, bias, sizes, points, groups, sets, grid, y.shape[2:], query, space)
        q = call.nothing if query is None else flat(query)
        tensors = (*q, *call.features, *flat(y), weights.numpy().reshape(-1), *call.offsets, *call.bias)
        run(attend, call.tasks, call.work, *tensors, *call.options, call.dtype(scale))
    return results


def backward(
    grad: Tensor, grad_weights: Tensor | None, query: Tensor | None, key: Tensor | None, value: Tensor | None,
    offsets: Tensor, bias: Tensor | None, response: Tensor, lse: Tensor, sizes: Sequence[int], points: Sequence[int],
    groups: int, sets: int, grid: int, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of the five tensors; the softmax is recomputed."""
    results = library.gradients(query, key, value, offsets, bias)
    grad_query, grad_key, grad_value, grad_offsets, grad_bias = results
    if grad.numel() == 0:
        for each in results:
            each.zero_()
        return results
    key, value, sizes, points = library.flattened(query, key, value, offsets, sizes, points, sets)
    with workspace() as space:
        call = _Call(key, value, offsets, bias, sizes, points, groups, sets, grid, grad.shape[2:], query, space)
        kind, (batch, vchannels, height, width) = call.dtype, grad.shape
        channels, count, positions = call.dims[2], sum(points), call.positions
        extra: np.ndarray = np.empty(0, kind)
        if grad_weights is not None:
            extra = np.ascontiguousarray(grad_weights.detach().resolve_neg().numpy()).reshape(-1)
        g = flat(grad)
        q, own_q = (call.nothing, call.nothing) if query is None else (flat(query), flat(grad_query))
        go = _target(grad_offsets, (batch, height, width), kind, space)
        gb = call.empty if bias is None else _target(grad_bias, (batch, height, width), kind, space)
        if query is None:
            assert bias is not None
            data, (sb, _, sh, sw) = call.bias
            ps = ds = Map(data, (sb, count, sh, sw))
        else:
            strides = (groups * height * width * count, height * width * count, width * count, count)
            ps, ds = (Map(scratch(space, batch * strides[0], kind), strides) for _ in range(2))
        tensors = (*g, *q, *call.features, *own_q, extra, *call.offsets, *go, *call.bias, *gb)
        run(attend_backward, call.tasks, 2 * call.work, *tensors, *call.options, kind(scale), ps.data, ds.data)
        shared = value is None
        widest = max(channels, vchannels) // groups
        wide = min(widest, slice_width(widest, SLICE, batch * groups))
        pieces = cells(channels // groups, wide) + (0 if shared else cells(vchannels // groups, wide))
        targets = (each for t in (grad_key, grad_value) for each in _columns(t, call.nothing))
        if positions:
            tensors = (*g, *q, *call.offsets, *ps, *ds, *call.options[:2])
            dims = (*call.dims[:8], positions)
            run(scatter, batch * groups * pieces, call.work, *tensors, dims, wide, *targets, shared)
        _finish(go, grad_offsets, (batch, height, width), grid)
        if bias is not None:
            _finish(gb, grad_bias, (batch, height, width))
    return results


def _columns(t: Tensor, nothing: Map) -> Map:
    """Return a gradient with strides of batch, channel, 0 and position; an empty one is ``nothing``."""
    if t.numel() == 0:
        return nothing
    data, (sb, sn, sc) = flat(library.flat([t]) if t.dim() == 4 else t)
    return Map(data, (sb, sc, 0, sn))


class _Call:
    """Sizes, tables and inputs of a call as rows, for both passes."""

    def __init__(self, key, value, offsets, bias, sizes, points, groups, sets, grid, size, query, space):
        features = value if key is None else key
        double = features.dtype == torch.float64
        self.dtype: type = np.float64 if double else np.float32
        self.nothing = Map(flat(features.new_empty(1, 1, 1, 1)).data[:0], (0, 1, 0, 0))
        self.empty = Map(np.empty(0, self.dtype), (0, 1, 0, 0))
        (batch, self.positions, _), count, (height, width) = features.shape, sum(points), size
        if self.positions >= 1 << 31:
            raise ValueError(f"the maps have {self.positions} positions; the CPU backend has at most 2 ** 31 - 1")
        channels = 0 if query is None else query.shape[1]
        vchannels = (key if value is None else value).shape[2]
        tall = min(ROWS, height)
        columns = cells(width, max(1, width // (QUERIES // max(1, tall)))) or 1
        self.tasks = batch * sets * cells(height, tall) * cells(width, columns)
        self.work = batch * height * width * (channels + vchannels) * count
        self.dims = (height, width, channels, vchannels, count, groups, sets, grid, tall, columns)
        # Rows of a group next to each other are read faster, which is worth a copy for many reads.
        apart = sets == groups > 1 and height * width * count >= READS * self.positions
        k = self.nothing if key is None else self._rows(key, groups, apart, space)
        v = k if value is None else self._rows(value, groups, apart, space)
        self.features = (*k, *v)
        self.offsets = float_rows(offsets, self.dtype, space)
        self.bias = self.empty if bias is None else float_rows(bias, self.dtype, space)
        if bias is not None:
            pairs = zip(bias.shape, self.bias.strides, strict=True)
            self.bias = Map(self.bias.data, tuple(0 if n == 1 else s for n, s in pairs))
        # Kernels read a row of zeros off the maps, of which they know the index relative to key and value.
        self.zeros = np.zeros(max(channels, vchannels) + VECTOR, v.data.dtype)
        nowhere = tuple((self.zeros.ctypes.data - t.data.ctypes.data) // t.data.itemsize for t in (k, v))
        given = query is None
        tables, steps = _tables(sizes, points, None if given else tuple(size), grid, self.dtype)
        self.options = tables, steps, self.dims, nowhere

    def _rows(self, t, groups, apart, space):
        """Return rows with strides of batch, group and position; ``apart``: the rows of a group one after the other."""
        if t.numel() == 0:
            return self.nothing
        length = t.shape[2] // groups
        if apart:
            data, (batch, _, group, position) = copied_rows(t.unflatten(2, (groups, length)).permute(0, 3, 2, 1), space)
        else:
            data, (batch, _, _, position) = rows(t.mT[:, :, None], space)
            group = length
        return Map(data, (batch, group, position))


@lru_cache(256)
def _tables(sizes, points, size, grid, dtype):
    """Return the tables of ``nodes``, and the steps from one cell to the next in the tables of shifts along x and y.

    The shifts of representative attention are the anchors [cells, nodes]; ``size`` is None for given weights.
    """
    heights, widths = (np.array(sizes[start::2], np.int32) for start in (0, 1))
    starts = np.cumsum(heights * widths) - heights * widths
    pad = (0, -sum(points) % VECTOR)
    table = np.concatenate([np.pad(np.repeat(each, points), pad) for each in (widths, heights, starts)], dtype=np.int32)
    pitch = len(table) // 3
    lengths = table[: 2 * pitch].astype(dtype)
    if size is None:
        shifts = np.full(pitch, -0.5, dtype)
        return (table, lengths + dtype(1), lengths, shifts, shifts), (0, 0)
    anchors = []
    for length, other in ((size[1], lengths[:pitch]), (size[0], lengths[pitch:])):
        x = np.arange(0, length, grid).astype(dtype)[:, None]
        carried = (x + dtype(0.5)) * other / dtype(length) - dtype(0.5)
        anchors.append(np.where(other == length, x, carried).reshape(-1))
    return (table, lengths + dtype(1), np.ones_like(lengths), *anchors), (pitch, pitch)


def _target(grad, shape, dtype, space):
    """Return rows that kernels write the gradient of each query to: of ``grad`` itself if they can."""
    wanted = torch.float64 if dtype is np.float64 else torch.float32
    if grad.dtype == wanted and (grad.shape[0], *grad.shape[2:]) == shape:
        return rows_of(grad, space)
    return new_rows((shape[0], grad.shape[1], *shape[1:]), space, dtype)


def _finish(source, grad, shape, grid=1):
    """Sum the gradients of queries over cells of a grid and over dimensions of size 1, in float64, to ``grad``."""
    if grad.element_size() == source.data.itemsize and (grad.shape[0], *grad.shape[2:]) == shape:
        copy_rows(source, grad)
        return
    last = source.data.reshape(*shape, -1)
    for axis, (length, wanted) in enumerate(zip(shape, (grad.shape[0], *grad.shape[2:]), strict=True)):
        if length != wanted:
            starts = np.arange(0, length, grid if grid > 1 else length)
            last = np.add.reduceat(last, starts, axis, dtype=np.float64)
    write_floats(grad, last)
