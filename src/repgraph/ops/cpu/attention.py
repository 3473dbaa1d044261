"""Attention to nodes on one or several maps, with computed or given weights (see ``repgraph.ops.library``, ``nodes``).

Key and value are rows of channels with strides of batch, group and position. The others have strides of batch, channel,
row and column; where their channels are not adjacent, tiles of them are copied. A task is a tile of queries with one
set of nodes: what neighboring queries read stays in the cache.

Backward takes two passes. The first writes the gradients of query, offsets and bias, and, if weights are computed, for
the second weights and logit gradients [B, G, H W, nodes]. The second sums the gradients of key and value. A task is a
slice of channels of one group, so the order of additions does not depend on threads.
"""

import numpy as np

from repgraph.ops.cpu.arithmetic import fill, softmax, softmax_backward
from repgraph.ops.cpu.jit import exact, inline, jit
from repgraph.ops.cpu.memory import VECTOR, load, next_task, prefetch, read_tile, store, write_tile
from repgraph.ops.cpu.nodes import (
    add_to_nodes,
    dot_nodes,
    find_corners,
    index_corners,
    interpolate_nodes,
    sum_nodes,
    weigh_corners,
)

AHEAD = 8  # columns of queries whose inputs and results are prefetched


@inline
def tile_of(task, sets, height, width, rows, columns):
    """Return batch index, set of nodes, top, left, number of rows and of columns of a tile."""
    down, across = (height + rows - 1) // rows, (width + columns - 1) // columns
    which, rest = task // (down * across), task % (down * across)
    top, left = rest // across * rows, rest % across * columns
    return which // sets, which % sets, top, left, min(rows, height - top), min(columns, width - left)


@exact
def find(offsets, strides, tables, steps, grid, b, s, row, column, count, corners, fractions):
    """Write the corners and fractions of the nodes of a query."""
    table, limits, factors, xs, ys = tables
    row, column = row // grid, column // grid
    at = b * strides[0] + s * count * 2 + row * strides[2] + column * strides[3]
    prefetch(offsets, at + AHEAD * strides[3], 2 * count)
    for first in range(0, count, VECTOR):
        find_corners(
            offsets, at, xs, column * steps[0], ys, row * steps[1], factors, limits, table, first, count, corners,
            fractions,
        )  # fmt: skip


@jit
def attend(
    counter, tasks, q, qs, k, ks, v, vs, y, ys, weights, offsets, os, bias, bs, tables, steps, dims, nowhere, scale
):
    """Write ``y`` and, if it is not empty, ``weights``. The weights of nodes are given if ``q`` is empty."""
    height, width, channels, vchannels, count, groups, sets, grid, rows, columns = dims
    kind = offsets.dtype
    pitch = (count + VECTOR - 1) // VECTOR * VECTOR
    corners, fractions = np.empty(4 * pitch, np.int32), np.empty(2 * pitch, kind)
    index, key_index, weight = np.empty(4 * pitch, np.int64), np.empty(4 * pitch, np.int64), np.empty(4 * pitch, kind)
    dots, logits = np.empty(4 * pitch, kind), np.empty(3 * pitch, kind)
    length, vlength, each = channels // groups, vchannels // groups, groups // sets
    wide, vwide = each * length, each * vlength
    copies, copied = channels > 0 and qs[1] != 1, ys[1] != 1  # whether the tiles of queries and results are copied
    query = np.empty(rows * columns * wide, q.dtype) if copies else q
    result = np.empty(rows * columns * vwide, y.dtype) if copied else y
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, s, top, left, h, w = tile_of(task, sets, height, width, rows, columns)
        if copies:
            read_tile(q, qs, (b, s * wide, top, left), h, w, wide, query, 0, wide)
        for i in range(h * w):
            row, column = top + i % h, left + i // h
            find(offsets, os, tables, steps, grid, b, s, row, column, count, corners, fractions)
            index_corners(corners, b * vs[0] + s * each * vs[1], vs[2], nowhere[1], count, index)
            if channels:
                index_corners(corners, b * ks[0] + s * each * ks[1], ks[2], nowhere[0], count, key_index)
            q_at = i * wide if copies else b * qs[0] + row * qs[2] + column * qs[3] + s * wide
            y_at = i * vwide if copied else b * ys[0] + row * ys[2] + column * ys[3] + s * vwide
            for g in range(each):
                own = b * bs[0] + (s * each + g) * count + row * bs[2] + column * bs[3]
                prefetch(bias, own + AHEAD * bs[3], count)
                if channels:
                    at = q_at + g * length
                    prefetch(query, at + AHEAD * qs[3], length)
                    dot_nodes(query, at, k, g * ks[1], key_index, count, length, dots)
                    interpolate_nodes(dots, fractions, count, logits)
                    for n in range(count):
                        logit = scale * load(logits, n)
                        store(logits, n, logit + load(bias, own + n) if bias.size else logit)
                    softmax(logits, 0, count)
                    if weights.size:
                        to = (b * groups + s * each + g) * count
                        for n in range(count):
                            weights[((to + n) * height + row) * width + column] = logits[n]
                    weigh_corners(fractions, logits, 0, count, weight)
                else:
                    weigh_corners(fractions, bias, own, count, weight)
                at = y_at + g * vlength
                prefetch(result, at + AHEAD * ys[3], vlength)
                sum_nodes(result, at, v, g * vs[1], index, weight, count, vlength)
        if copied:
            write_tile(y, ys, (b, s * vwide, top, left), h, w, vwide, result, 0, vwide)


