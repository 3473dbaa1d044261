"""Loops over rows that LLVM would not vectorise by itself, written with vectors.

LLVM cannot know that a row that is written is none of those that are read, and it does not keep a piece of a
row in registers while a loop around it runs over many rows. Both are stated here.
"""

from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from repgraph.ops.cpu.memory import compute_type, decode, pointer

VECTOR = 16  # elements: one AVX-512 register of float32; LLVM splits it for narrower machines
# What the wide loops hold in registers: half of the 32 that AVX-512 has, and of the 16 elsewhere (in halves).
WIDE = (16 if llvm.get_host_cpu_features().get("avx512f") else 4) * VECTOR
MIDDLE = 4 * VECTOR
_FUSED = ("contract",)


def load_vector(context: Any, builder: Any, kind: types.Array, array: Any, index: Any) -> Any:
    at = pointer(context, builder, kind, array, index)
    vector = ir.VectorType(context.get_value_type(kind.dtype), VECTOR)
    value = builder.load(builder.bitcast(at, vector.as_pointer()), align=kind.dtype.bitwidth // 8)
    return decode(builder, value) if kind.dtype == types.uint16 else value


def store_vector(context: Any, builder: Any, kind: types.Array, array: Any, index: Any, value: Any) -> None:
    at = pointer(context, builder, kind, array, index)
    builder.store(value, builder.bitcast(at, value.type.as_pointer()), align=kind.dtype.bitwidth // 8)


def broadcast(builder: Any, number: Any) -> Any:
    vector = ir.VectorType(number.type, VECTOR)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), VECTOR), [0] * VECTOR)
    return builder.shuffle_vector(first, first, mask)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FUSED), c, flags=_FUSED)


def _summing(vectors: int) -> Any:
    @intrinsic
    def sum_piece(typingctx, target, at, source, shift, index, weight, count):
        """target[at + c] += sum_m weight[m] source[index[m] + shift + c] for one piece of a row."""

        def codegen(context, builder, signature, args):
            t, t_at, s, s_shift, i, w, n = args
            places = [builder.add(t_at, ir.Constant(t_at.type, j * VECTOR)) for j in range(vectors)]
            sums = [cgutils.alloca_once_value(builder, load_vector(context, builder, target, t, at)) for at in places]
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


sum_wide, sum_middle, sum_narrow = _summing(WIDE // VECTOR), _summing(MIDDLE // VECTOR), _summing(1)


def _adding(vectors: int) -> Any:
    @intrinsic
    def add_piece(typingctx, target, at, source, start, factor):
        """target[at + c] += factor source[start + c] for one piece of a row."""

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


add_middle, add_narrow = _adding(MIDDLE // VECTOR), _adding(1)
