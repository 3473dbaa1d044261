"""x + W a + b with warp specialization, for NVIDIA Hopper GPUs.

84 us instead of the 105 us of the plain Triton kernel (32,768 x 2048, C' = 256, bfloat16, H200). Written in Gluon,
Triton's experimental low-level language; other GPUs and versions use the kernel of ``repgraph.ops.triton.product``.

A program keeps the weights of 256 columns (128 in float32) in shared memory and streams over the rows, M at a time. One
warp loads ``a`` and one loads ``x``. Two groups of four warps alternate: each holds M rows of ``a`` in registers,
multiplies them with the columns, N at a time, and adds the result to the tile of ``x`` in place. While one group
multiplies, the other adds. The last rows are processed first, because the previous kernel left them in the cache.
Tensor cores read float32 as TF32 and truncate the rest, so both factors are rounded to TF32 first.
"""

from functools import lru_cache

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from repgraph.ops import tf32
from repgraph.ops.triton.plan import cdiv, descriptor, launch, version

VERSIONS = ((3, 6),)  # of Triton on which the kernel was tested; it compiles with 3.6 to 3.9
INNER = 256  # channels of ``a``
_ROWS, _COLUMNS = 64, 128  # of a tile of ``x``
_PIECES = 4  # loads per M rows of ``a``
_MIN_TILES = 16  # of M rows for each program, which has to load the weights first (measured with 32)
_REGISTERS = (232, 24)  # per thread: of warps that multiply, and of warps that load

