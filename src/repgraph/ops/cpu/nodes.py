"""Nodes on several maps: their corners and weights there, and sums and products of the rows of features at corners.

The maps are rows of channels one after the other. Nodes are computed ``VECTOR`` at a time: tables and scratch have room
for ``pitch`` nodes, the next multiple of ``VECTOR``. Numbers of corners are four lists: top left, top right, bottom
left, bottom right. There are no branches: for a corner off its map, kernels read a row of zeros, or write to a row that
is not used.

LLVM would not vectorize these loops itself: see ``arithmetic``.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from repgraph.ops.cpu.arithmetic import for_pieces, multiply_add, plus
from repgraph.ops.cpu.memory import VECTOR, broadcast, load_some, load_vector, pointer, store_vector

_WIDTHS = 4 * VECTOR, 2 * VECTOR, VECTOR, 1  # of the pieces of a row
_INDEX, _I32, _I64 = types.intp, ir.IntType(32), ir.IntType(64)


def _shuffle(builder: Any, a: Any, b: Any, lanes: Any) -> Any:
    lanes = list(lanes)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def _full(kind: ir.Type, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def _times(builder: Any, index: Any, number: int) -> Any:
    return builder.mul(index, ir.Constant(index.type, number))


def _split(builder: Any, position: Any, high: Any) -> tuple[Any, Any]:
    """Return the left corners and fractions t of positions clamped to [-2, high]; of NaN, -2 and NaN."""
    low = _full(position.type, -2.0)
    known = builder.fcmp_ordered("ord", position, position)
    limited = builder.select(known, position, low)
    limited = builder.select(builder.fcmp_ordered("<", limited, low), low, limited)
    limited = builder.select(builder.fcmp_ordered(">", limited, high), high, limited)
    name = f"llvm.floor.v{VECTOR}{'f32' if isinstance(position.type.element, ir.FloatType) else 'f64'}"
    kind = ir.FunctionType(position.type, [position.type])
    floor = cgutils.get_or_insert_function(builder.module, kind, name)
    left = builder.call(floor, [limited])
    fraction = builder.select(known, builder.fsub(limited, left), position)
    return builder.fptosi(left, ir.VectorType(_I32, VECTOR)), fraction


@intrinsic
def find_corners(typingctx, offsets, at, xs, x_at, ys, y_at, factors, limits, table, first, count, corners, fractions):
    """Write the corners' positions on the maps, and the fractions x and y of the nodes from ``first``.

    The position of a node is offset * factor + shift, rounded twice: kernels and PyTorch have to agree on the corners.
    ``xs`` and ``ys`` are shifts, ``limits`` the largest x, then y; ``table`` has width, height and first position of
    the map of each node. All but the offsets (x, y of each node) are lists of ``pitch`` numbers.
    """

    def codegen(context, builder, signature, args):
        o, at, xs_, x_at, ys_, y_at, factors_, limits_, table_, first, count, corners_, fractions_ = args
        pitch = _pitch(builder, count)
        halves, left = [], _times(builder, builder.sub(count, first), 2)
        for half in (0, VECTOR):
            place = plus(builder, builder.add(at, _times(builder, first, 2)), half)
            halves.append(load_some(context, builder, offsets, o, place, plus(builder, left, -half)))
        axes = []
        for axis, (kind, shifts, start) in enumerate(((xs, xs_, x_at), (ys, ys_, y_at))):
            offset = _shuffle(builder, halves[0], halves[1], range(axis, 2 * VECTOR, 2))
            own = builder.add(first, _times(builder, pitch, axis))
            shift = load_vector(context, builder, kind, shifts, builder.add(start, first))
            factor = load_vector(context, builder, factors, factors_, own)
            high = load_vector(context, builder, limits, limits_, own)
            corner, fraction = _split(builder, builder.fadd(builder.fmul(offset, factor), shift), high)
            store_vector(context, builder, fractions, fractions_, own, fraction)
            axes.append((corner, load_vector(context, builder, table, table_, own)))
        (x, width), (y, height) = axes
        start = load_vector(context, builder, table, table_, builder.add(first, _times(builder, pitch, 2)))
        one, nowhere = _full(x.type, 1), _full(x.type, -1)
        line = builder.add(start, builder.mul(y, width))
        place = first
        for _ in range(2):
            inside = builder.icmp_unsigned("<", y, height)
            for across in (x, builder.add(x, one)):
                valid = builder.and_(inside, builder.icmp_unsigned("<", across, width))
                position = builder.select(valid, builder.add(line, across), nowhere)
                store_vector(context, builder, corners, corners_, place, position)
                place = builder.add(place, pitch)
            y, line = builder.add(y, one), builder.add(line, width)
        return context.get_dummy_value()

    n = _INDEX
    return types.void(offsets, n, xs, n, ys, n, factors, limits, table, n, n, corners, fractions), codegen


def _pitch(builder: Any, count: Any) -> Any:
    """Return ``count`` rounded up to a multiple of ``VECTOR``."""
    return builder.and_(plus(builder, count, VECTOR - 1), ir.Constant(_I64, -VECTOR))


@intrinsic
def index_corners(typingctx, corners, base, stride, nowhere, count, index):
    """Write the element index of each corner's row: base + stride * corner, or ``nowhere`` off the maps."""

    def codegen(context, builder, signature, args):
        c, base, stride, nowhere, count, i = args
        base, stride, nowhere = (broadcast(builder, each) for each in (base, stride, nowhere))
        wide = ir.VectorType(_I64, VECTOR)
        vectors = builder.udiv(_pitch(builder, count), ir.Constant(_I64, VECTOR // 4))
        with cgutils.for_range(builder, vectors) as loop:
            at = _times(builder, loop.index, VECTOR)
            corner = load_vector(context, builder, corners, c, at)
            valid = builder.icmp_signed(">=", corner, _full(corner.type, 0))
            found = builder.add(base, builder.mul(builder.sext(corner, wide), stride))
            store_vector(context, builder, index, i, at, builder.select(valid, found, nowhere))
        return context.get_dummy_value()

    return types.void(corners, _INDEX, _INDEX, _INDEX, _INDEX, index), codegen


@intrinsic
def weigh_corners(typingctx, fractions, factors, at, count, weight):
    """Write the corners' weights, times the factor of each node."""

    def codegen(context, builder, signature, args):
        t, f, at, count, w = args
        pitch = _pitch(builder, count)
        with cgutils.for_range(builder, builder.udiv(pitch, ir.Constant(_I64, VECTOR))) as loop:
            first = _times(builder, loop.index, VECTOR)
            factor = load_some(context, builder, factors, f, builder.add(at, first), builder.sub(count, first))
            tx = load_vector(context, builder, fractions, t, first)
            ty = load_vector(context, builder, fractions, t, builder.add(first, pitch))
            one = _full(tx.type, 1.0)
            place = first
            for part in (builder.fsub(one, ty), ty):
                line = builder.fmul(part, factor)
                for share in (builder.fsub(one, tx), tx):
                    store_vector(context, builder, weight, w, place, builder.fmul(share, line))
                    place = builder.add(place, pitch)
        return context.get_dummy_value()

    return types.void(fractions, factors, _INDEX, _INDEX, weight), codegen


@intrinsic
def sum_nodes(typingctx, target, at, source, shift, index, weight, count, length):
    """Set target[at + c] to the sum of weight * source[index + shift + c] over all corners of the nodes."""

    def codegen(context, builder, signature, args):
        t, at, s, shift, i, w, count, length = args
        pitch = _pitch(builder, count)

        def emit(start: Any, steps: range, lanes: int) -> None:
            chains = 4 // len(steps)  # of additions, to hide their latency
            zero = ir.Constant(ir.VectorType(context.get_value_type(weight.dtype), lanes), None)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in steps] for _ in range(chains)]
            place, shifted = builder.add(at, start), builder.add(shift, start)
            with cgutils.for_range(builder, count) as loop:
                n = loop.index
                for corner in range(4):
                    factor = broadcast(builder, builder.load(pointer(context, builder, weight, w, n)), lanes)
                    row = builder.add(builder.load(pointer(context, builder, index, i, n)), shifted)
                    for j, total in zip(steps, sums[corner % chains], strict=True):
                        piece = load_vector(context, builder, source, s, plus(builder, row, j), lanes)
                        builder.store(multiply_add(builder, factor, piece, builder.load(total)), total)
                    n = builder.add(n, pitch)
            for j, parts in zip(steps, zip(*sums, strict=True), strict=True):
                numbers = [builder.load(part) for part in parts]
                while len(numbers) > 1:
                    numbers = [builder.fadd(a, b) for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
                store_vector(context, builder, target, t, plus(builder, place, j), numbers[0])

        for_pieces(builder, length, _WIDTHS, emit)
        return context.get_dummy_value()

    n = _INDEX
    return types.void(target, n, source, n, index, weight, n, n), codegen


@intrinsic
def add_to_nodes(typingctx, target, index, weight, count, row, at, length):
    """Add weight * row[at + c] to target[index + c], for all corners of the nodes."""

    def codegen(context, builder, signature, args):
        t, i, w, count, r, at, length = args
        pitch = _pitch(builder, count)

        def emit(start: Any, steps: range, lanes: int) -> None:
            own = builder.add(at, start)
            pieces = [load_vector(context, builder, row, r, plus(builder, own, j), lanes) for j in steps]
            with cgutils.for_range(builder, count) as loop:
                n = loop.index
                for _ in range(4):
                    factor = broadcast(builder, builder.load(pointer(context, builder, weight, w, n)), lanes)
                    first = builder.add(builder.load(pointer(context, builder, index, i, n)), start)
                    for j, piece in zip(steps, pieces, strict=True):
                        place = plus(builder, first, j)
                        old = load_vector(context, builder, target, t, place, lanes)
                        store_vector(context, builder, target, t, place, multiply_add(builder, factor, piece, old))
                    n = builder.add(n, pitch)

        for_pieces(builder, length, _WIDTHS, emit)
        return context.get_dummy_value()

    n = _INDEX
    return types.void(target, index, weight, n, row, n, n), codegen


@intrinsic
def dot_nodes(typingctx, row, at, source, shift, index, count, length, dots):
    """Write row[at + c] . source[index + shift + c] for the corners: four numbers for each node."""

    def codegen(context, builder, signature, args):
        r, at, s, shift, i, count, length, d = args
        pitch, number = _pitch(builder, count), context.get_value_type(dots.dtype)
        with cgutils.for_range(builder, builder.udiv(pitch, ir.Constant(_I64, VECTOR // 4))) as loop:
            zeros = ir.Constant(ir.VectorType(number, VECTOR), None)
            store_vector(context, builder, dots, d, _times(builder, loop.index, VECTOR), zeros)

        def emit(start: Any, steps: range, lanes: int) -> None:
            own, shifted = builder.add(at, start), builder.add(shift, start)
            pieces = [load_vector(context, builder, row, r, plus(builder, own, j), lanes) for j in steps]
            with cgutils.for_range(builder, count) as loop:
                n, sums = loop.index, []
                for _ in range(4):
                    first = builder.add(builder.load(pointer(context, builder, index, i, n)), shifted)
                    total = ir.Constant(ir.VectorType(number, lanes), None)
                    for j, piece in zip(steps, pieces, strict=True):
                        other = load_vector(context, builder, source, s, plus(builder, first, j), lanes)
                        total = multiply_add(builder, piece, other, total)
                    sums.append(total)
                    n = builder.add(n, pitch)
                place, totals = _times(builder, loop.index, 4), _totals(builder, sums)
                old = load_vector(context, builder, dots, d, place, 4)
                store_vector(context, builder, dots, d, place, builder.fadd(old, totals))

        for_pieces(builder, length, _WIDTHS, emit)
        return context.get_dummy_value()

    n = _INDEX
    return types.void(row, n, source, n, index, n, n, dots), codegen


def _joined(builder: Any, vectors: list) -> Any:
    """Return four vectors one after the other."""
    width = vectors[0].type.count
    halves = [_shuffle(builder, a, b, range(2 * width)) for a, b in (vectors[:2], vectors[2:])]
    return _shuffle(builder, halves[0], halves[1], range(4 * width))


def _totals(builder: Any, vectors: list) -> Any:
    """Return the sums of the elements of four vectors."""
    total = _joined(builder, vectors)
    while (width := total.type.count) > 4:
        even, odd = (_shuffle(builder, total, total, range(j, width, 2)) for j in range(2))
        total = builder.fadd(even, odd)
    return total


@intrinsic
def interpolate_nodes(typingctx, dots, fractions, count, results):
    """Write interpolations of the corners' numbers for all nodes, then their derivatives in x, and those in y."""

    def codegen(context, builder, signature, args):
        d, t, count, r = args
        pitch = _pitch(builder, count)
        with cgutils.for_range(builder, builder.udiv(pitch, ir.Constant(_I64, VECTOR))) as loop:
            first = _times(builder, loop.index, VECTOR)
            start = _times(builder, first, 4)
            parts = [load_vector(context, builder, dots, d, plus(builder, start, j * VECTOR)) for j in range(4)]
            together = _joined(builder, parts)
            a, b, c, e = (_shuffle(builder, together, together, range(j, 4 * VECTOR, 4)) for j in range(4))
            tx = load_vector(context, builder, fractions, t, first)
            ty = load_vector(context, builder, fractions, t, builder.add(first, pitch))
            one = _full(tx.type, 1.0)

            def mix(share: Any, a: Any, b: Any, one: Any = one) -> Any:
                return multiply_add(builder, share, b, builder.fmul(builder.fsub(one, share), a))

            top, bottom = mix(tx, a, b), mix(tx, c, e)
            along = mix(ty, builder.fsub(b, a), builder.fsub(e, c))
            down = mix(tx, builder.fsub(c, a), builder.fsub(e, b))
            for result in (mix(ty, top, bottom), along, down):
                store_vector(context, builder, results, r, first, result)
                first = builder.add(first, pitch)
        return context.get_dummy_value()

    return types.void(dots, fractions, _INDEX, results), codegen
