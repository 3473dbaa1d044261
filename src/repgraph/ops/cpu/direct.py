"""Attention in which every query has its own nodes (grid 1), and the gradients of query and offsets.

A task is a strip of rows, processed in tiles, column-major. Forward, a tile takes two passes (keys, then values), so
that what neighbouring queries read stays in the cache. Nodes are never stored.

Backward, the dot products of a query with the corners of a node give its logit and the derivatives in x and y at once.
Weights and logit gradients are stored in ``p`` and ``d`` [B, H, W, G, S], for ``scatter``.
"""

import numpy as np

from repgraph.ops.cpu.arithmetic import add_rows, dot, dot_corners, dot_node, fill, softmax, softmax_backward
from repgraph.ops.cpu.geometry import corner_weights, list_corners, top_left
from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import even_columns, load, next_task, read_tile, store, write_tile

TILE = 32  # columns of a tile, at least


@inline
def node_logits(q, qi, k, base, strides, lefts, fractions, at, size, groups, length, scale, logits, end, count):
    """Write the logits of one node for all groups, to logits[end + g * count]."""
    height, width = size
    sh, sw = strides
    x, y = top_left(lefts, at)
    w = corner_weights(fractions, at)
    nothing = (w[0] + w[3]) * fractions.dtype.type(0)  # NaN for a NaN offset, which reads nothing
    j0 = base + y * sh + x * sw
    if 0 <= x < width - 1 and 0 <= y < height - 1:
        for g in range(groups):
            c = g * length
            total = dot_node(q, qi + c, k, j0 + c, j0 + c + sw, j0 + c + sh, j0 + c + sh + sw, w, length, nothing)
            store(logits, end + g * count, scale * total)
        return
    for g in range(groups):
        total = nothing
        for i in range(4):
            dx, dy = i & 1, i >> 1
            if 0 <= x + dx < width and 0 <= y + dy < height:
                total += w[i] * dot(q, qi + g * length, k, j0 + g * length + dy * sh + dx * sw, length, nothing)
        store(logits, end + g * count, scale * total)


@jit
def attend(counter, tasks, q, qs, k, ks, v, vs, y, ys, lse, weights, lefts, fractions, dims, scale):
    """Write ``y``, ``lse`` and, if it is not empty, ``weights``. Each map is followed by its strides (b, c, h, w)."""
    height, width, channels, vchannels, count, groups, strip = dims
    size = (height, width)
    kind = fractions.dtype
    zero = kind.type(0)
    strips, tile = (height + strip - 1) // strip, even_columns(width, TILE)
    qt = np.empty(strip * tile * channels, kind)
    yt = np.empty(strip * tile * vchannels, kind)
    p = np.empty(strip * tile * groups * count, kind)
    index, node = np.empty(4 * count, np.int64), np.empty(4 * count, np.int64)
    weight, scaled = np.empty(4 * count, kind), np.empty(4 * count, kind)
    per_group, length = channels // groups, vchannels // groups
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, top = task // strips, task % strips * strip
        rows = min(strip, height - top)
        for left in range(0, width, tile):
            columns = min(tile, width - left)
            read_tile(q, qs, (b, 0, top, left), rows, columns, channels, qt, 0, channels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                at = ((b * height + row) * width + column) * count * 2
                for n in range(count):
                    node_logits(
                        qt, i * channels, k, b * ks[0], ks[2:], lefts, fractions, at + 2 * n, size, groups, per_group,
                        scale, p, i * groups * count + n, count,
                    )  # fmt: skip
                for g in range(groups):
                    start = (i * groups + g) * count
                    lse[((b * groups + g) * height + row) * width + column] = softmax(p, start, count)
                    if weights.size:
                        for n in range(count):
                            weights[(((b * groups + g) * count + n) * height + row) * width + column] = p[start + n]
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                at = ((b * height + row) * width + column) * count * 2
                found = list_corners(lefts, fractions, at, count, size, b * vs[0], vs[2:], index, weight, node)
                for g in range(groups):
                    start = (i * groups + g) * count
                    for m in range(found):
                        store(scaled, m, load(weight, m) * load(p, start + load(node, m)))
                    end = i * vchannels + g * length
                    fill(yt, end, length, p[start] * zero)
                    add_rows(yt, end, v, g * length, index, scaled, found, length)
            write_tile(y, ys, (b, 0, top, left), rows, columns, vchannels, yt, 0, vchannels)


@inline
def corner_products(a, i, source, base, strides, x, y, size, length, zero):
    """Return the dot products of a row with the four corners of the node at (x, y); zero for corners off the map."""
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
    """Return the derivatives in x and y of the bilinear interpolation of four corner values."""
    along = (one - ty) * (d[1] - d[0]) + ty * (d[3] - d[2])
    down = (one - tx) * (d[2] - d[0]) + tx * (d[3] - d[1])
    return along, down


@jit
def attend_backward(
    counter, tasks, grad, grads, q, qs, k, ks, v, vs, grad_q, grad_qs, grad_weights, lefts, fractions, dims, scale, p,
    d, grad_nodes,
):  # fmt: skip
    """Write the gradients of query and node positions, and ``p`` and ``d``; ``grad_weights`` may be empty."""
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
        task = next_task(counter)
        if task >= tasks:
            return
        b, top = task // strips, task % strips * strip
        rows = min(strip, height - top)
        for left in range(0, width, tile):
            columns = min(tile, width - left)
            read_tile(q, qs, (b, 0, top, left), rows, columns, channels, qt, 0, channels)
            read_tile(grad, grads, (b, 0, top, left), rows, columns, vchannels, yt, 0, vchannels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                cell = (b * height + row) * width + column
                at, pd = cell * count * 2, cell * groups * count
                for n in range(count):
                    x, y = top_left(lefts, at + 2 * n)
                    tx, ty = load(fractions, at + 2 * n), load(fractions, at + 2 * n + 1)
                    w = corner_weights(fractions, at + 2 * n)
                    nothing = (tx + ty) * zero  # NaN for a NaN offset, which reads nothing
                    for g in range(groups):
                        qi, base = i * channels + g * length, b * ks[0] + g * length
                        e = corner_products(qt, qi, k, base, ks[2:], x, y, size, length, nothing)
                        yi, base = i * vchannels + g * vlength, b * vs[0] + g * vlength
                        f = corner_products(yt, yi, v, base, vs[2:], x, y, size, vlength, nothing)
                        to = g * count + n
                        store(p, pd + to, scale * (w[0] * e[0] + w[1] * e[1] + w[2] * e[2] + w[3] * e[3]))
                        value = w[0] * f[0] + w[1] * f[1] + w[2] * f[2] + w[3] * f[3]
                        if grad_weights.size:
                            value += load(
                                grad_weights, (((b * groups + g) * count + n) * height + row) * width + column
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
                    softmax_backward(p, d, pd + g * count, count, scale)
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
            write_tile(grad_q, grad_qs, (b, 0, top, left), rows, columns, channels, dt, 0, channels)
