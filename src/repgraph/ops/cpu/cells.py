"""Attention in which the queries of a cell share its nodes (grid > 1), and the gradients of query and offsets.

A task is up to ``PART`` rows of queries of one row of cells, so that a cell as large as the map is many tasks. The
nodes of a cell are read once, into scratch. Backward, their gradients are summed in scratch over queries first.
"""

import numpy as np

from repgraph.ops.cpu.arithmetic import add_row, add_rows, dot, fill, softmax, softmax_backward
from repgraph.ops.cpu.direct import corner_products, slopes
from repgraph.ops.cpu.geometry import list_corners, top_left
from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, next_task, read_tile, store, write_tile

PART = 8  # rows of queries in a task, at most
TILE = 32  # columns of a tile, at most


@inline
def task_rows(task, height, grid, parts, cell_rows):
    """Return batch index, row of cells, first row of queries and number of rows (0 if the last cells end before)."""
    b, rest = task // (cell_rows * parts), task % (cell_rows * parts)
    cell_row, part = rest // parts, rest % parts
    top = cell_row * grid + part * PART
    return b, cell_row, top, max(0, min(PART, min(grid, height - cell_row * grid) - part * PART))


@inline
def tile_columns(left, width, grid):
    """Return the columns of the tile that starts at ``left``: whole cells if they fit, else a piece of one."""
    if grid <= TILE:
        return min(TILE // grid * grid, width - left)
    return min(TILE, min(width, (left // grid + 1) * grid) - left)


@inline
def sample(source, channels, lefts, fractions, at, count, size, base, strides, nodes, index, weight, node):
    """Read the nodes of a cell by bilinear interpolation into ``nodes`` [S, channels]."""
    zero = fractions.dtype.type(0)
    found = list_corners(lefts, fractions, at, count, size, base, strides, index, weight, node)
    begin = 0
    for n in range(count):
        nothing = zero * (load(fractions, at + 2 * n) + load(fractions, at + 2 * n + 1))
        fill(nodes, n * channels, channels, nothing)  # NaN for a NaN offset, which reads nothing
        end = begin
        while end < found and load(node, end) == n:
            end += 1
        add_rows(nodes, n * channels, source, 0, index[begin:end], weight[begin:end], end - begin, channels)
        begin = end


@jit
def attend(counter, tasks, q, qs, k, ks, v, vs, y, ys, lse, weights, lefts, fractions, dims, scale, shared):
    """Write the outputs; arguments as in ``direct.attend``. ``shared``: the value is the key."""
    height, width, channels, vchannels, count, groups, grid = dims
    size = (height, width)
    kind = fractions.dtype
    zero = kind.type(0)
    cell_rows, cell_columns = (height + grid - 1) // grid, (width + grid - 1) // grid
    parts = (min(grid, height) + PART - 1) // PART
    qt, yt = np.empty(PART * TILE * channels, kind), np.empty(PART * TILE * vchannels, kind)
    keys = np.empty(count * channels, kind)
    values = keys if shared else np.empty(count * vchannels, kind)
    scratch = (np.empty(4 * count, np.int64), np.empty(4 * count, kind), np.empty(4 * count, np.int64))
    own = np.arange(count) * vchannels  # the rows of nodes, for ``add_rows``
    p = np.empty(count, kind)
    length, vlength = channels // groups, vchannels // groups
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, cell_row, top, rows = task_rows(task, height, grid, parts, cell_rows)
        left, sampled = 0, -1
        while left < width and rows > 0:
            columns = tile_columns(left, width, grid)
            read_tile(q, qs, (b, 0, top, left), rows, columns, channels, qt, 0, channels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                if column // grid != sampled:
                    sampled = column // grid
                    at = ((b * cell_rows + cell_row) * cell_columns + sampled) * count * 2
                    sample(k, channels, lefts, fractions, at, count, size, b * ks[0], ks[2:], keys, *scratch)
                    if not shared:
                        sample(v, vchannels, lefts, fractions, at, count, size, b * vs[0], vs[2:], values, *scratch)
                for g in range(groups):
                    for n in range(count):
                        logit = dot(qt, i * channels + g * length, keys, n * channels + g * length, length, zero)
                        store(p, n, scale * logit)
                    store(lse, ((b * groups + g) * height + row) * width + column, softmax(p, 0, count))
                    if weights.size:
                        for n in range(count):
                            store(weights, (((b * groups + g) * count + n) * height + row) * width + column, load(p, n))
                    end = i * vchannels + g * vlength
                    fill(yt, end, vlength, zero)
                    add_rows(yt, end, values, g * vlength, own, p, count, vlength)
            write_tile(y, ys, (b, 0, top, left), rows, columns, vchannels, yt, 0, vchannels)
            left += columns


@inline
def add_offset_gradients(grads, channels, source, base, strides, lefts, fractions, at, count, size, target, to):
    """Add the offset gradients of a cell, given the gradients [S, channels] of its nodes."""
    one = fractions.dtype.type(1)
    for n in range(count):
        x, y = top_left(lefts, at + 2 * n)
        tx, ty = load(fractions, at + 2 * n), load(fractions, at + 2 * n + 1)
        nothing = (tx + ty) * fractions.dtype.type(0)
        products = corner_products(grads, n * channels, source, base, strides, x, y, size, channels, nothing)
        along, down = slopes(products, tx, ty, one)
        store(target, to + 2 * n, load(target, to + 2 * n) + along)
        store(target, to + 2 * n + 1, load(target, to + 2 * n + 1) + down)


@jit
def attend_backward(
    counter, tasks, grad, grads, q, qs, k, ks, v, vs, grad_q, grad_qs, grad_weights, lefts, fractions, dims, scale, p,
    d, grad_nodes, shared,
):  # fmt: skip
    """Write the gradients; arguments as in ``direct.attend_backward``, ``grad_nodes`` is [B, Hc, parts, Wc, S, 2]."""
    height, width, channels, vchannels, count, groups, grid = dims
    size = (height, width)
    kind = fractions.dtype
    zero = kind.type(0)
    cell_rows, cell_columns = (height + grid - 1) // grid, (width + grid - 1) // grid
    parts = (min(grid, height) + PART - 1) // PART
    qt, dt = np.empty(PART * TILE * channels, kind), np.empty(PART * TILE * channels, kind)
    yt = np.empty(PART * TILE * vchannels, kind)
    keys, grad_keys = np.empty(count * channels, kind), np.empty(count * channels, kind)
    values = keys if shared else np.empty(count * vchannels, kind)
    grad_values = grad_keys if shared else np.empty(count * vchannels, kind)
    scratch = (np.empty(4 * count, np.int64), np.empty(4 * count, kind), np.empty(4 * count, np.int64))
    own = np.arange(count) * channels
    length, vlength = channels // groups, vchannels // groups
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, cell_row, top, rows = task_rows(task, height, grid, parts, cell_rows)
        nodes = task * cell_columns * count * 2
        fill(grad_nodes, nodes, cell_columns * count * 2, zero)
        left, sampled = 0, -1
        while left < width and rows > 0:
            columns = tile_columns(left, width, grid)
            read_tile(q, qs, (b, 0, top, left), rows, columns, channels, qt, 0, channels)
            read_tile(grad, grads, (b, 0, top, left), rows, columns, vchannels, yt, 0, vchannels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                at = ((b * cell_rows + cell_row) * cell_columns + column // grid) * count * 2
                if column // grid != sampled:
                    sampled = column // grid
                    sample(k, channels, lefts, fractions, at, count, size, b * ks[0], ks[2:], keys, *scratch)
                    fill(grad_keys, 0, count * channels, zero)
                    if not shared:
                        sample(v, vchannels, lefts, fractions, at, count, size, b * vs[0], vs[2:], values, *scratch)
                        fill(grad_values, 0, count * vchannels, zero)
                query = (b * height + row) * width + column
                for g in range(groups):
                    start = (query * groups + g) * count
                    qi, yi = i * channels + g * length, i * vchannels + g * vlength
                    for n in range(count):
                        logit = dot(qt, qi, keys, n * channels + g * length, length, zero)
                        store(p, start + n, scale * logit)
                        value = dot(yt, yi, values, n * vchannels + g * vlength, vlength, zero)
                        if grad_weights.size:
                            value += load(
                                grad_weights, (((b * groups + g) * count + n) * height + row) * width + column
                            )
                        store(d, start + n, value)
                    softmax(p, start, count)
                    softmax_backward(p, d, start, count, scale)
                    for n in range(count):
                        add_row(grad_keys, n * channels + g * length, qt, qi, load(d, start + n), length)
                        add_row(grad_values, n * vchannels + g * vlength, yt, yi, load(p, start + n), vlength)
                    fill(dt, qi, length, zero)
                    add_rows(dt, qi, keys, g * length, own, d[start : start + count], count, length)
                if i + 1 == rows * columns or left + (i + 1) // rows >= (sampled + 1) * grid:
                    to = nodes + sampled * count * 2
                    add_offset_gradients(
                        grad_keys, channels, k, b * ks[0], ks[2:], lefts, fractions, at, count, size, grad_nodes, to
                    )
                    if not shared:
                        add_offset_gradients(
                            grad_values, vchannels, v, b * vs[0], vs[2:], lefts, fractions, at, count, size,
                            grad_nodes, to,
                        )  # fmt: skip
                    sampled = -1
            write_tile(grad_q, grad_qs, (b, 0, top, left), rows, columns, channels, dt, 0, channels)
            left += columns
