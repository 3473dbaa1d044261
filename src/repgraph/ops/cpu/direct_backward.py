"""Backward where every query has nodes of its own (grid 1): gradients of query and offsets.

The dot products of a query with the four corners of a node give its logit and the logit's derivative in the
node's position at once. What each node's weight and logit get is left in ``p`` and ``d`` [B, H, W, G, S] for
``scatter``.
"""

import numpy as np

from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, store, take
from repgraph.ops.cpu.nodes import left_top, list_corners, weigh
from repgraph.ops.cpu.rows import add_rows, dot, dot_corners, fill
from repgraph.ops.cpu.softmax import differentiate, softmax
from repgraph.ops.cpu.tiles import even_columns, read_tile, write_tile

TILE = 32


@inline
def corner_products(a, i, source, base, strides, x, y, size, length, zero):
    """Dot products of a row with the four corners of the node at (x, y); 0 for those outside the map."""
    height, width = size
    sh, sw = strides
    j = base + y * sh + x * sw
    if 0 <= x < width - 1 and 0 <= y < height - 1:
        return dot_corners(a, i, source, j, j + sw, j + sh, j + sh + sw, length, zero)
    d0 = d1 = d2 = d3 = zero
    if 0 <= y < height:
        if 0 <= x < width:
            d0 = dot(a, i, source, j, length, zero)
        if 0 <= x + 1 < width:
            d1 = dot(a, i, source, j + sw, length, zero)
    if 0 <= y + 1 < height:
        if 0 <= x < width:
            d2 = dot(a, i, source, j + sh, length, zero)
        if 0 <= x + 1 < width:
            d3 = dot(a, i, source, j + sh + sw, length, zero)
    return d0, d1, d2, d3


@inline
def slopes(d, tx, ty, one):
    """Derivatives in x and y of the bilinear interpolation of four corner values."""
    along = (one - ty) * (d[1] - d[0]) + ty * (d[3] - d[2])
    down = (one - tx) * (d[2] - d[0]) + tx * (d[3] - d[1])
    return along, down


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
):
    """A task is a strip of rows. ``grads`` are the strides of ``grad``; ``grad_weights`` may be empty."""
    height, width, channels, vchannels, count, groups, strip = dims
    size = (height, width)
    kind = fractions.dtype
    zero, one = kind.type(0), kind.type(1)
    strips, tile = (height + strip - 1) // strip, even_columns(width, TILE)
    qt, dt = np.empty(strip * tile * channels, kind), np.empty(strip * tile * channels, kind)
    yt = np.empty(strip * tile * vchannels, kind)
    index, node = np.empty(4 * count, np.int64), np.empty(4 * count, np.int64)
    weight, scaled = np.empty(4 * count, kind), np.empty(4 * count, kind)
    slope = np.empty(4 * groups * count, kind)  # of logit and weight gradient, in x and y
    length, vlength = channels // groups, vchannels // groups
    while True:
        task = take(counter)
        if task >= tasks:
            return
        b, top = task // strips, task % strips * strip
        rows = min(strip, height - top)
        for left in range(0, width, tile):
            columns = min(tile, width - left)
            base = b * qs[0] + top * qs[2] + left * qs[3]
            read_tile(q, base, qs[1:], rows, columns, channels, qt, 0, channels)
            base = b * grads[0] + top * grads[2] + left * grads[3]
            read_tile(grad, base, grads[1:], rows, columns, vchannels, yt, 0, vchannels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                cell = (b * height + row) * width + column
                at, pd = cell * count * 2, cell * groups * count
                for n in range(count):
                    x, y = left_top(lefts, at + 2 * n)
                    tx, ty = load(fractions, at + 2 * n), load(fractions, at + 2 * n + 1)
                    w = weigh(fractions, at + 2 * n)
                    nothing = (tx + ty) * zero  # NaN for a NaN offset, which reads nothing
                    for g in range(groups):
                        e = corner_products(
                            qt,
                            i * channels + g * length,
                            k,
                            b * ks[0] + g * length,
                            ks[2:],
                            x,
                            y,
                            size,
                            length,
                            nothing,
                        )
                        f = corner_products(
                            yt,
                            i * vchannels + g * vlength,
                            v,
                            b * vs[0] + g * vlength,
                            vs[2:],
                            x,
                            y,
                            size,
                            vlength,
                            nothing,
                        )
                        to = g * count + n
                        store(p, pd + to, scale * (w[0] * e[0] + w[1] * e[1] + w[2] * e[2] + w[3] * e[3]))
                        value = w[0] * f[0] + w[1] * f[1] + w[2] * f[2] + w[3] * f[3]
                        if grad_weights.size:
                            value += load(
                                grad_weights,
                                ((b * groups + g) * count + n) * height * width + row * width + column,
                            )
                        store(d, pd + to, value)
                        along, down = slopes(e, tx, ty, one)
                        store(slope, 4 * to, along)
                        store(slope, 4 * to + 1, down)
                        along, down = slopes(f, tx, ty, one)
                        store(slope, 4 * to + 2, along)
                        store(slope, 4 * to + 3, down)
                for g in range(groups):
                    softmax(p, pd + g * count, count)
                    differentiate(p, d, pd + g * count, count, scale)
                for n in range(count):
                    along, down = zero, zero
                    for g in range(groups):
                        to = g * count + n
                        a, c = load(d, pd + to), load(p, pd + to)
                        along += a * load(slope, 4 * to) + c * load(slope, 4 * to + 2)
                        down += a * load(slope, 4 * to + 1) + c * load(slope, 4 * to + 3)
                    store(grad_nodes, at + 2 * n, along)
                    store(grad_nodes, at + 2 * n + 1, down)
                found = list_corners(lefts, fractions, at, count, size, b * ks[0], ks[2:], index, weight, node)
                for g in range(groups):
                    start = pd + g * count
                    for m in range(found):
                        store(scaled, m, load(weight, m) * load(d, start + load(node, m)))
                    end = i * channels + g * length
                    fill(dt, end, length, load(d, start) * zero)
                    add_rows(dt, end, k, g * length, index, scaled, found, length)
            base = b * grad_qs[0] + top * grad_qs[2] + left * grad_qs[3]
            write_tile(grad_q, base, grad_qs[1:], rows, columns, channels, dt, 0, channels)
