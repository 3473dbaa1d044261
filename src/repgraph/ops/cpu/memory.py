"""Reading and writing flat arrays from inside kernels: unchecked, and as if bfloat16 were a number.

numpy has no bfloat16, so such maps arrive as uint16 arrays. ``load`` gives their elements as float32 and
``store`` rounds to the nearest even; any other array is read and written as it is. Indices are not wrapped
or checked, which is what lets LLVM vectorise the loops around them.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 16  # a power of two; 16 float32 fill a cache line
_I16, _I32 = ir.IntType(16), ir.IntType(32)


def compute_type(array: types.Array) -> types.Float:
    """What elements of ``array`` are computed in."""
    return types.float32 if array.dtype == types.uint16 else array.dtype


def _like(kind: ir.Type, shape: ir.Type) -> ir.Type:
    """``kind``, as a vector where ``shape`` is one."""
    return ir.VectorType(kind, shape.count) if isinstance(shape, ir.VectorType) else kind


def _constant(kind: ir.Type, number: int) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def decode(builder: Any, bits: Any) -> Any:
    """bfloat16 bits (i16 or a vector of them) as float."""
    wide = _like(_I32, bits.type)
    return builder.bitcast(builder.shl(builder.zext(bits, wide), _constant(wide, 16)), _like(ir.FloatType(), wide))


def encode(builder: Any, number: Any) -> Any:
    """float to bfloat16 bits, nearest even; NaN stays NaN, also where its upper half would be infinity."""
    wide = _like(_I32, number.type)
    bits = builder.bitcast(number, wide)
    high = builder.lshr(bits, _constant(wide, 16))
    bias = builder.add(builder.and_(high, _constant(wide, 1)), _constant(wide, 0x7FFF))
    rounded = builder.lshr(builder.add(bits, bias), _constant(wide, 16))
    quiet = builder.or_(high, _constant(wide, 0x40))
    return builder.trunc(
        builder.select(builder.fcmp_unordered("uno", number, number), quiet, rounded), _like(_I16, wide)
    )


def pointer(context: Any, builder: Any, kind: types.Array, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, value=array).data
    return cgutils.gep(builder, data, index)


@intrinsic
def load(typingctx, array, index):
    """``array[index]``, decoded where it is bfloat16."""
    result = compute_type(array)

    def codegen(context, builder, signature, args):
        value = builder.load(pointer(context, builder, array, *args))
        return decode(builder, value) if array.dtype == types.uint16 else value

    return result(array, types.intp), codegen


@intrinsic
def store(typingctx, array, index, number):
    """``array[index] = number``, rounded where it is bfloat16."""

    def codegen(context, builder, signature, args):
        value = encode(builder, args[2]) if array.dtype == types.uint16 else args[2]
        builder.store(value, pointer(context, builder, array, *args[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, compute_type(array)), codegen


@intrinsic
def take(typingctx, counter):
    """The next number of a counter that several threads draw from: ``counter[0]++``, atomically."""

    def codegen(context, builder, signature, args):
        place = pointer(context, builder, counter, args[0], ir.Constant(ir.IntType(64), 0))
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), codegen


@intrinsic
def transpose_block(typingctx, source, source_index, source_stride, target, target_index, target_stride):
    """target[j, i] = source[i, j] for a square of ``BLOCK``, held in registers.

    Both are flat arrays; a line of the square is unit stride, lines are ``*_stride`` apart.
    """
    n = BLOCK

    def codegen(context, builder, signature, args):
        a, ia, sa, b, ib, sb = args
        lines = []
        for i in range(n):
            at = pointer(context, builder, source, a, builder.add(ia, builder.mul(sa, ir.Constant(sa.type, i))))
            kind = ir.VectorType(context.get_value_type(source.dtype), n)
            line = builder.load(builder.bitcast(at, kind.as_pointer()), align=source.dtype.bitwidth // 8)
            if source.dtype == types.uint16 and target.dtype != types.uint16:
                line = decode(builder, line)
            lines.append(line)
        lines = _transposed(builder, lines)
        for i, line in enumerate(lines):
            if target.dtype == types.uint16 and source.dtype != types.uint16:
                line = encode(builder, line)
            at = pointer(context, builder, target, b, builder.add(ib, builder.mul(sb, ir.Constant(sb.type, i))))
            builder.store(line, builder.bitcast(at, line.type.as_pointer()), align=target.dtype.bitwidth // 8)
        return context.get_dummy_value()

    i = types.intp
    return types.void(source, i, i, target, i, i), codegen


def _transposed(builder: Any, lines: list) -> list:
    """The square transposed: at each step pairs of lines, ``step`` apart, exchange blocks of that width."""
    n = len(lines)
    step = n // 2
    while step:
        low = [j if j & step == 0 else n + j - step for j in range(n)]
        high = [j + step if j & step == 0 else n + j for j in range(n)]
        lines = list(lines)
        for i in range(n):
            if i & step == 0:
                first, second = lines[i], lines[i + step]
                for at, mask in ((i, low), (i + step, high)):
                    constant = ir.Constant(ir.VectorType(_I32, n), mask)
                    lines[at] = builder.shuffle_vector(first, second, constant)
        step //= 2
    return lines
