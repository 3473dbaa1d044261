"""Forward where the queries of a cell share its nodes (grid > 1): nodes are read once into scratch.

A task is up to ``PART`` rows of queries of one row of cells, so that one cell on a whole map is many tasks.
"""

import numpy as np

from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, store, take
from repgraph.ops.cpu.nodes import list_corners
from repgraph.ops.cpu.rows import add_rows, dot, fill
from repgraph.ops.cpu.softmax import softmax
from repgraph.ops.cpu.tiles import read_tile, write_tile

PART = 8
TILE = 32


@inline
def task_rows(task, height, grid, parts, cell_rows):
    """Batch index, row of cells, first row of queries and their number (0: the last cells end earlier)."""
    b, rest = task // (cell_rows * parts), task % (cell_rows * parts)
    cell_row, part = rest // parts, rest % parts
    top = cell_row * grid + part * PART
    return b, cell_row, top, max(0, min(PART, min(grid, height - cell_row * grid) - part * PART))


@inline
def tile_columns(left, width, grid):
    """Columns of the tile that begins at ``left``: whole cells where they fit, else a piece of one."""
    if grid <= TILE:
        return min(TILE // grid * grid, width - left)
    return min(TILE, min(width, (left // grid + 1) * grid) - left)


@inline
def sample(source, channels, lefts, fractions, at, count, size, base, strides, nodes, index, weight, node):
    """The nodes of a cell, read by bilinear interpolation into rows of ``nodes`` [S, channels]."""
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


@inline
def own_rows(index, count, channels):
    """index[n] = n * channels: the rows of ``nodes``, as ``add_rows`` wants them."""
    for n in range(count):
        store(index, n, n * channels)


@jit
def attend(counter, tasks, q, qs, k, ks, v, vs, y, ys, lse, weights, lefts, fractions, dims, scale, shared):
    """``shared``: the value is the key. Other arguments as ``direct.attend``."""
    height, width, channels, vchannels, count, groups, grid = dims
    size = (height, width)
    kind = fractions.dtype
    zero = kind.type(0)
    cell_rows, cell_columns = (height + grid - 1) // grid, (width + grid - 1) // grid
    parts = (min(grid, height) + PART - 1) // PART
    qt, yt = np.empty(PART * TILE * channels, kind), np.empty(PART * TILE * vchannels, kind)
    keys = np.empty(count * channels, kind)
    values = keys if shared else np.empty(count * vchannels, kind)
    index, node = np.empty(4 * count, np.int64), np.empty(4 * count, np.int64)
    weight = np.empty(4 * count, kind)
    own = np.empty(count, np.int64)
    own_rows(own, count, vchannels)
    p = np.empty(count, kind)
    length, vlength = channels // groups, vchannels // groups
    while True:
        task = take(counter)
        if task >= tasks:
            return
        b, cell_row, top, rows = task_rows(task, height, grid, parts, cell_rows)
        left, sampled = 0, -1
        while left < width and rows > 0:
            columns = tile_columns(left, width, grid)
            read_tile(q, b * qs[0] + top * qs[2] + left * qs[3], qs[1:], rows, columns, channels, qt, 0, channels)
            for i in range(rows * columns):
                row, column = top + i % rows, left + i // rows
                if column // grid != sampled:
                    sampled = column // grid
                    at = ((b * cell_rows + cell_row) * cell_columns + sampled) * count * 2
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
                for g in range(groups):
                    for n in range(count):
                        logit = dot(qt, i * channels + g * length, keys, n * channels + g * length, length, zero)
                        store(p, n, scale * logit)
                    place = ((b * groups + g) * height + row) * width + column
                    store(lse, place, softmax(p, 0, count))
                    if weights.size:
                        for n in range(count):
                            place = (((b * groups + g) * count + n) * height + row) * width + column
                            store(weights, place, load(p, n))
                    end = i * vchannels + g * vlength
                    fill(yt, end, vlength, zero)
                    add_rows(yt, end, values, g * vlength, own, p, count, vlength)
            write_tile(y, b * ys[0] + top * ys[2] + left * ys[3], ys[1:], rows, columns, vchannels, yt, 0, vchannels)
            left += columns
