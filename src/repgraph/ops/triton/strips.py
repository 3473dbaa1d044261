"""The residual's product on Hopper, by warps with roles, in Gluon: Triton's language for placing things oneself.

A program keeps the weights of 256 columns in shared memory, and rows stream by, M at a time. One warp fetches; two
groups of four warps take turns, each with M rows of ``a`` in registers: it multiplies them with half of the columns,
adds what was fetched of ``x`` in the place that it lies in, and does the same with the other half. While one group
multiplies the other adds. The last rows come first: they are what the product before has left in the cache.
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

from repgraph.ops.triton.plan import Plan, on, version

# Gluon is experimental and differs from version to version. This was compiled with 3.6 to 3.9, and has run with:
_VERSIONS = ((3, 6),)
INNER = 256  # channels of ``a``
_ROWS, _COLUMNS, _PARTS, _TILES = 64, 128, 2, 4  # of a tile of x; parts of a program's columns; tiles of x at a time
_REGISTERS = (232, 24)  # of a thread that multiplies, and of one that fetches
_ENOUGH = 16  # times M rows for a program, which has the weights to fetch first (measured with 32)

# Named otherwise from Triton 3.7 on.
read_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
write_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def _fetch(
    a, weight, x, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free, place,
    places, count, column, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
):  # fmt: skip
    for part in gl.static_range(2):
        mbarrier.expect(weights_full.index(part), N * K * 2)
        read_tile(weight, [column + part * N, 0], weights_full.index(part), weights.index(part))
    mbarrier.expect(features_full.index(0), M * K * 2)
    read_tile(a, [((count - 1) * places + place) * M, 0], features_full.index(0), features)
    row = ((count - 1) * places + place) * M
    for i in range(count):  # in the order in which places become free
        _fetch_tile(x, tiles, tiles_full, tiles_free, row, column, i % 2 * 2, i // 2, M, N)
        if i + 1 < count:
            mbarrier.wait(features_free, i & 1)
            mbarrier.expect(features_full.index((i + 1) % 2), M * K * 2)
            read_tile(a, [row - places * M, 0], features_full.index((i + 1) % 2), features)
        if i > 0:
            before = i - 1
            _fetch_tile(x, tiles, tiles_full, tiles_free, row + places * M, column + N, before % 2 * 2 + 1, before // 2,
                        M, N)  # fmt: skip
        row -= places * M
    last = count - 1
    _fetch_tile(x, tiles, tiles_full, tiles_free, place * M, column + N, last % 2 * 2 + 1, last // 2, M, N)


@gluon.jit
def _fetch_tile(x, tiles, tiles_full, tiles_free, row, column, slot, turn, M: gl.constexpr, N: gl.constexpr):
    mbarrier.wait(tiles_free.index(slot), (turn & 1) ^ 1)
    mbarrier.expect(tiles_full.index(slot), M * N * 2)
    read_tile(x, [row, column], tiles_full.index(slot), tiles.index(slot))


@gluon.jit
def _product(
    a0, a1, a2, a3, block, shift, HAS_BIAS: gl.constexpr, layout: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    L: gl.constexpr,
):  # fmt: skip
    total = gl.zeros([M, N], gl.float32, layout=layout)
    if HAS_BIAS:
        total += shift.load(gl.SliceLayout(0, layout))[None, :]
    total = warpgroup_mma(a0, block.slice(0, L, dim=1).permute((1, 0)), total, use_acc=HAS_BIAS, is_async=True)
    total = warpgroup_mma(a1, block.slice(L, L, dim=1).permute((1, 0)), total, is_async=True)
    total = warpgroup_mma(a2, block.slice(2 * L, L, dim=1).permute((1, 0)), total, is_async=True)
    return warpgroup_mma(a3, block.slice(3 * L, L, dim=1).permute((1, 0)), total, is_async=True)


@gluon.jit
def _add(
    y, total, shift, tile, tile_full, turn, row, column, other_free, FREES: gl.constexpr, layout: gl.constexpr,
    HAS_BIAS: gl.constexpr,
):  # fmt: skip
    """FREES: what was written before has left its tile by now."""
    mbarrier.wait(tile_full, turn & 1)
    total += tile.load(layout).to(gl.float32)
    if FREES:
        tma.store_wait(0)
        mbarrier.arrive(other_free)
    tile.store(total.to(y.dtype))
    fence_async_shared()
    write_tile(y, [row, column], tile)


@gluon.jit
def _block(
    y, shifts, weights, features, feature_full, features_free, tiles, tiles_full, tiles_free, late, turn, row, before,
    column, FIRST: gl.constexpr, GROUP: gl.constexpr, HAS_BIAS: gl.constexpr, layout: gl.constexpr, M: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr,
):  # fmt: skip
    """Products of M rows. While the first runs, the second of the rows ``before`` is added, and so on."""
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, k_width=2)
    L: gl.constexpr = K // 4  # as much as lies side by side in shared memory
    SLOT: gl.constexpr = 2 * GROUP
    mbarrier.wait(feature_full, turn & 1)
    a0 = features.slice(0, L, dim=1).load(operand)
    a1 = features.slice(L, L, dim=1).load(operand)
    a2 = features.slice(2 * L, L, dim=1).load(operand)
    a3 = features.slice(3 * L, L, dim=1).load(operand)
    fence_async_shared()  # reads are over before more is fetched into their place
    mbarrier.arrive(features_free)
    early = _product(a0, a1, a2, a3, weights.index(0), shifts.slice(0, N), HAS_BIAS, layout, M, N, L)
    if not FIRST:
        _add(y, late, shifts.slice(N, N), tiles.index(SLOT + 1), tiles_full.index(SLOT + 1), turn - 1, before,
             column + N, tiles_free.index(SLOT), False, layout, HAS_BIAS)  # fmt: skip
    early = warpgroup_mma_wait(0, deps=[early])
    late = _product(a0, a1, a2, a3, weights.index(1), shifts.slice(N, N), HAS_BIAS, layout, M, N, L)
    _add(y, early, shifts.slice(0, N), tiles.index(SLOT), tiles_full.index(SLOT), turn, row, column,
         tiles_free.index(SLOT + 1), not FIRST, layout, HAS_BIAS)  # fmt: skip
    late = warpgroup_mma_wait(0, deps=[late])
    tma.store_wait(0)
    mbarrier.arrive(tiles_free.index(SLOT))
    return late


@gluon.jit
def _multiply(
    y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free, place,
    places, count, column, GROUP: gl.constexpr, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    K: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    if count > GROUP:
        for part in gl.static_range(2):
            mbarrier.wait(weights_full.index(part), 0)
        feature_full = features_full.index(GROUP)
        row = ((count - 1 - GROUP) * places + place) * M
        late = _block(y, shifts, weights, features, feature_full, features_free, tiles, tiles_full, tiles_free,
                      gl.zeros([M, N], gl.float32, layout=layout), 0, row, row, column, True, GROUP, HAS_BIAS, layout,
                      M, N, K)  # fmt: skip
        turns = (count + 1 - GROUP) // 2
        for turn in range(1, turns):
            before = row
            row -= 2 * places * M
            late = _block(y, shifts, weights, features, feature_full, features_free, tiles, tiles_full, tiles_free,
                          late, turn, row, before, column, False, GROUP, HAS_BIAS, layout, M, N, K)  # fmt: skip
        _add(y, late, shifts.slice(N, N), tiles.index(2 * GROUP + 1), tiles_full.index(2 * GROUP + 1), turns - 1, row,
             column + N, tiles_free.index(2 * GROUP), False, layout, HAS_BIAS)  # fmt: skip
        tma.store_wait(0)


@gluon.jit
def _residual_strips(
    a, weight, x, y, bias, rows, columns, places, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    K: gl.constexpr, PARTS: gl.constexpr, TILES: gl.constexpr, MULTIPLYING: gl.constexpr, FETCHING: gl.constexpr,
):  # fmt: skip
    across = gl.cdiv(columns, PARTS * N)
    column = gl.program_id(0) % across * (PARTS * N)
    place = gl.program_id(0) // across
    count = gl.cdiv(gl.cdiv(rows, M) - place, places)
    weights = gl.allocate_shared_memory(weight.dtype, [PARTS, N, K], weight.layout)
    features = gl.allocate_shared_memory(a.dtype, [M, K], a.layout)
    tiles = gl.allocate_shared_memory(x.dtype, [TILES, M, N], x.layout)
    shifts = gl.allocate_shared_memory(gl.float32, [PARTS * N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    if HAS_BIAS:
        where = column + gl.arange(0, PARTS * N, layout=gl.BlockedLayout([PARTS * N // 128], [32], [4], [0]))
        shifts.store(gl.load(bias + where, mask=where < columns, other=0.0).to(gl.float32))
    weights_full = gl.allocate_shared_memory(gl.int64, [PARTS, 1], mbarrier.MBarrierLayout())
    features_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    features_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    tiles_full = gl.allocate_shared_memory(gl.int64, [TILES, 1], mbarrier.MBarrierLayout())
    tiles_free = gl.allocate_shared_memory(gl.int64, [TILES, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(features_full.index(group), count=1)
    mbarrier.init(features_free, count=1)
    for part in gl.static_range(PARTS):
        mbarrier.init(weights_full.index(part), count=1)
    for slot in gl.static_range(TILES):
        mbarrier.init(tiles_full.index(slot), count=1)
        mbarrier.init(tiles_free.index(slot), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full,
                         tiles_free, place, places, count, column, gl.constexpr(0), HAS_BIAS, M, N, K)),
            (_multiply, (y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full,
                         tiles_free, place, places, count, column, gl.constexpr(1), HAS_BIAS, M, N, K)),
            (_fetch, (a, weight, x, weights, weights_full, features, features_full, features_free, tiles, tiles_full,
                      tiles_free, place, places, count, column, M, N, K)),
        ],
        [4, 1],
        [MULTIPLYING, FETCHING],
    )  # fmt: skip


def pay(shape: torch.Size, inner: int, dtype: torch.dtype, device: int) -> bool:
    """Whether :func:`residual_strips` takes these, and is the faster way."""
    rows, columns = shape
    return (
        dtype.itemsize == 2
        and version(triton.__version__) in _VERSIONS
        and inner == INNER
        and columns >= _PARTS * _COLUMNS
        and device >= 0
        and torch.cuda.get_device_capability(device)[0] == 9
        and rows >= _ENOUGH * _ROWS * _places(columns, device)
    )


@lru_cache(256)
def _places(columns: int, device: int) -> int:
    """How many programs share the rows of the same columns: as many as make one for each multiprocessor."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, processors // -(-columns // (_PARTS * _COLUMNS)))


