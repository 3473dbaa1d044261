"""Arithmetic on rows of channels: what the kernels spend their time in."""

from repgraph.ops.cpu.jit import inline
from repgraph.ops.cpu.memory import load, store
from repgraph.ops.cpu.vectors import (
    MIDDLE,
    VECTOR,
    WIDE,
    add_middle,
    add_narrow,
    sum_middle,
    sum_narrow,
    sum_wide,
)


@inline
def dot(a, i, b, j, length, total):
    """total + sum_c a[i + c] b[j + c]."""
    for c in range(length):
        total += load(a, i + c) * load(b, j + c)
    return total


@inline
def dot_node(a, i, b, j0, j1, j2, j3, weights, length, total):
    """total + a . node, for a node whose corners are the rows j0..j3 of b."""
    w0, w1, w2, w3 = weights
    for c in range(length):
        total += load(a, i + c) * (
            w0 * load(b, j0 + c) + w1 * load(b, j1 + c) + w2 * load(b, j2 + c) + w3 * load(b, j3 + c)
        )
    return total


@inline
def dot_corners(a, i, b, j0, j1, j2, j3, length, zero):
    """a . b for four rows of b."""
    d0 = d1 = d2 = d3 = zero
    for c in range(length):
        x = load(a, i + c)
        d0 += x * load(b, j0 + c)
        d1 += x * load(b, j1 + c)
        d2 += x * load(b, j2 + c)
        d3 += x * load(b, j3 + c)
    return d0, d1, d2, d3


@inline
def add_rows(target, at, source, shift, index, weight, count, length):
    """target[at + c] += sum_m weight[m] source[index[m] + shift + c]."""
    c = 0
    while c + WIDE <= length:
        sum_wide(target, at + c, source, shift + c, index, weight, count)
        c += WIDE
    while c + MIDDLE <= length:
        sum_middle(target, at + c, source, shift + c, index, weight, count)
        c += MIDDLE
    while c + VECTOR <= length:
        sum_narrow(target, at + c, source, shift + c, index, weight, count)
        c += VECTOR
    while c < length:
        total = load(target, at + c)
        for m in range(count):
            total += load(weight, m) * load(source, load(index, m) + shift + c)
        store(target, at + c, total)
        c += 1


@inline
def add_row(target, at, source, start, factor, length):
    """target[at + c] += factor source[start + c]."""
    c = 0
    while c + MIDDLE <= length:
        add_middle(target, at + c, source, start + c, factor)
        c += MIDDLE
    while c + VECTOR <= length:
        add_narrow(target, at + c, source, start + c, factor)
        c += VECTOR
    while c < length:
        store(target, at + c, load(target, at + c) + factor * load(source, start + c))
        c += 1


@inline
def fill(target, at, length, number):
    """target[at + c] = number."""
    for c in range(length):
        store(target, at + c, number)
