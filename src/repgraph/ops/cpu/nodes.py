"""Nodes on several maps: their positions, corners and weights, for one query and one set of nodes at a time.

The maps are rows of channels one after the other. ``table`` has width, height and first position of the map of each
node, three lists of ``count`` numbers. ``limits`` has the largest x of each node, then the largest y.
"""

import numpy as np

from repgraph.ops.cpu.arithmetic import add_row, dot_corners, dot_vectors
from repgraph.ops.cpu.direct import corner_products, slopes
from repgraph.ops.cpu.jit import exact, helper, uncounted
from repgraph.ops.cpu.memory import VECTOR, load, store


@exact
def position(offset, factor, shift):
    """Return offset * factor + shift, rounded twice: kernels and PyTorch have to agree on the corners."""
    return offset * factor + shift


@uncounted
def place_nodes(offsets, at, factors, x_shifts, x_at, y_shifts, y_at, count, places, to):
    """Write the positions (x, y) of ``count`` nodes."""
    for n in range(count):
        x = position(load(offsets, at + 2 * n), load(factors, n), load(x_shifts, x_at + n))
        y = position(load(offsets, at + 2 * n + 1), load(factors, count + n), load(y_shifts, y_at + n))
        store(places, to + 2 * n, x)
        store(places, to + 2 * n + 1, y)


@uncounted
def split(position, high):
    """Return the left corner and the fraction t of a position clamped to [-2, high]; of NaN, -2 and NaN."""
    low = type(position)(-2)
    limited = min(max(position, low), high)
    left = np.floor(limited)
    known = position == position
    return np.int32(left) if known else np.int32(-2), limited - left if known else position


@uncounted
def split_nodes(places, at, limits, count, lefts, fractions):
    """Write the left corners and fractions of nodes: x of all, then y of all."""
    for n in range(count):
        left, t = split(load(places, at + 2 * n), load(limits, n))
        store(lefts, n, left)
        store(fractions, n, t)
        left, t = split(load(places, at + 2 * n + 1), load(limits, count + n))
        store(lefts, count + n, left)
        store(fractions, count + n, t)


@uncounted
def read_node(lefts, fractions, table, n, count):
    """Return (height, width), the position of the top-left corner, its x and y, and the fractions of a node."""
    x, y = np.int64(load(lefts, n)), np.int64(load(lefts, count + n))
    width, height = load(table, n), load(table, count + n)
    return (
        (height, width),
        load(table, 2 * count + n) + y * width + x,
        x,
        y,
        load(fractions, n),
        load(fractions, count + n),
    )


@uncounted
def weights_of(tx, ty, factor):
    """Return the weights of the four corners times ``factor``."""
    one = type(factor)(1)
    top, bottom = (one - ty) * factor, ty * factor
    return (one - tx) * top, tx * top, (one - tx) * bottom, tx * bottom


@uncounted
def weigh_corners(lefts, fractions, table, count, factors, start, base, stride, index, weight):
    """List element index and weight of the corners on the maps, of nodes with the given factors. Return their number.

    Also return 0, or NaN if a position or factor is not a number.
    """
    found = 0
    zero = factors.dtype.type(0)
    nothing = zero
    for n in range(count):
        (height, width), first, x, y, tx, ty = read_node(lefts, fractions, table, n, count)
        w = weights_of(tx, ty, load(factors, start + n))
        nothing += zero * (w[0] + w[3])
        at, below = base + first * stride, width * stride
        if 0 <= x < width - 1 and 0 <= y < height - 1:
            store(index, found, at)
            store(index, found + 1, at + stride)
            store(index, found + 2, at + below)
            store(index, found + 3, at + below + stride)
            store(weight, found, w[0])
            store(weight, found + 1, w[1])
            store(weight, found + 2, w[2])
            store(weight, found + 3, w[3])
            found += 4
            continue
        for i in range(4):
            dx, dy = i & 1, i >> 1
            if 0 <= x + dx < width and 0 <= y + dy < height:
                store(index, found, at + dy * below + dx * stride)
                store(weight, found, w[i])
                found += 1
    return found, nothing


@helper
def border_dots(a, i, source, base, strides, x, y, size, length, nothing):
    """Do as ``corner_products``, compiled once: few nodes are at the border."""
    return corner_products(a, i, source, base, strides, x, y, size, length, nothing)


@uncounted
def corner_dots(a, i, source, base, stride, lefts, fractions, table, n, count, length):
    """Return the dot products of a row with the four corners of a node; zero off the map, NaN for a NaN position."""
    size, first, x, y, tx, ty = read_node(lefts, fractions, table, n, count)
    height, width = size
    nothing = (tx + ty) * fractions.dtype.type(0)
    j, below = base + first * stride, width * stride
    if not (0 <= x < width - 1 and 0 <= y < height - 1):
        return border_dots(a, i, source, j - y * below - x * stride, (below, stride), x, y, size, length, nothing)
    whole = length // VECTOR
    d = dot_vectors(a, i, source, j, j + stride, j + below, j + below + stride, whole)
    rest = whole * VECTOR
    if rest == length:
        return d
    i, j, length = i + rest, j + rest, length - rest
    e = dot_corners(a, i, source, j, j + stride, j + below, j + below + stride, length, nothing)
    return d[0] + e[0], d[1] + e[1], d[2] + e[2], d[3] + e[3]


@uncounted
def interpolate(d, tx, ty):
    """Return the bilinear interpolation of four corner values, and its derivatives in x and y."""
    one = type(tx)(1)
    top, bottom = (one - tx) * d[0] + tx * d[1], (one - tx) * d[2] + tx * d[3]
    along, down = slopes(d, tx, ty, one)
    return (one - ty) * top + ty * bottom, along, down


@uncounted
def add_to_corners(total, pitch, lefts, fractions, table, n, count, row, start, factor, length):
    """Add factor * row to the corners of a node in ``total``, whose rows are ``pitch`` apart."""
    (height, width), first, x, y, tx, ty = read_node(lefts, fractions, table, n, count)
    w = weights_of(tx, ty, factor)
    inside = 0 <= x < width - 1 and 0 <= y < height - 1
    for i in range(4):
        dx, dy = i & 1, i >> 1
        if inside or (0 <= x + dx < width and 0 <= y + dy < height):
            add_row(total, (first + dy * width + dx) * pitch, row, start, w[i], length)