@jit
def attend_backward(
    counter, tasks, grad, grads, q, qs, k, ks, v, vs, grad_q, grad_qs, grad_weights, offsets, os, grad_o, grad_os,
    bias, bs, grad_b, grad_bs, tables, steps, dims, nowhere, scale, ps, ds,
):  # fmt: skip
    """Write the gradients of query, offsets and bias, and, if they are computed, weights and logit gradients."""
    height, width, channels, vchannels, count, groups, sets, grid, rows, columns = dims
    kind = offsets.dtype
    zero = kind.type(0)
    pitch = (count + VECTOR - 1) // VECTOR * VECTOR
    corners, fractions = np.empty(4 * pitch, np.int32), np.empty(2 * pitch, kind)
    index, key_index, weight = np.empty(4 * pitch, np.int64), np.empty(4 * pitch, np.int64), np.empty(4 * pitch, kind)
    dots, logits, values = np.empty(4 * pitch, kind), np.empty(3 * pitch, kind), np.empty(3 * pitch, kind)
    slopes, factor = np.empty(2 * pitch, kind), np.empty(pitch, kind)
    factors = tables[2]
    length, vlength, each = channels // groups, vchannels // groups, groups // sets
    wide, vwide = each * length, each * vlength
    copies, copied = channels > 0 and qs[1] != 1, grads[1] != 1
    query = np.empty(rows * columns * wide, q.dtype) if copies else q
    grad_query = np.empty(rows * columns * wide, q.dtype) if copies else grad_q
    grad_y = np.empty(rows * columns * vwide, grad.dtype) if copied else grad
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, s, top, left, h, w = tile_of(task, sets, height, width, rows, columns)
        if copies:
            read_tile(q, qs, (b, s * wide, top, left), h, w, wide, query, 0, wide)
        if copied:
            read_tile(grad, grads, (b, s * vwide, top, left), h, w, vwide, grad_y, 0, vwide)
        for i in range(h * w):
            row, column = top + i % h, left + i // h
            find(offsets, os, tables, steps, grid, b, s, row, column, count, corners, fractions)
            index_corners(corners, b * vs[0] + s * each * vs[1], vs[2], nowhere[1], count, index)
            if channels:
                index_corners(corners, b * ks[0] + s * each * ks[1], ks[2], nowhere[0], count, key_index)
            q_at = i * wide if copies else b * qs[0] + row * qs[2] + column * qs[3] + s * wide
            d_at = i * wide if copies else b * grad_qs[0] + row * grad_qs[2] + column * grad_qs[3] + s * wide
            y_at = i * vwide if copied else b * grads[0] + row * grads[2] + column * grads[3] + s * vwide
            fill(slopes, 0, 2 * pitch, zero)
            for g in range(s * each, (s + 1) * each):
                at = y_at + (g - s * each) * vlength
                prefetch(grad_y, at + AHEAD * grads[3], vlength)
                dot_nodes(grad_y, at, v, (g - s * each) * vs[1], index, count, vlength, dots)
                interpolate_nodes(dots, fractions, count, values)
                own = b * bs[0] + g * count + row * bs[2] + column * bs[3]
                prefetch(bias, own + AHEAD * bs[3], count)
                if channels:
                    at = q_at + (g - s * each) * length
                    prefetch(query, at + AHEAD * qs[3], length)
                    dot_nodes(query, at, k, (g - s * each) * ks[1], key_index, count, length, dots)
                    interpolate_nodes(dots, fractions, count, logits)
                    for n in range(count):
                        logit = scale * load(logits, n)
                        store(logits, n, logit + load(bias, own + n) if bias.size else logit)
                        if grad_weights.size:
                            extra = load(grad_weights, (((b * groups + g) * count + n) * height + row) * width + column)
                            store(values, n, load(values, n) + extra)
                    softmax(logits, 0, count)
                    softmax_backward(logits, values, 0, count)
                    to = (((b * groups + g) * height + row) * width + column) * count
                    for n in range(count):
                        a, p = scale * load(values, n), load(logits, n)
                        store(factor, n, a)
                        store(ds, to + n, a)
                        store(ps, to + n, p)
                        for axis in range(1, 3):
                            at = axis * pitch + n
                            slope = a * load(logits, at) + p * load(values, at)
                            store(slopes, at - pitch, load(slopes, at - pitch) + slope)
                    weigh_corners(fractions, factor, 0, count, weight)
                    at = d_at + (g - s * each) * length
                    prefetch(grad_query, at + AHEAD * grad_qs[3], length)
                    sum_nodes(grad_query, at, k, (g - s * each) * ks[1], key_index, weight, count, length)
                else:
                    for n in range(count):
                        p = load(bias, own + n)
                        store(slopes, n, p * load(values, pitch + n))
                        store(slopes, pitch + n, p * load(values, 2 * pitch + n))
                if grad_b.size:
                    at = b * grad_bs[0] + row * grad_bs[2] + column * grad_bs[3] + g * count
                    for n in range(count):
                        store(grad_b, at + n, load(values, n))
            at = b * grad_os[0] + row * grad_os[2] + column * grad_os[3] + s * count * 2
            prefetch(grad_o, at + AHEAD * grad_os[3], 2 * count)
            for n in range(count):
                store(grad_o, at + 2 * n, load(slopes, n) * load(factors, n))
                store(grad_o, at + 2 * n + 1, load(slopes, pitch + n) * load(factors, pitch + n))
        if copies:
            write_tile(grad_q, grad_qs, (b, s * wide, top, left), h, w, wide, grad_query, 0, wide)


