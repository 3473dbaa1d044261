"""Attention to nodes on several maps, with computed or given weights: see ``repgraph.ops.levels`` and ``nodes``.

A task is a tile of queries. Their offsets, bias (or given weights) and query are copied to scratch first, in rows.
Backward takes two passes. The first writes the gradients of query, offsets and bias, and for the second what it needs:
positions [B, K, H W, nodes, 2], weights and logit gradients [B, G, H W, nodes]. The second sums the gradients of key
and value. A task is a slice of channels of one group, so the order of additions does not depend on threads.
"""

import numpy as np

from repgraph.ops.cpu.arithmetic import add_row, add_rows, fill, softmax, softmax_backward
from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, next_task, read_tile, store, write_tile
from repgraph.ops.cpu.nodes import add_to_corners, node_product, node_slopes, place_nodes, split_nodes, weigh_corners

TILE = 32  # columns of a tile in ``scatter_levels``


@inline
def tile_of(task, height, width, rows, columns):
    """Return batch index, top, left, number of rows and of columns of a tile."""
    down, across = (height + rows - 1) // rows, (width + columns - 1) // columns
    b, rest = task // (down * across), task % (down * across)
    top, left = rest // across * rows, rest % across * columns
    return b, top, left, min(rows, height - top), min(columns, width - left)


@inline
def read_cells(source, strides, b, top, left, rows, columns, channels, grid, target):
    """Copy the offsets of a tile of queries to scratch, for each query those of its cell."""
    if grid == 1:
        read_tile(source, strides, (b, 0, top, left), rows, columns, channels, target, 0, channels)
        return
    sb, sc, sh, sw = strides
    for c in range(channels):
        for i in range(rows * columns):
            row, column = (top + i % rows) // grid, (left + i // rows) // grid
            store(target, i * channels + c, load(source, b * sb + c * sc + row * sh + column * sw))


@jit
def attend_levels(
    counter, tasks, q, qs, k, ks, v, vs, y, ys, weights, offsets, os, bias, bs, table, limits, factors, xs, ys_, dims,
    scale,
):  # fmt: skip
    """Write ``y`` and, if it is not empty, ``weights``. The weights of nodes are given if ``q`` is empty."""
    height, width, channels, vchannels, count, groups, sets, grid, rows, columns, x_step, y_step = dims
    kind = factors.dtype
    zero = kind.type(0)
    most, nodes = rows * columns, sets * count
    qt, yt = np.empty(most * channels, kind), np.empty(most * vchannels, kind)
    ot, p = np.empty(most * nodes * 2, kind), np.zeros(most * groups * count, kind)
    places, lefts, fractions = np.empty(2 * count, kind), np.empty(2 * count, np.int32), np.empty(2 * count, kind)
    index, weight = np.empty(4 * count, np.int64), np.empty(4 * count, kind)
    length, vlength, each = channels // groups, vchannels // groups, groups // sets
    computed = channels > 0
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, top, left, h, w = tile_of(task, height, width, rows, columns)
        read_cells(offsets, os, b, top, left, h, w, nodes * 2, grid, ot)
        if bias.size:
            read_tile(bias, bs, (b, 0, top, left), h, w, groups * count, p, 0, groups * count)
        elif computed:
            fill(p, 0, h * w * groups * count, zero)
        if computed:
            read_tile(q, qs, (b, 0, top, left), h, w, channels, qt, 0, channels)
        for i in range(h * w):
            row, column = top + i % h, left + i // h
            x_at, y_at = column // grid * x_step, row // grid * y_step
            for s in range(sets):
                place_nodes(ot, (i * sets + s) * count * 2, factors, xs, x_at, ys_, y_at, count, places, 0)
                split_nodes(places, 0, limits, count, lefts, fractions)
                for g in range(s * each, (s + 1) * each):
                    start = (i * groups + g) * count
                    if computed:
                        for n in range(count):
                            base = b * ks[0] + g * length
                            logit = node_product(
                                qt, i * channels + g * length, k, base, ks[3], lefts, fractions, table, n, count, length
                            )
                            store(p, start + n, load(p, start + n) + scale * logit)
                        softmax(p, start, count)
                        if weights.size:
                            for n in range(count):
                                weights[(((b * groups + g) * count + n) * height + row) * width + column] = p[start + n]
                    base, end = b * vs[0] + g * vlength, i * vchannels + g * vlength
                    found, nothing = weigh_corners(lefts, fractions, table, count, p, start, base, vs[3], index, weight)
                    fill(yt, end, vlength, nothing)
                    add_rows(yt, end, v, 0, index, weight, found, vlength)
        write_tile(y, ys, (b, 0, top, left), h, w, vchannels, yt, 0, vchannels)


