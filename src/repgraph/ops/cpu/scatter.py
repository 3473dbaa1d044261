"""Gradients of key and value, to which many queries contribute.

A task is a slice of channels of one of the two maps, so the order of additions does not depend on threads. The slice is
summed in scratch [H W, width] and written once, in the layout and dtype of the gradient.
"""

import numpy as np

from repgraph.ops.cpu.arithmetic import add_row, fill
from repgraph.ops.cpu.cells import PART, TILE, tile_columns
from repgraph.ops.cpu.geometry import corner_weights, top_left
from repgraph.ops.cpu.jit import helper, inline, jit
from repgraph.ops.cpu.memory import load, next_task, read_tile, write_tile


@inline
def add_node(total, pitch, length, lefts, fractions, at, size, row, start, factor):
    """Add factor * row to the corners of a node."""
    height, width = size
    x, y = top_left(lefts, at)
    weights = corner_weights(fractions, at)
    for i in range(4):
        column, line = x + (i & 1), y + (i >> 1)
        if 0 <= column < width and 0 <= line < height:
            add_row(total, (line * width + column) * pitch, row, start, weights[i] * factor, length)


@helper
def add_queries(
    source, b, first, length, strides, per_group, coefficients, total, tile, grads, pitch, lefts, fractions, dims
):
    """Add the contribution of one map to a slice: of the query to keys, of the output's gradient to values."""
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
                read_tile(source, strides, (b, first, top, left), rows, columns, length, tile, 0, pitch)
                for i in range(rows * columns):
                    row, column = top + i % rows, left + i // rows
                    cell = column // grid
                    at = ((b * cell_rows + cell_row) * cell_columns + cell) * count * 2
                    start = ((b * height + row) * width + column) * groups * count
                    if grid == 1 and groups == 1:
                        for n in range(count):
                            factor = load(coefficients, start + n)
                            add_node(total, pitch, length, lefts, fractions, at + 2 * n, size, tile, i * pitch, factor)
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
                            add_node(total, pitch, length, lefts, fractions, at + 2 * n, size, grads, n * pitch, one)
                left += columns


@jit
def scatter(
    counter, tasks, grad, grads, q, qs, p, d, lefts, fractions, dims, pitch, channels, vchannels, grad_k, grad_ks,
    grad_v, grad_vs, shared,
):  # fmt: skip
    """Write the gradients of key and value. ``shared``: write the sum of both to the key's."""
    height, width, count, groups, grid = dims
    kind = fractions.dtype
    zero = kind.type(0)
    total = np.empty(height * width * pitch, kind)
    tile = np.empty(min(grid, PART) * TILE * pitch, kind)
    nodes = np.empty(count * pitch, kind)
    slices, vslices = (channels + pitch - 1) // pitch, (vchannels + pitch - 1) // pitch
    each = slices if shared else slices + vslices
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, piece = task // each, task % each
        fill(total, 0, height * width * pitch, zero)
        of_key = piece < slices
        first = (piece if of_key else piece - slices) * pitch
        length = min(pitch, (channels if of_key else vchannels) - first)
        rest = (total, tile, nodes, pitch, lefts, fractions, dims)
        if of_key:
            add_queries(q, b, first, length, qs, channels // groups, d, *rest)
        if shared or not of_key:
            add_queries(grad, b, first, length, grads, vchannels // groups, p, *rest)
        target, strides = (grad_k, grad_ks) if of_key else (grad_v, grad_vs)
        for row in range(height):
            write_tile(target, strides, (b, first, row, 0), 1, width, length, total, row * width * pitch, pitch)
