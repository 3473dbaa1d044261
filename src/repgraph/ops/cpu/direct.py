"""Forward where every query has nodes of its own (grid 1): nodes are never stored.

A task is a strip of rows. It is walked in tiles, down the columns first, and each tile in two passes (keys,
then values), so that what neighbouring queries read stays in the cache of the core.
"""

import numpy as np

from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, store, take
from repgraph.ops.cpu.nodes import left_top, list_corners, weigh
from repgraph.ops.cpu.rows import add_rows, dot, dot_node, fill
from repgraph.ops.cpu.softmax import softmax
from repgraph.ops.cpu.tiles import even_columns, read_tile, write_tile

TILE = 32


@inline
def node_logits(q, qi, k, base, strides, lefts, fractions, at, size, groups, length, scale, logits, end, count):
    """logits[end + g * count] of one node, for all groups."""
    height, width = size
    sh, sw = strides
    x, y = left_top(lefts, at)
    w = weigh(fractions, at)
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
    height, width, channels, vchannels, count, groups, strip = dims
    size = (height, width)
    kind = fractions.dtype
    zero = kind.type(0)
    strips, tile = (height + strip - 1) // strip, even_columns(width, TILE)
    qt = np.empty(strip * tile * channels, kind)
    yt = np.empty(strip * tile * vchannels, kind)
    p = np.empty(strip * tile * groups * count, kind)
    index = np.empty(4 * count, np.int64)
    weight, scaled = np.empty(4 * count, kind), np.empty(4 * count, kind)
    node = np.empty(4 * count, np.int64)
    per_group, length = channels // groups, vchannels // groups
    while True:
        task = take(counter)
        if task >= tasks:
            return
        b, top = task // strips, task % strips * strip
        rows = min(strip, height - top)
        for left in range(0, width, tile):
            columns = min(tile, width - left)
            read_tile(q, b * qs[0] + top * qs[2] + left * qs[3], qs[1:], rows, columns, channels, qt, 0, channels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                at = ((b * height + row) * width + column) * count * 2
                for n in range(count):
                    node_logits(
                        qt,
                        i * channels,
                        k,
                        b * ks[0],
                        ks[2:],
                        lefts,
                        fractions,
                        at + 2 * n,
                        size,
                        groups,
                        per_group,
                        scale,
                        p,
                        i * groups * count + n,
                        count,
                    )
                for g in range(groups):
                    start = (i * groups + g) * count
                    total = softmax(p, start, count)
                    lse[((b * groups + g) * height + row) * width + column] = total
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
            write_tile(y, b * ys[0] + top * ys[2] + left * ys[3], ys[1:], rows, columns, vchannels, yt, 0, vchannels)
