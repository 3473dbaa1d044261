"""Arithmetic on rows of channels, where the kernels spend their time, and the softmax over the nodes of a query.

The weighted sums are written with LLVM vectors. LLVM would not vectorise the loops itself: it cannot know that the row
written does not alias the rows read, and it does not keep a piece of a row in registers over an outer loop.
"""

import math
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from repgraph.ops.cpu.jit import inline
from repgraph.ops.cpu.memory import VECTOR, broadcast, compute_type, load, load_vector, pointer, store, store_vector

# Elements that the wide loops keep in registers: half of the 32 registers of AVX-512, or of 16 half as wide ones.
WIDE = (16 if llvm.get_host_cpu_features().get("avx512f") else 4) * VECTOR
MIDDLE = 4 * VECTOR
_FUSED = ("contract",)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)


def _make_sum(vectors: int) -> Any:
    @intrinsic
    def sum_piece(typingctx, target, at, source, shift, index, weight, count):
        """Add sum_m weight[m] source[index[m] + shift + c] to target[at + c], for one piece of a row."""

        def codegen(context, builder, signature, args):
            t, t_at, s, s_shift, i, w, n = args
            places = [builder.add(t_at, ir.Constant(t_at.type, j * VECTOR)) for j in range(vectors)]
            olds = [load_vector(context, builder, target, t, at) for at in places]
            sums = [cgutils.alloca_once_value(builder, old) for old in olds]
            with cgutils.for_range(builder, n) as loop:
                factor = broadcast(builder, builder.load(pointer(context, builder, weight, w, loop.index)))
                start = builder.add(builder.load(pointer(context, builder, index, i, loop.index)), s_shift)
                for j, total in enumerate(sums):
                    at = builder.add(start, ir.Constant(start.type, j * VECTOR))
                    row = load_vector(context, builder, source, s, at)
                    builder.store(multiply_add(builder, factor, row, builder.load(total)), total)
            for at, total in zip(places, sums, strict=True):
                store_vector(context, builder, target, t, at, builder.load(total))
            return context.get_dummy_value()

        n = types.intp
        assert compute_type(source) == target.dtype == weight.dtype
        return types.void(target, n, source, n, index, weight, n), codegen

    return sum_piece


sum_wide, sum_middle, sum_narrow = _make_sum(WIDE // VECTOR), _make_sum(MIDDLE // VECTOR), _make_sum(1)


def _make_add(vectors: int) -> Any:
    @intrinsic
    def add_piece(typingctx, target, at, source, start, factor):
        """Add factor * source[start + c] to target[at + c], for one piece of a row."""

        def codegen(context, builder, signature, args):
            t, t_at, s, s_at, f = args
            factor = broadcast(builder, f)
            for j in range(vectors):
                step = ir.Constant(t_at.type, j * VECTOR)
                at = builder.add(t_at, step)
                row = load_vector(context, builder, source, s, builder.add(s_at, step))
                old = load_vector(context, builder, target, t, at)
                store_vector(context, builder, target, t, at, multiply_add(builder, factor, row, old))
            return context.get_dummy_value()

        n = types.intp
        return types.void(target, n, source, n, target.dtype), codegen

    return add_piece


add_middle, add_narrow = _make_add(MIDDLE // VECTOR), _make_add(1)


@inline
def dot(a, i, b, j, length, total):
    """Return total + sum_c a[i + c] b[j + c]."""
    for c in range(length):
        total += load(a, i + c) * load(b, j + c)
    return total


@inline
def dot_node(a, i, b, j0, j1, j2, j3, weights, length, total):
    """Return total + a . node, for a node interpolated from the rows j0..j3 of b."""
    w0, w1, w2, w3 = weights
    for c in range(length):
        total += load(a, i + c) * (
            w0 * load(b, j0 + c) + w1 * load(b, j1 + c) + w2 * load(b, j2 + c) + w3 * load(b, j3 + c)
        )
    return total


@inline
def dot_corners(a, i, b, j0, j1, j2, j3, length, zero):
    """Return zero + a . b for each of four rows of b."""
    d0 = d1 = d2 = d3 = zero
    for c in range(length):
        x = load(a, i + c)
        d0 += x * load(b, j0 + c)
        d1 += x * load(b, j1 + c)
        d2 += x * load(b, j2 + c)
        d3 += x * load(b, j3 + c)
    return d0, d1, d2, d3


@inline
def add_elements(target, at, source, shift, index, weight, count, length):
    """Like ``add_rows``, one element at a time."""
    for c in range(length):
        total = load(target, at + c)
        for m in range(count):
            total += load(weight, m) * load(source, load(index, m) + shift + c)
        store(target, at + c, total)


@inline
def add_rows(target, at, source, shift, index, weight, count, length):
    """Add sum_m weight[m] source[index[m] + shift + c] to target[at + c]."""
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
    add_elements(target, at + c, source, shift + c, index, weight, count, length - c)


@inline
def add_row(target, at, source, start, factor, length):
    """Add factor * source[start + c] to target[at + c]."""
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
    """Set target[at + c] = number."""
    for c in range(length):
        store(target, at + c, number)


@inline
def softmax(logits, at, count):
    """Replace ``count`` logits by their softmax. Return their logsumexp."""
    top = load(logits, at)
    for n in range(1, count):
        top = max(top, load(logits, at + n))
    total = logits.dtype.type(0)
    for n in range(count):
        e = math.exp(load(logits, at + n) - top)
        store(logits, at + n, e)
        total += e
    for n in range(count):
        store(logits, at + n, load(logits, at + n) / total)
    return top + math.log(total)


@inline
def softmax_backward(p, b, at, count, scale):
    """Replace the gradients b of the weights p by those of the unscaled logits."""
    delta = p.dtype.type(0)
    for n in range(count):
        delta += load(p, at + n) * load(b, at + n)
    for n in range(count):
        store(b, at + n, load(p, at + n) * (load(b, at + n) - delta) * scale)
