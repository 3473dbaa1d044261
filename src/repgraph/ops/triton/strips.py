"""The residual's product on Hopper, by warps with roles, in Gluon: Triton's language for placing things oneself.

A program keeps the weights of 256 columns in shared memory, and rows stream by, M at a time. One warp fetches; two
groups of four warps take turns, each with M rows of ``a`` in registers: it multiplies them with half of the columns,
adds what was fetched of ``x`` in the place that it lies in, and does the same with the other half. While one group
multiplies the other adds. The last rows come first: they are what the product before has left in the cache.
"""

from functools import lru_cache

import torch
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
from triton.language.extra.cuda import gdc_wait

from repgraph.ops.triton import hopper, succession
from repgraph.ops.triton.hopper import described, read_tile, write_tile
from repgraph.ops.triton.plan import Plan, on

INNER = 256  # channels of ``a``
_ROWS, _COLUMNS, _PARTS = 64, 128, 2  # of a tile of x; parts of a program's columns
_ENOUGH = 16  # times M rows for a program, which has the weights to fetch first (measured with 32)


@gluon.jit
def _fetch(
    a, weight, x, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free, place,
    places, count, column, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    for part in gl.static_range(PARTS):
        mbarrier.expect(weights_full.index(part), N * K * 2)
        read_tile(weight, [column + part * N, 0], weights_full.index(part), weights.index(part))
    for i in range(count):
        row = ((count - 1 - i) * places + place) * M
        mbarrier.wait(features_free, (i & 1) ^ 1)
        mbarrier.expect(features_full.index(i % 2), M * K * 2)
        read_tile(a, [row, 0], features_full.index(i % 2), features)
        for part in gl.static_range(PARTS):
            j = i * PARTS + part
            slot = j % TILES
            mbarrier.wait(tiles_free.index(slot), (j // TILES & 1) ^ 1)
            mbarrier.expect(tiles_full.index(slot), M * N * 2)
            read_tile(x, [row, column + part * N], tiles_full.index(slot), tiles.index(slot))


@gluon.jit
def _multiply(
    y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free, place,
    places, count, column, GROUP: gl.constexpr, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    K: gl.constexpr, PARTS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, k_width=2)
    L: gl.constexpr = K // 4  # as much as lies side by side in shared memory
    for part in gl.static_range(PARTS):
        mbarrier.wait(weights_full.index(part), 0)
    for i in range(GROUP, count, 2):
        mbarrier.wait(features_full.index(GROUP), i // 2 & 1)
        a0 = features.slice(0, L, dim=1).load(operand)
        a1 = features.slice(L, L, dim=1).load(operand)
        a2 = features.slice(2 * L, L, dim=1).load(operand)
        a3 = features.slice(3 * L, L, dim=1).load(operand)
        fence_async_shared()  # reads are over before more is fetched into their place
        mbarrier.arrive(features_free)
        for part in gl.static_range(PARTS):
            j = i * PARTS + part
            slot = j % TILES
            block = weights.index(part)
            total = gl.zeros([M, N], gl.float32, layout=layout)
            total = warpgroup_mma(a0, block.slice(0, L, dim=1).permute((1, 0)), total, use_acc=False, is_async=True)
            total = warpgroup_mma(a1, block.slice(L, L, dim=1).permute((1, 0)), total, is_async=True)
            total = warpgroup_mma(a2, block.slice(2 * L, L, dim=1).permute((1, 0)), total, is_async=True)
            total = warpgroup_mma(a3, block.slice(3 * L, L, dim=1).permute((1, 0)), total, is_async=True)
            if part > 0:  # what was written of the last part has left its tile
                tma.store_wait(0)
                mbarrier.arrive(tiles_free.index((j - 1) % TILES))
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.wait(tiles_full.index(slot), j // TILES & 1)
            tile = tiles.index(slot)
            total += tile.load(layout).to(gl.float32)
            if HAS_BIAS:
                total += shifts.slice(part * N, N).load(gl.SliceLayout(0, layout))[None, :]
            tile.store(total.to(y.dtype))
            fence_async_shared()
            write_tile(y, [((count - 1 - i) * places + place) * M, column + part * N], tile)
        tma.store_wait(0)
        mbarrier.arrive(tiles_free.index((i * PARTS + PARTS - 1) % TILES))


@gluon.jit
def _residual_strips(
    a, weight, x, y, bias, rows, columns, places, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    K: gl.constexpr, PARTS: gl.constexpr, TILES: gl.constexpr, MULTIPLYING: gl.constexpr, FETCHING: gl.constexpr,
    FOLLOWS: gl.constexpr,
):  # fmt: skip
    across = gl.cdiv(columns, PARTS * N)
    column = gl.program_id(0) % across * (PARTS * N)
    place = gl.program_id(0) // across
    count = gl.cdiv(gl.cdiv(rows, M) - place, places)
    weights = gl.allocate_shared_memory(weight.dtype, [PARTS, N, K], weight.layout)
    features = gl.allocate_shared_memory(a.dtype, [M, K], a.layout)
    tiles = gl.allocate_shared_memory(x.dtype, [TILES, M, N], x.layout)
    shifts = gl.allocate_shared_memory(gl.float32, [PARTS * N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
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
    if FOLLOWS:
        gdc_wait()  # before anything is read or written
    if HAS_BIAS:
        where = column + gl.arange(0, PARTS * N, layout=gl.BlockedLayout([PARTS * N // 128], [32], [4], [0]))
        shifts.store(gl.load(bias + where, mask=where < columns, other=0.0).to(gl.float32))
    gl.warp_specialize(
        [
            (_multiply, (y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full,
                         tiles_free, place, places, count, column, gl.constexpr(0), HAS_BIAS, M, N, K, PARTS, TILES)),
            (_multiply, (y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full,
                         tiles_free, place, places, count, column, gl.constexpr(1), HAS_BIAS, M, N, K, PARTS, TILES)),
            (_fetch, (a, weight, x, weights, weights_full, features, features_full, features_free, tiles, tiles_full,
                      tiles_free, place, places, count, column, M, N, K, PARTS, TILES)),
        ],
        [4, 1],
        [MULTIPLYING, FETCHING],
    )  # fmt: skip


def pay(shape: torch.Size, inner: int, dtype: torch.dtype, device: int) -> bool:
    """Whether :func:`residual_strips` takes these, and is the faster way."""
    rows, columns = shape
    return (
        inner == INNER
        and columns >= _PARTS * _COLUMNS
        and hopper.can_run(device, dtype)
        and rows >= _ENOUGH * _ROWS * _places(columns, device)
    )


@lru_cache(256)
def _places(columns: int, device: int) -> int:
    """How many programs share the rows of the same columns: as many as make one for each multiprocessor."""
    return max(1, hopper.processors(device) // -(-columns // (_PARTS * _COLUMNS)))


def residual_strips(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + a weight^T + bias for matrices x (R, C), a (R, 256), weight (C, 256) with contiguous rows."""
    y = torch.empty_like(x)
    places = _places(x.shape[1], x.get_device())
    with on(x):
        _plan(x.shape, places, x.dtype, None if bias is None else bias.dtype, x.get_device())(
            described(a, _ROWS, INNER), described(weight, _COLUMNS, INNER), described(x, _ROWS, _COLUMNS),
            described(y, _ROWS, _COLUMNS), y if bias is None else bias,
        )  # fmt: skip
    return y


@lru_cache(256)
def _plan(shape, places, dtype, bias, device) -> Plan:
    rows, columns = shape
    constants = {
        "HAS_BIAS": bias is not None, "M": _ROWS, "N": _COLUMNS, "K": INNER, "PARTS": _PARTS,
        "TILES": 2 * _PARTS,  # each group has its own
        "MULTIPLYING": hopper.REGISTERS[0], "FETCHING": hopper.REGISTERS[1], "FOLLOWS": succession.possible(device),
    }  # fmt: skip
    places = min(places, -(-rows // _ROWS))
    programs = (places * -(-columns // (_PARTS * _COLUMNS)),)
    return Plan(
        _residual_strips, programs, (rows, columns, places), constants, num_warps=4, launch_pdl=constants["FOLLOWS"]
    )