# Renamed in Triton 3.7.
read_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
write_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """Allocate NUMBER barriers in shared memory, each of which waits for COUNT arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(made.index(i), count=COUNT)
    return made


@gluon.jit
def _fetch_factors(
    a, weight, weights, weights_full, pieces, full, free, place, places, count, column, M: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr,
    SIZE: gl.constexpr,
):  # fmt: skip
    for part in gl.static_range(PARTS):
        mbarrier.expect(weights_full.index(part), N * K * SIZE)
        read_tile(weight, [column + part * N, 0], weights_full.index(part), weights.index(part))
    for i in range(count):
        row = ((count - 1 - i) * places + place) * M
        for piece in gl.static_range(PIECES):
            slot = piece % SLOTS
            ready = full.index(i % 2 * SLOTS + slot)
            mbarrier.wait(free.index(slot), ((i * PIECES + piece) // SLOTS & 1) ^ 1)
            mbarrier.expect(ready, M * (K // PIECES) * SIZE)
            read_tile(a, [row, piece * (K // PIECES)], ready, pieces.index(slot))


@gluon.jit
def _fetch_tiles(
    x, tiles, full, free, place, places, count, column, M: gl.constexpr, N: gl.constexpr, PARTS: gl.constexpr,
    TILES: gl.constexpr, SIZE: gl.constexpr,
):  # fmt: skip
    for i in range(count):
        row = ((count - 1 - i) * places + place) * M
        for part in gl.static_range(PARTS):
            j = i * PARTS + part
            slot = j % TILES
            mbarrier.wait(free.index(slot), (j // TILES & 1) ^ 1)
            mbarrier.expect(full.index(slot), M * N * SIZE)
            read_tile(x, [row, column + part * N], full.index(slot), tiles.index(slot))


@gluon.jit
def _round_tf32(t):
    return gl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [t], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _multiply(
    y, shifts, weights, weights_full, weights_round, pieces, pieces_full, pieces_free, tiles, tiles_full, tiles_free,
    place, places, count, column, GROUP: gl.constexpr, HAS_BIAS: gl.constexpr, RELU: gl.constexpr, M: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr,
    TILES: gl.constexpr, SIZE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 32 // SIZE]
    )
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, k_width=4 // SIZE)
    L: gl.constexpr = 128 // SIZE  # elements that are adjacent in shared memory
    for part in gl.static_range(PARTS):
        mbarrier.wait(weights_full.index(part), 0)
        if SIZE == 4:  # each group rounds half of the weights
            half = weights.index(part).slice(GROUP * (N // 2), N // 2)
            half.store(_round_tf32(half.load(gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0]))))
            fence_async_shared()
            mbarrier.arrive(weights_round.index(part))
            mbarrier.wait(weights_round.index(part), 0)
    for i in range(GROUP, count, 2):
        rows = ()
        for piece in gl.static_range(PIECES):
            slot = piece % SLOTS
            mbarrier.wait(pieces_full.index(GROUP * SLOTS + slot), (i // 2 * PIECES + piece) // SLOTS & 1)
            for first in gl.static_range(0, K // PIECES, L):
                block = pieces.index(slot).slice(first, L, dim=1).load(operand)
                rows = rows + (_round_tf32(block) if SIZE == 4 else block,)  # type: ignore[assignment] # noqa: RUF005
            fence_async_shared()  # reads complete before the next load overwrites the piece
            mbarrier.arrive(pieces_free.index(slot))
        for part in gl.static_range(PARTS):
            j = i * PARTS + part
            total = gl.zeros([M, N], gl.float32, layout=layout)
            for k in gl.static_range(K // L):
                block = weights.index(part).slice(k * L, L, dim=1).permute((1, 0))
                total = warpgroup_mma(rows[k], block, total, use_acc=k > 0, is_async=True)
            if part > 0:  # the store of the previous part has completed
                tma.store_wait(0)
                mbarrier.arrive(tiles_free.index((j - 1) % TILES))
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.wait(tiles_full.index(j % TILES), j // TILES & 1)
            tile = tiles.index(j % TILES)
            total += tile.load(layout).to(gl.float32)
            if HAS_BIAS:
                total += shifts.slice(part * N, N).load(gl.SliceLayout(0, layout))[None, :]
            if RELU:
                total = gl.where(total < 0, 0.0, total)  # NaN stays NaN
            tile.store(total.to(y.dtype))
            fence_async_shared()
            write_tile(y, [((count - 1 - i) * places + place) * M, column + part * N], tile)
        tma.store_wait(0)
        mbarrier.arrive(tiles_free.index((i * PARTS + PARTS - 1) % TILES))


@gluon.jit
def _residual_product(
    a, weight, x, y, bias, rows, columns, places, HAS_BIAS: gl.constexpr, RELU: gl.constexpr, M: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr,
    TILES: gl.constexpr, SIZE: gl.constexpr, MULTIPLYING: gl.constexpr, FETCHING: gl.constexpr,
):  # fmt: skip
    across = gl.cdiv(columns, PARTS * N)
    column = gl.program_id(0) % across * (PARTS * N)
    place = gl.program_id(0) // across
    count = gl.cdiv(gl.cdiv(rows, M) - place, places)
    weights = gl.allocate_shared_memory(weight.dtype, [PARTS, N, K], weight.layout)
    pieces = gl.allocate_shared_memory(a.dtype, [SLOTS, M, K // PIECES], a.layout)
    tiles = gl.allocate_shared_memory(x.dtype, [TILES, M, N], x.layout)
    shifts = gl.allocate_shared_memory(gl.float32, [PARTS * N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    weights_full, weights_round = barriers(PARTS, 1), barriers(PARTS, 2)
    pieces_full, pieces_free = barriers(2 * SLOTS, 1), barriers(SLOTS, 1)  # full: separate for each group
    tiles_full, tiles_free = barriers(TILES, 1), barriers(TILES, 1)
    fence_async_shared()
    if HAS_BIAS:
        where = column + gl.arange(0, PARTS * N, layout=gl.BlockedLayout([PARTS * N // 128], [32], [4], [0]))
        shifts.store(gl.load(bias + where, mask=where < columns, other=0.0).to(gl.float32))
    gl.warp_specialize(
        [
            (_multiply, (y, shifts, weights, weights_full, weights_round, pieces, pieces_full, pieces_free, tiles,
                         tiles_full, tiles_free, place, places, count, column, gl.constexpr(0), HAS_BIAS, RELU, M, N, K,
                         PARTS, PIECES, SLOTS, TILES, SIZE)),
            (_multiply, (y, shifts, weights, weights_full, weights_round, pieces, pieces_full, pieces_free, tiles,
                         tiles_full, tiles_free, place, places, count, column, gl.constexpr(1), HAS_BIAS, RELU, M, N, K,
                         PARTS, PIECES, SLOTS, TILES, SIZE)),
            (_fetch_factors, (a, weight, weights, weights_full, pieces, pieces_full, pieces_free, place, places, count,
                              column, M, N, K, PARTS, PIECES, SLOTS, SIZE)),
            (_fetch_tiles, (x, tiles, tiles_full, tiles_free, place, places, count, column, M, N, PARTS, TILES, SIZE)),
        ],
        [4, 1, 1],
        [MULTIPLYING, FETCHING, FETCHING],
    )  # fmt: skip


def is_faster(shape: torch.Size, inner: int, dtype: torch.dtype, device: int) -> bool:
    """Return whether :func:`residual_product` supports an ``x`` of this shape and is faster than the plain kernel."""
    rows, columns = shape
    return (
        inner == INNER
        and (dtype.itemsize == 2 or (dtype == torch.float32 and tf32.allowed()))
        and columns >= _width(dtype)
        and _is_supported(device)
        and rows >= _MIN_TILES * _ROWS * _row_programs(columns, dtype, device)
    )


@lru_cache(64)
def _is_supported(device: int) -> bool:
    """Return whether the kernel was tested with this version of Triton and the device is a Hopper GPU (-1: the CPU)."""
    if device < 0 or torch.version.hip is not None or version(triton.__version__) not in VERSIONS:
        return False  # AMD GPUs may report major version 9 too
    return torch.cuda.get_device_capability(device)[0] == 9


def _width(dtype: torch.dtype) -> int:
    """Return the columns of a program, as many as shared memory has room for."""
    return 4 * _COLUMNS // dtype.itemsize


@lru_cache(256)
def _row_programs(columns: int, dtype: torch.dtype, device: int) -> int:
    """Return how many programs share the rows of the same columns, for one program per multiprocessor."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, processors // cdiv(columns, _width(dtype)))