@jit
def attend_levels_backward(
    counter, tasks, grad, grads, q, qs, k, ks, v, vs, grad_q, grad_qs, grad_weights, offsets, os, grad_o, grad_os,
    bias, bs, grad_b, grad_bs, table, limits, factors, xs, ys, dims, scale, positions, ps, ds,
):  # fmt: skip
    """Write the gradients of query, offsets and bias (of each query), and positions, weights and logit gradients."""
    height, width, channels, vchannels, count, groups, sets, grid, rows, columns, x_step, y_step = dims
    kind = factors.dtype
    zero, one = kind.type(0), kind.type(1)
    most, nodes = rows * columns, sets * count
    qt, dt = np.empty(most * channels, kind), np.empty(most * channels, kind)
    yt = np.empty(most * vchannels, kind)
    ot, p = np.empty(most * nodes * 2, kind), np.zeros(most * groups * count, kind)
    d = np.empty(most * groups * count, kind)
    slope = np.empty(4 * count, kind)  # of logit and weight gradient, in x and y
    lefts, fractions, factor = np.empty(2 * count, np.int32), np.empty(2 * count, kind), np.empty(count, kind)
    index, weight = np.empty(4 * count, np.int64), np.empty(4 * count, kind)
    length, vlength, each = channels // groups, vchannels // groups, groups // sets
    computed = channels > 0
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, top, left, h, w = tile_of(task, height, width, rows, columns)
        read_cells(offsets, os, b, top, left, h, w, nodes * 2, grid, ot)
        read_tile(grad, grads, (b, 0, top, left), h, w, vchannels, yt, 0, vchannels)
        if bias.size:
            read_tile(bias, bs, (b, 0, top, left), h, w, groups * count, p, 0, groups * count)
        elif computed:
            fill(p, 0, h * w * groups * count, zero)
        if computed:
            read_tile(q, qs, (b, 0, top, left), h, w, channels, qt, 0, channels)
        for i in range(h * w):
            row, column = top + i % h, left + i // h
            x_at, y_at = column // grid * x_step, row // grid * y_step
            for s in range(sets):
                at = ((b * sets + s) * height + row) * width + column
                own = (i * sets + s) * count * 2
                place_nodes(ot, own, factors, xs, x_at, ys, y_at, count, positions, at * count * 2)
                split_nodes(positions, at * count * 2, limits, count, lefts, fractions)
                fill(ot, own, count * 2, zero)  # from here on the gradient
                for g in range(s * each, (s + 1) * each):
                    start = (i * groups + g) * count
                    for n in range(count):
                        base = b * vs[0] + g * vlength
                        value, along, down = node_slopes(
                            yt, i * vchannels + g * vlength, v, base, vs[3], lefts, fractions, table, n, count, vlength
                        )
                        store(slope, 4 * n + 2, along)
                        store(slope, 4 * n + 3, down)
                        if grad_weights.size:
                            value += load(
                                grad_weights, (((b * groups + g) * count + n) * height + row) * width + column
                            )
                        store(d, start + n, value)
                        if computed:
                            base = b * ks[0] + g * length
                            logit, along, down = node_slopes(
                                qt, i * channels + g * length, k, base, ks[3], lefts, fractions, table, n, count, length
                            )
                            store(slope, 4 * n, along)
                            store(slope, 4 * n + 1, down)
                            store(p, start + n, load(p, start + n) + scale * logit)
                    if computed:
                        softmax(p, start, count)
                        softmax_backward(p, d, start, count, one)
                    to = (((b * groups + g) * height + row) * width + column) * count
                    for n in range(count):
                        a, c = scale * load(d, start + n), load(p, start + n)
                        along, down = c * load(slope, 4 * n + 2), c * load(slope, 4 * n + 3)
                        if computed:
                            along += a * load(slope, 4 * n)
                            down += a * load(slope, 4 * n + 1)
                            store(factor, n, a)
                            store(ds, to + n, a)
                        store(ps, to + n, c)
                        end = own + 2 * n
                        store(ot, end, load(ot, end) + along * load(factors, n))
                        store(ot, end + 1, load(ot, end + 1) + down * load(factors, count + n))
                    if computed:
                        base, end = b * ks[0] + g * length, i * channels + g * length
                        found, nothing = weigh_corners(
                            lefts, fractions, table, count, factor, 0, base, ks[3], index, weight
                        )
                        fill(dt, end, length, nothing)
                        add_rows(dt, end, k, 0, index, weight, found, length)
        write_tile(grad_o, grad_os, (b, 0, top, left), h, w, nodes * 2, ot, 0, nodes * 2)
        if grad_b.size:
            write_tile(grad_b, grad_bs, (b, 0, top, left), h, w, groups * count, d, 0, groups * count)
        if computed:
            write_tile(grad_q, grad_qs, (b, 0, top, left), h, w, channels, dt, 0, channels)


