"""Node positions, by the coordinate convention of ``repgraph.ops.geometry``: corners, and their weights."""

import numpy as np

from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, next_task, store


@inline
def corner(position, low, high):
    """Return the left corner and the fraction t of a position clamped to [low, high]; of NaN, -2 and NaN."""
    if position != position:
        return np.int32(-2), position
    limited = min(max(position, low), high)
    left = np.floor(limited)
    return np.int32(left), limited - left


@jit
def locate_nodes(counter, tasks, offsets, strides, columns, count, grid, size, lefts, fractions):
    """Write the top-left corners and fractions t of all nodes, [B, Hc, Wc, S, 2] with x before y."""
    sb, _, sh, sw = strides
    height, width, rows = size
    kind = fractions.dtype.type
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        b, row = task // rows, task % rows
        for column in range(columns):
            at, to = b * sb + row * sh + column * sw, (task * columns + column) * 2 * count
            for n in range(2 * count):
                cell, length = (row, height) if n & 1 else (column, width)
                left, t = corner(load(offsets, at + n) + kind(cell * grid), kind(-2), kind(length + 1))
                store(lefts, to + n, left)
                store(fractions, to + n, t)


@inline
def corner_weights(fractions, at):
    """Return the weights of a node's corners: top left, top right, bottom left, bottom right."""
    x, y = load(fractions, at), load(fractions, at + 1)
    one = fractions.dtype.type(1)
    return (one - x) * (one - y), x * (one - y), (one - x) * y, x * y


@inline
def top_left(lefts, at):
    """Return the top-left corner (x, y) of a node."""
    return np.int64(load(lefts, at)), np.int64(load(lefts, at + 1))


@inline
def list_corners(lefts, fractions, at, count, size, base, strides, index, weight, node):
    """List the corners of ``count`` nodes that are on the map: element index, weight and node. Return their number."""
    height, width = size
    sh, sw = strides
    found = 0
    for n in range(count):
        x, y = top_left(lefts, at + 2 * n)
        weights = corner_weights(fractions, at + 2 * n)
        start = base + y * sh + x * sw
        inside = 0 <= x < width - 1 and 0 <= y < height - 1
        for i in range(4):
            dx, dy = i & 1, i >> 1
            if inside or (0 <= x + dx < width and 0 <= y + dy < height):
                store(index, found, start + dy * sh + dx * sw)
                store(weight, found, weights[i])
                store(node, found, n)
                found += 1
    return found