@jit
def scatter(
    counter, tasks, grad, grads, q, qs, offsets, os, ps, pss, ds, dss, tables, steps, dims, wide, grad_k, gks, grad_v,
    gvs, shared,
):  # fmt: skip
    """Write the gradients of key and value, with strides of batch, channel, 0, position.

    ``shared``: write the sum of both to the key's.
    """
    height, width, channels, vchannels, count, groups, sets, grid, positions = dims
    kind = offsets.dtype
    zero = kind.type(0)
    pitch = (count + VECTOR - 1) // VECTOR * VECTOR
    total = np.empty((1 + positions) * wide, kind)  # first a row for corners off the maps
    corners, fractions = np.empty(4 * pitch, np.int32), np.empty(2 * pitch, kind)
    index, weight = np.empty(4 * pitch, np.int64), np.empty(4 * pitch, kind)
    length, vlength = channels // groups, vchannels // groups
    pieces, vpieces = (length + wide - 1) // wide, (vlength + wide - 1) // wide
    tasks_of_key = pieces * groups
    each = tasks_of_key if shared else tasks_of_key + vpieces * groups
    copies, copied = channels > 0 and qs[1] != 1, grads[1] != 1
    query = np.empty(width * wide, q.dtype) if copies else q
    grad_y = np.empty(width * wide, grad.dtype) if copied else grad
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, piece = task // each, task % each
        of_key = piece < tasks_of_key
        if of_key:
            g, first, per_group = piece // pieces, piece % pieces * wide, length
        else:
            g, first, per_group = (piece - tasks_of_key) // vpieces, (piece - tasks_of_key) % vpieces * wide, vlength
        own = min(wide, per_group - first)
        first += g * per_group
        fill(total, 0, (1 + positions) * wide, zero)
        for row in range(height):
            if copies and of_key:
                read_tile(q, qs, (b, first, row, 0), 1, width, own, query, 0, own)
            if copied and (shared or not of_key):
                read_tile(grad, grads, (b, first, row, 0), 1, width, own, grad_y, 0, own)
            for column in range(width):
                s = g // (groups // sets)
                find(offsets, os, tables, steps, grid, b, s, row, column, count, corners, fractions)
                index_corners(corners, wide, wide, 0, count, index)
                if of_key:
                    at = b * dss[0] + g * dss[1] + row * dss[2] + column * dss[3]
                    weigh_corners(fractions, ds, at, count, weight)
                    at = column * own if copies else b * qs[0] + row * qs[2] + column * qs[3] + first
                    prefetch(query, at + AHEAD * qs[3], own)
                    add_to_nodes(total, index, weight, count, query, at, own)
                if shared or not of_key:
                    at = b * pss[0] + g * pss[1] + row * pss[2] + column * pss[3]
                    prefetch(ps, at + AHEAD * pss[3], count)
                    weigh_corners(fractions, ps, at, count, weight)
                    at = column * own if copied else b * grads[0] + row * grads[2] + column * grads[3] + first
                    prefetch(grad_y, at + AHEAD * grads[3], own)
                    add_to_nodes(total, index, weight, count, grad_y, at, own)
        target, strides = (grad_k, gks) if of_key else (grad_v, gvs)
        write_tile(target, strides, (b, first, 0, 0), 1, positions, own, total, wide, wide)
