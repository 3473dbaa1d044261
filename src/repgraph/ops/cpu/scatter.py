"""Backward: gradients of key and value, which many queries add to.

A task is a slice of channels of one of the two maps: nobody else writes there, and the additions come in the
same order whoever does it. The slice is summed up in scratch [H W, width] and written out once, in whatever
layout and precision the gradient has.
"""

import numpy as np

from repgraph.ops.cpu.cells import PART, TILE, tile_columns
from repgraph.ops.cpu.jit import helper, inline, jit
from repgraph.ops.cpu.memory import load, take
from repgraph.ops.cpu.nodes import left_top, weigh
from repgraph.ops.cpu.rows import add_row, fill
from repgraph.ops.cpu.tiles import read_tile, write_tile


@inline
def add_node(total, pitch, length, lefts, fractions, at, size, row, start, factor):
    """Add factor * row to the corners of a node."""
    height, width = size
    x, y = left_top(lefts, at)
    weights = weigh(fractions, at)
    for i in range(4):
        column, line = x + (i & 1), y + (i >> 1)
        if 0 <= column < width and 0 <= line < height:
            add_row(total, (line * width + column) * pitch, row, start, weights[i] * factor, length)


@helper
def add_queries(
    source,
    b,
    first,
    length,
    strides,
    per_group,
    coefficients,
    total,
    tile,
    grads,
    pitch,
    lefts,
    fractions,
    dims,
):
    """Add what one map (the query for keys, the output's gradient for values) gives to a slice."""
    height, width, count, groups, grid = dims
    size = (height, width)
    one, zero = fractions.dtype.type(1), fractions.dtype.type(0)
    cell_columns, part = (width + grid - 1) // grid, min(grid, PART)
    cell_rows = (height + grid - 1) // grid
    last = (first + length - 1) // per_group
    for cell_row in range(cell_rows):
        bottom = min(height, (cell_row + 1) * grid)
        for top in range(cell_row * grid, bottom, part):
            rows = min(part, bottom - top)
            left = 0
            while left < width:
                columns = tile_columns(left, width, grid)
                base = b * strides[0] + first * strides[1] + top * strides[2] + left * strides[3]
                read_tile(source, base, strides[1:], rows, columns, length, tile, 0, pitch)
                for i in range(rows * columns):
                    row, column = top + i % rows, left + i // rows
                    cell = column // grid
                    at = ((b * cell_rows + cell_row) * cell_columns + cell) * count * 2
                    start = ((b * height + row) * width + column) * groups * count
                    if grid == 1 and groups == 1:
                        for n in range(count):
                            factor = load(coefficients, start + n)
                            add_node(
                                total,
                                pitch,
                                length,
                                lefts,
                                fractions,
                                at + 2 * n,
                                size,
                                tile,
                                i * pitch,
                                factor,
                            )
                        continue
                    if i == 0 or (i % rows == 0 and column % grid == 0):
                        fill(grads, 0, count * pitch, zero)
                    for g in range(first // per_group, last + 1):
                        low = max(0, g * per_group - first)
                        n_channels = min(length, (g + 1) * per_group - first) - low
                        for n in range(count):
                            factor = load(coefficients, start + g * count + n)
                            add_row(grads, n * pitch + low, tile, i * pitch + low, factor, n_channels)
                    if i + 1 == rows * columns or (i % rows == rows - 1 and (column + 1) % grid == 0):
                        for n in range(count):
                            add_node(
                                total,
                                pitch,
                                length,
                                lefts,
                                fractions,
                                at + 2 * n,
                                size,
                                grads,
                                n * pitch,
                                one,
                            )
                left += columns


@jit
def scatter(
    counter,
    tasks,
    grad,
    grads,
    q,
    qs,
    p,
    d,
    lefts,
    fractions,
    dims,
    pitch,
    channels,
    vchannels,
    grad_k,
    grad_ks,
    grad_v,
    grad_vs,
    shared,
):
    """Write the gradients of key and value; ``shared``: that of the key is the sum, there is no other."""
    height, width, count, groups, grid = dims
    kind = fractions.dtype
    zero = kind.type(0)
    total = np.empty(height * width * pitch, kind)
    tile = np.empty(min(grid, PART) * TILE * pitch, kind)
    nodes = np.empty(count * pitch, kind)
    slices, vslices = (channels + pitch - 1) // pitch, (vchannels + pitch - 1) // pitch
    each = slices if shared else slices + vslices
    while True:
        task = take(counter)
        if task >= tasks:
            return
        b, piece = task // each, task % each
        fill(total, 0, height * width * pitch, zero)
        if piece < slices:
            first = piece * pitch
            length = min(pitch, channels - first)
            add_queries(
                q,
                b,
                first,
                length,
                qs,
                channels // groups,
                d,
                total,
                tile,
                nodes,
                pitch,
                lefts,
                fractions,
                dims,
            )
            if shared:
                add_queries(
                    grad,
                    b,
                    first,
                    length,
                    grads,
                    channels // groups,
                    p,
                    total,
                    tile,
                    nodes,
                    pitch,
                    lefts,
                    fractions,
                    dims,
                )
            target, strides = grad_k, grad_ks
        else:
            first = (piece - slices) * pitch
            length = min(pitch, vchannels - first)
            add_queries(
                grad,
                b,
                first,
                length,
                grads,
                vchannels // groups,
                p,
                total,
                tile,
                nodes,
                pitch,
                lefts,
                fractions,
                dims,
            )
            target, strides = grad_v, grad_vs
        for row in range(height):
            base = b * strides[0] + first * strides[1] + row * strides[2]
            write_tile(target, base, strides[1:], 1, width, length, total, row * width * pitch, pitch)
