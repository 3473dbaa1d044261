"""Arithmetic on rows of channels, where the kernels spend their time, and the softmax over the nodes of a query.

The weighted sums are written with LLVM vectors. LLVM would not vectorise the loops itself: it cannot know that the row
written does not alias the rows read, and it does not keep a piece of a row in registers over an outer loop.
"""

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from repgraph.ops.cpu.jit import inline
from repgraph.ops.cpu.memory import VECTOR, broadcast, compute_type, load, load_vector, pointer, store, store_vector

# Widths of the pieces of a row: the widest needs half of the 32 registers of AVX-512, or of 16 half as wide ones.
WIDTHS = *((16 * VECTOR,) if llvm.get_host_cpu_features().get("avx512f") else ()), 4 * VECTOR, VECTOR
_FUSED = ("contract",)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)


def for_pieces(builder: Any, length: Any, widths: Sequence[int], emit: Any) -> None:
    """Emit ``emit(start, steps, lanes)`` for the pieces of a row: vectors of ``lanes`` elements at the ``steps``."""
    start = ir.Constant(length.type, 0)
    for width in widths:
        size, lanes = ir.Constant(length.type, width), min(width, VECTOR)
        count = builder.udiv(builder.sub(length, start), size)
        with cgutils.for_range(builder, count) as loop:
            emit(builder.add(start, builder.mul(loop.index, size)), range(0, width, lanes), lanes)
        start = builder.add(start, builder.mul(count, size))


def plus(builder: Any, index: Any, number: int) -> Any:
    return builder.add(index, ir.Constant(index.type, number))


@intrinsic
def add_vectors(typingctx, target, at, source, shift, index, weight, count, length):
    """Like ``add_rows``, for the vectors in a row."""

    def codegen(context, builder, signature, args):
        t, at, s, shift, i, w, count, length = args

        def emit(start: Any, steps: range, lanes: int) -> None:
            place, shifted = builder.add(at, start), builder.add(shift, start)
            olds = [load_vector(context, builder, target, t, plus(builder, place, j), lanes) for j in steps]
            sums = [cgutils.alloca_once_value(builder, old) for old in olds]
            with cgutils.for_range(builder, count) as loop:
                factor = broadcast(builder, builder.load(pointer(context, builder, weight, w, loop.index)), lanes)
                row = builder.add(builder.load(pointer(context, builder, index, i, loop.index)), shifted)
                for j, total in zip(steps, sums, strict=True):
                    piece = load_vector(context, builder, source, s, plus(builder, row, j), lanes)
                    builder.store(multiply_add(builder, factor, piece, builder.load(total)), total)
            for j, total in zip(steps, sums, strict=True):
                store_vector(context, builder, target, t, plus(builder, place, j), builder.load(total))

        for_pieces(builder, length, WIDTHS, emit)
        return context.get_dummy_value()

    n = types.intp
    assert compute_type(source) == target.dtype == weight.dtype
    return types.void(target, n, source, n, index, weight, n, n), codegen


@inline
def add_rows(target, at, source, shift, index, weight, count, length):
    """Add sum_m weight[m] source[index[m] + shift + c] to target[at + c]."""
    add_vectors(target, at, source, shift, index, weight, count, length)
    for c in range(length // VECTOR * VECTOR, length):
        total = load(target, at + c)
        for m in range(count):
            total += load(weight, m) * load(source, load(index, m) + shift + c)
        store(target, at + c, total)


@inline
def add_row(target, at, source, start, factor, length):
    """Add factor * source[start + c] to target[at + c]."""
    for c in range(length):
        store(target, at + c, load(target, at + c) + factor * load(source, start + c))


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