def residual_strips(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + a weight^T + bias for matrices x (R, C), a (R, 256), weight (C, 256) with contiguous rows."""
    y = torch.empty_like(x)
    places = _places(x.shape[1], x.get_device())
    with on(x):
        _plan(x.shape, places, x.dtype, None if bias is None else bias.dtype, x.get_device())(
            _described(a, _ROWS, INNER), _described(weight, _COLUMNS, INNER), _described(x, _ROWS, _COLUMNS),
            _described(y, _ROWS, _COLUMNS), y if bias is None else bias,
        )  # fmt: skip
    return y


def _described(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    kind = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    block = [rows, columns]
    return TensorDescriptor.from_tensor(matrix, block, gl.NVMMASharedLayout.get_default_for(block, kind))


@lru_cache(256)
def _plan(shape, places, dtype, bias, device) -> Plan:
    rows, columns = shape
    constants = {
        "HAS_BIAS": bias is not None, "M": _ROWS, "N": _COLUMNS, "K": INNER, "PARTS": _PARTS, "TILES": _TILES,
        "MULTIPLYING": _REGISTERS[0], "FETCHING": _REGISTERS[1],
    }  # fmt: skip
    places = min(places, -(-rows // _ROWS))
    programs = (places * -(-columns // (_PARTS * _COLUMNS)),)
    return Plan(_residual_strips, programs, (rows, columns, places), constants, num_warps=4)