@jit
def scatter_levels(
    counter, tasks, grad, grads, q, qs, positions, ps, ds, table, limits, dims, pitch, grad_k, grad_v, shared
):
    """Write the gradients of key and value [B, N, C]. ``shared``: write their sum to that of the key."""
    height, width, channels, vchannels, count, groups, sets, length_of_maps = dims
    kind = limits.dtype
    zero, one = kind.type(0), kind.type(1)
    total = np.empty(length_of_maps * pitch, kind)
    qt, yt, mixed = np.empty(TILE * pitch, kind), np.empty(TILE * pitch, kind), np.empty(pitch, kind)
    lefts, fractions = np.empty(2 * count, np.int32), np.empty(2 * count, kind)
    length, vlength = channels // groups, vchannels // groups
    pieces, vpieces = (length + pitch - 1) // pitch, (vlength + pitch - 1) // pitch
    tasks_of_key = pieces * groups
    each = tasks_of_key if shared else tasks_of_key + vpieces * groups
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, piece = task // each, task % each
        of_key = piece < tasks_of_key
        if of_key:
            g, first, per_group = piece // pieces, piece % pieces * pitch, length
        else:
            g, first, per_group = (piece - tasks_of_key) // vpieces, (piece - tasks_of_key) % vpieces * pitch, vlength
        own = min(pitch, per_group - first)
        first += g * per_group
        fill(total, 0, length_of_maps * pitch, zero)
        for row in range(height):
            for left in range(0, width, TILE):
                columns = min(TILE, width - left)
                if of_key:
                    read_tile(q, qs, (b, first, row, left), 1, columns, own, qt, 0, pitch)
                if shared or not of_key:
                    read_tile(grad, grads, (b, first, row, left), 1, columns, own, yt, 0, pitch)
                for i in range(columns):
                    place = row * width + left + i
                    at = ((b * sets + g // (groups // sets)) * height * width + place) * count * 2
                    start = ((b * groups + g) * height * width + place) * count
                    split_nodes(positions, at, limits, count, lefts, fractions)
                    for n in range(count):
                        if shared:
                            fill(mixed, 0, own, zero)
                            add_row(mixed, 0, qt, i * pitch, load(ds, start + n), own)
                            add_row(mixed, 0, yt, i * pitch, load(ps, start + n), own)
                            add_to_corners(total, pitch, lefts, fractions, table, n, count, mixed, 0, one, own)
                        elif of_key:
                            factor = load(ds, start + n)
                            add_to_corners(total, pitch, lefts, fractions, table, n, count, qt, i * pitch, factor, own)
                        else:
                            factor = load(ps, start + n)
                            add_to_corners(total, pitch, lefts, fractions, table, n, count, yt, i * pitch, factor, own)
        target, columns = (grad_k, channels) if of_key else (grad_v, vchannels)
        strides = (length_of_maps * columns, 1, 0, columns)
        write_tile(target, strides, (b, first, 0, 0), 1, length_of_maps, own, total, 0, pitch)
