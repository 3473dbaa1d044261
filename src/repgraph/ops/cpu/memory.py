"""Memory access inside kernels: elements of flat arrays, and tiles of maps copied to and from scratch.

numpy has no bfloat16, so such maps arrive as uint16 arrays. ``load`` returns their elements as float32 and ``store``
rounds to nearest even. Indices are neither wrapped nor checked, so that LLVM can vectorize the loops around them.

In scratch every position of a tile is one row of channels, and rows are ``pitch`` elements apart. Position (row,
column) is scratch row ``column * rows + row``, so that neighbors in scratch are neighbors on the map.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from repgraph.ops.cpu.jit import helper, inline, jit

VECTOR = 16  # elements: one AVX-512 register of float32; LLVM splits it for narrower registers
BLOCK = VECTOR  # side of a transposed block; 16 float32 fill a cache line
LINE = 64  # bytes of a cache line
CHUNK = 64  # positions in a task of ``copy_map``
_I16, _I32 = ir.IntType(16), ir.IntType(32)


def compute_type(array: types.Array) -> types.Float:
    """Return the type that elements of ``array`` are computed in."""
    return types.float32 if array.dtype == types.uint16 else array.dtype


def _like(kind: ir.Type, shape: ir.Type) -> ir.Type:
    """Return ``kind``, or a vector of it if ``shape`` is a vector."""
    return ir.VectorType(kind, shape.count) if isinstance(shape, ir.VectorType) else kind


def _constant(kind: ir.Type, number: int) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number)


def decode(builder: Any, bits: Any) -> Any:
    """Convert bfloat16 bits (i16 or a vector of i16) to float."""
    wide = _like(_I32, bits.type)
    return builder.bitcast(builder.shl(builder.zext(bits, wide), _constant(wide, 16)), _like(ir.FloatType(), wide))


def encode(builder: Any, number: Any) -> Any:
    """Convert float to bfloat16 bits, to nearest even. NaN stays NaN, even if truncation would make it infinity."""
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


def broadcast(builder: Any, number: Any, width: int = VECTOR) -> Any:
    vector, lanes = ir.VectorType(number.type, width), ir.VectorType(_I32, width)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, first, ir.Constant(lanes, [0] * width))


def load_vector(
    context: Any, builder: Any, kind: types.Array, array: Any, index: Any, width: int = VECTOR, raw: bool = False
) -> Any:
    """Load ``width`` elements."""
    vector = ir.VectorType(context.get_value_type(kind.dtype), width)
    at = builder.bitcast(pointer(context, builder, kind, array, index), vector.as_pointer())
    value = builder.load(at, align=kind.dtype.bitwidth // 8)
    return decode(builder, value) if kind.dtype == types.uint16 and not raw else value


def load_some(context: Any, builder: Any, kind: types.Array, array: Any, index: Any, count: Any) -> Any:
    """Load up to ``VECTOR`` floats: the first ``count``, and zeros. Nothing after them is read."""
    vector = ir.VectorType(context.get_value_type(kind.dtype), VECTOR)
    steps = ir.Constant(ir.VectorType(count.type, VECTOR), list(range(VECTOR)))
    mask = builder.icmp_signed("<", steps, broadcast(builder, count))
    at = builder.bitcast(pointer(context, builder, kind, array, index), vector.as_pointer())
    name = f"llvm.masked.load.v{VECTOR}f{kind.dtype.bitwidth}.p0"
    signature = ir.FunctionType(vector, [at.type, _I32, mask.type, vector])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    align = ir.Constant(_I32, kind.dtype.bitwidth // 8)
    return builder.call(function, [at, align, mask, ir.Constant(vector, None)])


def store_vector(
    context: Any, builder: Any, kind: types.Array, array: Any, index: Any, value: Any, raw: bool = False
) -> None:
    value = encode(builder, value) if kind.dtype == types.uint16 and not raw else value
    at = builder.bitcast(pointer(context, builder, kind, array, index), value.type.as_pointer())
    builder.store(value, at, align=kind.dtype.bitwidth // 8)


@intrinsic
def load(typingctx, array, index):
    """Return ``array[index]``, bfloat16 as float32."""
    result = compute_type(array)

    def codegen(context, builder, signature, args):
        value = builder.load(pointer(context, builder, array, *args))
        return decode(builder, value) if array.dtype == types.uint16 else value

    return result(array, types.intp), codegen


@intrinsic
def store(typingctx, array, index, number):
    """Set ``array[index] = number``, rounded for bfloat16."""

    def codegen(context, builder, signature, args):
        value = encode(builder, args[2]) if array.dtype == types.uint16 else args[2]
        builder.store(value, pointer(context, builder, array, *args[:2]))
        return context.get_dummy_value()

    return types.void(array, types.intp, compute_type(array)), codegen


@intrinsic
def prefetch(typingctx, array, index, count):
    """Start to read ``count`` elements, which may lie past the end of the array."""

    def codegen(context, builder, signature, args):
        a, i, n = args
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        step = LINE // (array.dtype.bitwidth // 8)
        lines = builder.udiv(builder.add(n, ir.Constant(n.type, step - 1)), ir.Constant(n.type, step))
        with cgutils.for_range(builder, lines) as loop:
            at = builder.add(i, builder.mul(loop.index, ir.Constant(n.type, step)))
            place = builder.bitcast(pointer(context, builder, array, a, at), byte)
            builder.call(function, [place, *(ir.Constant(number, k) for k in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), codegen


@intrinsic
def next_task(typingctx, counter):
    """Return ``counter[0]++``, atomically: the next task of a kernel that runs on several threads."""

    def codegen(context, builder, signature, args):
        place = pointer(context, builder, counter, args[0], ir.Constant(ir.IntType(64), 0))
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), codegen


@intrinsic
def transpose_block(typingctx, source, source_index, source_stride, target, target_index, target_stride):
    """Set target[j, i] = source[i, j] for a square block of side ``BLOCK``, whose lines are ``*_stride`` apart."""
    raw = source.dtype == target.dtype

    def codegen(context, builder, signature, args):
        a, ia, sa, b, ib, sb = args
        lines = []
        for i in range(BLOCK):
            at = builder.add(ia, builder.mul(sa, ir.Constant(sa.type, i)))
            lines.append(load_vector(context, builder, source, a, at, raw=raw))
        for i, line in enumerate(_transposed(builder, lines)):
            at = builder.add(ib, builder.mul(sb, ir.Constant(sb.type, i)))
            store_vector(context, builder, target, b, at, line, raw)
        return context.get_dummy_value()

    i = types.intp
    return types.void(source, i, i, target, i, i), codegen


def _transposed(builder: Any, lines: list) -> list:
    """Transpose a block: at each step, pairs of lines ``step`` apart exchange sub-blocks of that width."""
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


@helper
def copy_tile(source, start, source_strides, target, end, target_strides, rows, columns, channels):
    """Copy a tile; strides are (row, column, channel), and the channels of source or target are adjacent."""
    si, sj, sc = source_strides
    ti, tj, tc = target_strides
    if sc == 1 and tc == 1:
        for column in range(columns):
            for row in range(rows):
                for c in range(channels):
                    store(target, end + row * ti + column * tj + c, load(source, start + row * si + column * sj + c))
        return
    from_rows, to_rows = (sc, tj) if sj == 1 else (sj, tc)  # strides between the lines of a transposed block
    blocks = (sj == 1 or tj == 1) and columns >= BLOCK and channels >= BLOCK
    for row in range(rows):
        s, t = start + row * si, end + row * ti
        if blocks:
            for i in range(0, columns, BLOCK):
                column = min(i, columns - BLOCK)  # the last block may overlap the one before it
                for j in range(0, channels, BLOCK):
                    c = min(j, channels - BLOCK)
                    transpose_block(
                        source, s + column * sj + c * sc, from_rows, target, t + column * tj + c * tc, to_rows
                    )
        else:
            for c in range(channels):
                for column in range(columns):
                    store(target, t + column * tj + c * tc, load(source, s + column * sj + c * sc))


@inline
def read_tile(source, strides, start, rows, columns, channels, target, at, pitch):
    """Copy the tile of a map that starts at (b, c, h, w) = ``start`` to the scratch rows from ``at``."""
    sb, sc, sh, sw = strides
    base = start[0] * sb + start[1] * sc + start[2] * sh + start[3] * sw
    copy_tile(source, base, (sh, sw, sc), target, at, (pitch, rows * pitch, 1), rows, columns, channels)


@inline
def write_tile(target, strides, start, rows, columns, channels, source, at, pitch):
    """Copy the scratch rows from ``at`` to a tile of a map; the inverse of ``read_tile``."""
    sb, sc, sh, sw = strides
    base = start[0] * sb + start[1] * sc + start[2] * sh + start[3] * sw
    copy_tile(source, at, (pitch, rows * pitch, 1), target, base, (sh, sw, sc), rows, columns, channels)


@jit
def copy_map(counter, tasks, source, strides, target, target_strides, height, width, channels):
    """Copy a map from or to rows of channels. A task is up to ``CHUNK`` positions of a row."""
    sb, sc, sh, sw = strides
    tb, tc, th, tw = target_strides
    chunks = (width + CHUNK - 1) // CHUNK
    while True:
        task = next_task(counter)
        if task >= tasks:
            return
        line, left = task // chunks, task % chunks * CHUNK
        b, row = line // height, line % height
        start, end = b * sb + row * sh + left * sw, b * tb + row * th + left * tw
        columns = min(CHUNK, width - left)
        copy_tile(source, start, (sh, sw, sc), target, end, (th, tw, tc), 1, columns, channels)
