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

from repgraph.ops.cpu.jit import inline, uncounted
from repgraph.ops.cpu.memory import VECTOR, compute_type, load, load_vector, pointer, store, store_vector

# Elements that the wide loops keep in registers: half of the 32 registers of AVX-512, or of 16 half as wide ones.
WIDE = (16 if llvm.get_host_cpu_features().get("avx512f") else 4) * VECTOR
MIDDLE = 4 * VECTOR
_FUSED = ("contract",)


def broadcast(builder: Any, number: Any) -> Any:
    vector = ir.VectorType(number.type, VECTOR)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), VECTOR), [0] * VECTOR)
    return builder.shuffle_vector(first, first, mask)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)


def _make_sum(vectors: int, chains: int = 1) -> Any:
    """Make the weighted sum of one piece of a row. Narrow pieces need several chains of additions to hide latency."""

    @intrinsic
    def sum_piece(typingctx, target, at, source, shift, index, weight, count):
        """Add sum_m weight[m] source[index[m] + shift + c] to target[at + c], for one piece of a row."""

        def codegen(context, builder, signature, args):
            t, t_at, s, s_shift, i, w, n = args
            places = [builder.add(t_at, ir.Constant(t_at.type, j * VECTOR)) for j in range(vectors)]
            olds = [load_vector(context, builder, target, t, at) for at in places]
            zero = ir.Constant(olds[0].type, None)
            starts = [olds, *([zero] * vectors for _ in range(chains - 1))]
            sums = [[cgutils.alloca_once_value(builder, each) for each in chain] for chain in starts]

            def add(m: Any, chain: list) -> None:
                factor = broadcast(builder, builder.load(pointer(context, builder, weight, w, m)))
                start = builder.add(builder.load(pointer(context, builder, index, i, m)), s_shift)
                for j, total in enumerate(chain):
                    at = builder.add(start, ir.Constant(start.type, j * VECTOR))
                    row = load_vector(context, builder, source, s, at)
                    builder.store(multiply_add(builder, factor, row, builder.load(total)), total)

            step = ir.Constant(n.type, chains)
            whole = builder.udiv(n, step)
            with cgutils.for_range(builder, whole) as loop:
                first = builder.mul(loop.index, step)
                for each, chain in enumerate(sums):
                    add(builder.add(first, ir.Constant(n.type, each)), chain)
            if chains > 1:
                with cgutils.for_range(builder, n, start=builder.mul(whole, step)) as loop:
                    add(loop.index, sums[0])
            for at, *parts in zip(places, *sums, strict=True):
                total = builder.load(parts[0])
                for part in parts[1:]:
                    total = builder.fadd(total, builder.load(part))
                store_vector(context, builder, target, t, at, total)
            return context.get_dummy_value()

        n = types.intp
        assert compute_type(source) == target.dtype == weight.dtype
        return types.void(target, n, source, n, index, weight, n), codegen

    return sum_piece


sum_wide, sum_middle, sum_narrow = _make_sum(WIDE // VECTOR), _make_sum(MIDDLE // VECTOR), _make_sum(1)
sum_two, sum_one = _make_sum(2, 2), _make_sum(1, 4)


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


def _fold(builder: Any, a: Any, b: Any) -> Any:
    """Return the vector of sums of neighbours in a, then in b."""
    lanes = a.type.count
    even, odd = (ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(k, 2 * lanes, 2))) for k in (0, 1))
    return builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))


@intrinsic
def dot_vectors(typingctx, a, i, b, j0, j1, j2, j3, vectors):
    """Return a . b for each of four rows of b, of ``vectors`` times ``VECTOR`` channels."""
    kind = compute_type(a)

    def codegen(context, builder, signature, args):
        a_, i_, b_, *rows, n = args
        zero = ir.Constant(ir.VectorType(context.get_value_type(kind), VECTOR), None)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in rows]
        with cgutils.for_range(builder, n) as loop:
            c = builder.mul(loop.index, ir.Constant(n.type, VECTOR))
            x = load_vector(context, builder, a, a_, builder.add(i_, c))
            for row, total in zip(rows, sums, strict=True):
                y = load_vector(context, builder, b, b_, builder.add(row, c))
                builder.store(multiply_add(builder, x, y, builder.load(total)), total)
        parts = [builder.load(total) for total in sums]
        lanes = VECTOR
        while lanes > 4:  # halves of each sum, down to four lanes
            lanes //= 2
            low, high = (
                ir.Constant(ir.VectorType(ir.IntType(32), lanes), list(range(k, k + lanes))) for k in (0, lanes)
            )
            parts = [builder.fadd(builder.shuffle_vector(p, p, low), builder.shuffle_vector(p, p, high)) for p in parts]
        total = _fold(builder, _fold(builder, *parts[:2]), _fold(builder, *parts[2:]))
        numbers = [builder.extract_element(total, ir.Constant(ir.IntType(32), k)) for k in range(4)]
        return context.make_tuple(builder, signature.return_type, numbers)

    n = types.intp
    return types.UniTuple(kind, 4)(a, n, b, n, n, n, n, n), codegen


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
    """Do as ``add_rows``, one element at a time."""
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


@uncounted
def add_short_rows(target, at, source, shift, index, weight, count, length):
    """Do as ``add_rows``, but faster for rows of 16 to 63 channels, and in another order of additions."""
    c = 0
    while c + MIDDLE <= length:
        sum_middle(target, at + c, source, shift + c, index, weight, count)
        c += MIDDLE
    while c + 2 * VECTOR <= length:
        sum_two(target, at + c, source, shift + c, index, weight, count)
        c += 2 * VECTOR
    while c + VECTOR <= length:
        sum_one(target, at + c, source, shift + c, index, weight, count)
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
