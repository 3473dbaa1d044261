"""Backward where the queries of a cell share its nodes (grid > 1): gradients of query and offsets.

As ``direct_backward``, but nodes are in scratch, and so are their gradients, summed over the queries of a
part of the cell; the dot products of these with the corners give the derivative in the node's position.
"""

import numpy as np

from repgraph.ops.cpu.cells import PART, TILE, own_rows, sample, task_rows, tile_columns
from repgraph.ops.cpu.direct_backward import corner_products, slopes
from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, store, take
from repgraph.ops.cpu.nodes import left_top
from repgraph.ops.cpu.rows import add_row, add_rows, dot, fill
from repgraph.ops.cpu.softmax import differentiate, softmax
from repgraph.ops.cpu.tiles import read_tile, write_tile


@inline
def add_slopes(grads, channels, source, base, strides, lefts, fractions, at, count, size, target, to):
    """Add the offset gradients of a cell's nodes, given the nodes' gradients [S, channels]."""
    one = fractions.dtype.type(1)
    for n in range(count):
        x, y = left_top(lefts, at + 2 * n)
        tx, ty = load(fractions, at + 2 * n), load(fractions, at + 2 * n + 1)
        nothing = (tx + ty) * fractions.dtype.type(0)
        products = corner_products(grads, n * channels, source, base, strides, x, y, size, channels, nothing)
        along, down = slopes(products, tx, ty, one)
        store(target, to + 2 * n, load(target, to + 2 * n) + along)
        store(target, to + 2 * n + 1, load(target, to + 2 * n + 1) + down)


@jit
def differentiate_queries(
    counter,
    tasks,
    grad,
    grads,
    q,
    qs,
    k,
    ks,
    v,
    vs,
    grad_q,
    grad_qs,
    grad_weights,
    lefts,
    fractions,
    dims,
    scale,
    p,
    d,
    grad_nodes,
    shared,
):
    """Arguments as in ``direct_backward``; ``grad_nodes`` is [B, Hc, parts, Wc, S, 2]."""
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
    index, node = np.empty(4 * count, np.int64), np.empty(4 * count, np.int64)
    weight = np.empty(4 * count, kind)
    own = np.empty(count, np.int64)
    own_rows(own, count, channels)
    length, vlength = channels // groups, vchannels // groups
    while True:
        task = take(counter)
        if task >= tasks:
            return
        b, cell_row, top, rows = task_rows(task, height, grid, parts, cell_rows)
        nodes = task * cell_columns * count * 2
        fill(grad_nodes, nodes, cell_columns * count * 2, zero)
        left, sampled = 0, -1
        while left < width and rows > 0:
            columns = tile_columns(left, width, grid)
            base = b * qs[0] + top * qs[2] + left * qs[3]
            read_tile(q, base, qs[1:], rows, columns, channels, qt, 0, channels)
            base = b * grads[0] + top * grads[2] + left * grads[3]
            read_tile(grad, base, grads[1:], rows, columns, vchannels, yt, 0, vchannels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                at = ((b * cell_rows + cell_row) * cell_columns + column // grid) * count * 2
                if column // grid != sampled:
                    sampled = column // grid
                    sample(
                        k,
                        channels,
                        lefts,
                        fractions,
                        at,
                        count,
                        size,
                        b * ks[0],
                        ks[2:],
                        keys,
                        index,
                        weight,
                        node,
                    )
                    fill(grad_keys, 0, count * channels, zero)
                    if not shared:
                        sample(
                            v,
                            vchannels,
                            lefts,
                            fractions,
                            at,
                            count,
                            size,
                            b * vs[0],
                            vs[2:],
                            values,
                            index,
                            weight,
                            node,
                        )
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
                                grad_weights,
                                ((b * groups + g) * count + n) * height * width + row * width + column,
                            )
                        store(d, start + n, value)
                    softmax(p, start, count)
                    differentiate(p, d, start, count, scale)
                    for n in range(count):
                        add_row(grad_keys, n * channels + g * length, qt, qi, load(d, start + n), length)
                        add_row(grad_values, n * vchannels + g * vlength, yt, yi, load(p, start + n), vlength)
                    fill(dt, qi, length, zero)
                    add_rows(dt, qi, keys, g * length, own, d[start : start + count], count, length)
                if i + 1 == rows * columns or left + (i + 1) // rows >= (sampled + 1) * grid:
                    to = nodes + sampled * count * 2
                    add_slopes(
                        grad_keys,
                        channels,
                        k,
                        b * ks[0],
                        ks[2:],
                        lefts,
                        fractions,
                        at,
                        count,
                        size,
                        grad_nodes,
                        to,
                    )
                    if not shared:
                        add_slopes(
                            grad_values,
                            vchannels,
                            v,
                            b * vs[0],
                            vs[2:],
                            lefts,
                            fractions,
                            at,
                            count,
                            size,
                            grad_nodes,
                            to,
                        )
                    sampled = -1
            base = b * grad_qs[0] + top * grad_qs[2] + left * grad_qs[3]
            write_tile(grad_q, base, grad_qs[1:], rows, columns, channels, dt, 0, channels)
            left += columns
