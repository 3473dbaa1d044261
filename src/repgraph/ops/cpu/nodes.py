"""From offsets to the corners that nodes are read from, and from node gradients back to offset gradients."""

import numpy as np

from repgraph.ops.cpu.geometry import corner
from repgraph.ops.cpu.jit import inline, jit
from repgraph.ops.cpu.memory import load, store, take


@jit
def place(counter, tasks, offsets, strides, columns, count, grid, size, lefts, fractions):
    """Left-top corners and fractions t of all nodes [B, Hc, Wc, S, 2], x then y. A task is a row of cells.

    ``offsets`` is flat with strides (b, c, h, w); ``size``: height and width of the map, rows of cells.
    """
    sb, sc, sh, sw = strides
    height, width, rows = size
    kind = fractions.dtype.type
    low = kind(-2)
    right, bottom = kind(width + 1), kind(height + 1)
    while True:
        task = take(counter)
        if task >= tasks:
            return
        b, row = task // rows, task % rows
        y0 = kind(row * grid)
        for n in range(count):
            at = b * sb + 2 * n * sc + row * sh
            for column in range(columns):
                end = ((task * columns + column) * count + n) * 2
                x = kind(load(offsets, at + column * sw)) + kind(column * grid)
                y = kind(load(offsets, at + sc + column * sw)) + y0
                left, t = corner(x, low, right)
                store(lefts, end, left)
                store(fractions, end, t)
                left, t = corner(y, low, bottom)
                store(lefts, end + 1, left)
                store(fractions, end + 1, t)


@jit
def give_back(counter, tasks, columns, count, rows, parts, grads, target):
    """Node gradients [B, Hc, parts, Wc, S, 2] as the offsets' gradient (B, 2S, Hc, Wc), contiguous.

    A task is a row of cells; ``parts`` of a cell were differentiated each by itself.
    """
    while True:
        task = take(counter)
        if task >= tasks:
            return
        b, row = task // rows, task % rows
        for c in range(2 * count):
            end = ((b * 2 * count + c) * rows + row) * columns
            for column in range(columns):
                total = load(grads, (task * parts * columns + column) * 2 * count + c)
                for part in range(1, parts):
                    total += load(grads, ((task * parts + part) * columns + column) * 2 * count + c)
                store(target, end + column, total)


@inline
def weigh(fractions, at):
    """Weights of a node's corners: left-top, right-top, left-bottom, right-bottom."""
    x, y = load(fractions, at), load(fractions, at + 1)
    one = fractions.dtype.type(1)
    return (one - x) * (one - y), x * (one - y), (one - x) * y, x * y


@inline
def left_top(lefts, at):
    """The left-top corner of a node."""
    return np.int64(load(lefts, at)), np.int64(load(lefts, at + 1))


@inline
def list_corners(lefts, fractions, at, count, size, base, strides, index, weight, node):
    """The corners of ``count`` nodes that lie on the map: where, their weights, whose; and how many."""
    height, width = size
    sh, sw = strides
    found = 0
    for n in range(count):
        x, y = left_top(lefts, at + 2 * n)
        weights = weigh(fractions, at + 2 * n)
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