def residual_product(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Return x + a weight^T + bias for contiguous x (R, C), a (R, 256), weight (C, 256); float32 is used as TF32.

    ``relu``: apply a ReLU.
    """
    y = torch.empty_like(x)
    rows, columns = x.shape
    width = _width(x.dtype)
    places = min(_row_programs(columns, x.dtype, x.get_device()), cdiv(rows, _ROWS))
    factors = _descriptor(a, (_ROWS, INNER // _PIECES)), _descriptor(weight, (_COLUMNS, INNER))
    results = _descriptor(x, (_ROWS, _COLUMNS)), _descriptor(y, (_ROWS, _COLUMNS))
    tensors, sizes = (y if bias is None else bias,), (rows, columns, places)
    constants = _constants(x.dtype, bias is not None, relu)
    programs = places * cdiv(columns, width)
    launch(_residual_product, programs, tensors, sizes, constants, (*factors, *results), num_warps=4)
    return y


@lru_cache(16)
def _constants(dtype: torch.dtype, has_bias: bool, relu: bool) -> dict[str, int]:
    parts = _width(dtype) // _COLUMNS
    return {
        "HAS_BIAS": has_bias, "RELU": relu, "M": _ROWS, "N": _COLUMNS, "K": INNER, "PARTS": parts, "PIECES": _PIECES,
        "SLOTS": 2 * parts, "TILES": 2 * parts,  # separate for each group
        "SIZE": dtype.itemsize, "MULTIPLYING": _REGISTERS[0], "FETCHING": _REGISTERS[1],
    }  # fmt: skip


def _descriptor(matrix: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    return descriptor(matrix, block, TensorDescriptor, _layout)


def _layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, columns], getattr(gl, str(dtype).removeprefix("torch.")))
