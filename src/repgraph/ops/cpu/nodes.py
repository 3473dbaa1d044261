"""Nodes on several maps: their positions, corners and weights, for one query and one set of nodes at a time.

The maps are rows of channels one after the other. ``table`` has width, height and first position of the map of each
node, three lists of ``count`` numbers. ``limits`` has the largest x of each node, then the largest y.
"""

import numpy as np

from repgraph.ops.cpu.arithmetic import add_row, dot, dot_node
from repgraph.ops.cpu.direct import corner_products
from repgraph.ops.cpu.jit import exact, inline
from repgraph.ops.cpu.memory import load, store


@exact
def position(offset, factor, shift):
    """Return offset * factor + shift, rounded twice: kernels and PyTorch have to agree on the corners."""
    return offset * factor + shift


@inline
def place_nodes(offsets, at, factors, x_shifts, x_at, y_shifts, y_at, count, places, to):
    """Write the positions (x, y) of ``count`` nodes."""
    for n in range(count):
        x = position(load(offsets, at + 2 * n), load(factors, n), load(x_shifts, x_at + n))
        y = position(load(offsets, at + 2 * n + 1), load(factors, count + n), load(y_shifts, y_at + n))
        store(places, to + 2 * n, x)
        store(places, to + 2 * n + 1, y)


@inline
def split(position, high):
    """Return the left corner and the fraction t of a position clamped to [-2, high]; of NaN, -2 and NaN."""
    low = type(position)(-2)
    limited = min(max(position, low), high)
    left = np.floor(limited)
    known = position == position
    return np.int32(left) if known else np.int32(-2), limited - left if known else position


@inline
def split_nodes(places, at, limits, count, lefts, fractions):
    """Write the left corners and fractions of nodes: x of all, then y of all."""
    for n in range(count):
        left, t = split(load(places, at + 2 * n), load(limits, n))
        store(lefts, n, left)
        store(fractions, n, t)
        left, t = split(load(places, at + 2 * n + 1), load(limits, count + n))
        store(lefts, count + n, left)
        store(fractions, count + n, t)


@inline
def read_node(lefts, fractions, table, n, count):
    """Return (height, width), the position of the top-left corner, its x and y, and the fractions of a node."""
    x, y = np.int64(load(lefts, n)), np.int64(load(lefts, count + n))
    width, height = load(table, n), load(table, count + n)
    return (height, width), load(table, 2 * count + n) + y * width + x, x, y, fractions[n], fractions[count + n]


@inline
def weights_of(tx, ty, factor):
    """Return the weights of the four corners times ``factor``."""
    one = type(factor)(1)
    top, bottom = (one - ty) * factor, ty * factor
    return (one - tx) * top, tx * top, (one - tx) * bottom, tx * bottom


@inline
def weigh_corners(lefts, fractions, table, count, factors, start, base, stride, index, weight):
    """List element index and weight of the corners on the maps, of nodes with the given factors. Return their number.

    Also return 0, or NaN if a position or factor is not a number.
    """
    found = 0
    zero = factors.dtype.type(0)
    nothing = zero
    for n in range(count):
        (height, width), first, x, y, tx, ty = read_node(lefts, fractions, table, n, count)
        factor = load(factors, start + n)
        w = weights_of(tx, ty, factor)
        nothing += zero * (w[0] + w[3])
        at = base + first * stride
        if 0 <= x < width - 1 and 0 <= y < height - 1:
            store(index, found, at)
            store(index, found + 1, at + stride)
            store(index, found + 2, at + width * stride)
            store(index, found + 3, at + width * stride + stride)
            for i in range(4):
                store(weight, found + i, w[i])
            found += 4
            continue
        for i in range(4):
            dx, dy = i & 1, i >> 1
            if 0 <= x + dx < width and 0 <= y + dy < height:
                store(index, found, at + (dy * width + dx) * stride)
                store(weight, found, w[i])
                found += 1
    return found, nothing


@inline
def node_product(a, i, source, base, stride, lefts, fractions, table, n, count, length):
    """Return the dot product of a row with an interpolated node."""
    (height, width), first, x, y, tx, ty = read_node(lefts, fractions, table, n, count)
    one = fractions.dtype.type(1)
    w = weights_of(tx, ty, one)
    nothing = (tx + ty) * fractions.dtype.type(0)  # NaN for a NaN offset, which reads nothing
    j, below = base + first * stride, width * stride
    if 0 <= x < width - 1 and 0 <= y < height - 1:
        return dot_node(a, i, source, j, j + stride, j + below, j + below + stride, w, length, nothing)
    total = nothing
    for c in range(4):
        dx, dy = c & 1, c >> 1
        if 0 <= x + dx < width and 0 <= y + dy < height:
            total += w[c] * dot(a, i, source, j + dy * below + dx * stride, length, nothing)
    return total


@inline
def node_slopes(a, i, source, base, stride, lefts, fractions, table, n, count, length):
    """Return the dot product of a row with an interpolated node, and its derivatives in x and y."""
    size, first, x, y, tx, ty = read_node(lefts, fractions, table, n, count)
    one = fractions.dtype.type(1)
    nothing = (tx + ty) * fractions.dtype.type(0)
    start = base + (first - y * size[1] - x) * stride
    d = corner_products(a, i, source, start, (size[1] * stride, stride), x, y, size, length, nothing)
    top, bottom = (one - tx) * d[0] + tx * d[1], (one - tx) * d[2] + tx * d[3]
    along = (one - ty) * (d[1] - d[0]) + ty * (d[3] - d[2])
    return (one - ty) * top + ty * bottom, along, bottom - top


@inline
def add_to_corners(total, pitch, lefts, fractions, table, n, count, row, start, factor, length):
    """Add factor * row to the corners of a node in ``total``, whose rows are ``pitch`` apart."""
    (height, width), first, x, y, tx, ty = read_node(lefts, fractions, table, n, count)
    w = weights_of(tx, ty, factor)
    inside = 0 <= x < width - 1 and 0 <= y < height - 1
    for i in range(4):
        dx, dy = i & 1, i >> 1
        if inside or (0 <= x + dx < width and 0 <= y + dy < height):
            add_row(total, (first + dy * width + dx) * pitch, row, start, w[i], length)
