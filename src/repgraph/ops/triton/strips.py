"""The residual's product on Hopper, by warps with roles, in Gluon: Triton's language for placing things oneself.

A program keeps the weights of some columns in shared memory (256, or 128 in float32), and rows stream by, M at a time.
One warp fetches what is multiplied and one what it is added to. Two groups of four warps take turns, each with M rows
of ``a`` in registers: it multiplies them with the columns, N at a time, and adds what was fetched of ``x`` in the place
that it lies in. While one group multiplies the other adds. The last rows come first: they are what the product before
has left in the cache.

Tensor cores take float32 as TF32, and cut off what it has no room for. So both factors are rounded first.
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

from repgraph.ops import tf32
from repgraph.ops.triton import hopper, succession
from repgraph.ops.triton.hopper import barriers, described, read_tile, write_tile
from repgraph.ops.triton.plan import Plan, on

INNER = 256  # channels of ``a``
_ROWS, _COLUMNS = 64, 128  # of a tile of x
_PIECES = 4  # in which rows of ``a`` come
_ENOUGH = 16  # times M rows for a program, which has the weights to fetch first (measured with 32)


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
def _rounded(t):
    return gl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [t], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def _multiply(
    y, shifts, weights, weights_full, weights_round, pieces, pieces_full, pieces_free, tiles, tiles_full, tiles_free,
    place, places, count, column, GROUP: gl.constexpr, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
    K: gl.constexpr, PARTS: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr, TILES: gl.constexpr,
    SIZE: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 32 // SIZE]
    )
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, k_width=4 // SIZE)
    L: gl.constexpr = 128 // SIZE  # as much as lies side by side in shared memory
    for part in gl.static_range(PARTS):
        mbarrier.wait(weights_full.index(part), 0)
        if SIZE == 4:  # each group rounds half of them
            half = weights.index(part).slice(GROUP * (N // 2), N // 2)
            half.store(_rounded(half.load(gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0]))))
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
                rows = rows + (_rounded(block) if SIZE == 4 else block,)  # type: ignore[assignment] # noqa: RUF005
            fence_async_shared()  # reads are over before more is fetched into their place
            mbarrier.arrive(pieces_free.index(slot))
        for part in gl.static_range(PARTS):
            j = i * PARTS + part
            total = gl.zeros([M, N], gl.float32, layout=layout)
            for k in gl.static_range(K // L):
                block = weights.index(part).slice(k * L, L, dim=1).permute((1, 0))
                total = warpgroup_mma(rows[k], block, total, use_acc=k > 0, is_async=True)
            if part > 0:  # what was written of the last part has left its tile
                tma.store_wait(0)
                mbarrier.arrive(tiles_free.index((j - 1) % TILES))
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.wait(tiles_full.index(j % TILES), j // TILES & 1)
            tile = tiles.index(j % TILES)
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
    K: gl.constexpr, PARTS: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr, TILES: gl.constexpr,
    SIZE: gl.constexpr, MULTIPLYING: gl.constexpr, FETCHING: gl.constexpr, FOLLOWS: gl.constexpr,
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
    pieces_full, pieces_free = barriers(2 * SLOTS, 1), barriers(SLOTS, 1)  # full for one group or the other
    tiles_full, tiles_free = barriers(TILES, 1), barriers(TILES, 1)
    fence_async_shared()
    if FOLLOWS:
        gdc_wait()  # before anything is read or written
    if HAS_BIAS:
        where = column + gl.arange(0, PARTS * N, layout=gl.BlockedLayout([PARTS * N // 128], [32], [4], [0]))
        shifts.store(gl.load(bias + where, mask=where < columns, other=0.0).to(gl.float32))
    gl.warp_specialize(
        [
            (_multiply, (y, shifts, weights, weights_full, weights_round, pieces, pieces_full, pieces_free, tiles,
                         tiles_full, tiles_free, place, places, count, column, gl.constexpr(0), HAS_BIAS, M, N, K,
                         PARTS, PIECES, SLOTS, TILES, SIZE)),
            (_multiply, (y, shifts, weights, weights_full, weights_round, pieces, pieces_full, pieces_free, tiles,
                         tiles_full, tiles_free, place, places, count, column, gl.constexpr(1), HAS_BIAS, M, N, K,
                         PARTS, PIECES, SLOTS, TILES, SIZE)),
            (_fetch_factors, (a, weight, weights, weights_full, pieces, pieces_full, pieces_free, place, places, count,
                              column, M, N, K, PARTS, PIECES, SLOTS, SIZE)),
            (_fetch_tiles, (x, tiles, tiles_full, tiles_free, place, places, count, column, M, N, PARTS, TILES, SIZE)),
        ],
        [4, 1, 1],
        [MULTIPLYING, FETCHING, FETCHING],
    )  # fmt: skip


def pay(shape: torch.Size, inner: int, dtype: torch.dtype, device: int) -> bool:
    """Whether :func:`residual_strips` takes these, and is the faster way."""
    rows, columns = shape
    return (
        inner == INNER
        and (dtype.itemsize == 2 or (dtype == torch.float32 and tf32.allowed()))
        and columns >= _width(dtype)
        and hopper.can_run(device)
        and rows >= _ENOUGH * _ROWS * _places(columns, dtype, device)
    )


def _width(dtype: torch.dtype) -> int:
    """Columns of a program: as many as there is room for their weights."""
    return 4 * _COLUMNS // dtype.itemsize


@lru_cache(256)
def _places(columns: int, dtype: torch.dtype, device: int) -> int:
    """How many programs share the rows of the same columns: as many as make one for each multiprocessor."""
    return max(1, hopper.processors(device) // -(-columns // _width(dtype)))


def residual_strips(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + a weight^T + bias for matrices x (R, C), a (R, 256), weight (C, 256) with contiguous rows; float32 is
    multiplied as TF32."""
    y = torch.empty_like(x)
    places = _places(x.shape[1], x.dtype, x.get_device())
    with on(x):
        _plan(x.shape, places, x.dtype, None if bias is None else bias.dtype, x.get_device())(
            described(a, _ROWS, INNER // _PIECES), described(weight, _COLUMNS, INNER), described(x, _ROWS, _COLUMNS),
            described(y, _ROWS, _COLUMNS), y if bias is None else bias,
        )  # fmt: skip
    return y


@lru_cache(256)
def _plan(shape, places, dtype, bias, device) -> Plan:
    rows, columns = shape
    parts = _width(dtype) // _COLUMNS
    constants = {
        "HAS_BIAS": bias is not None, "M": _ROWS, "N": _COLUMNS, "K": INNER, "PARTS": parts, "PIECES": _PIECES,
        "SLOTS": 2 * parts, "TILES": 2 * parts,  # each group has its own
        "SIZE": dtype.itemsize, "MULTIPLYING": hopper.REGISTERS[0], "FETCHING": hopper.REGISTERS[1],
        "FOLLOWS": succession.possible(device),
    }  # fmt: skip
    places = min(places, -(-rows // _ROWS))
    programs = (places * -(-columns // _width(dtype)),)
    return Plan(
        _residual_strips, programs, (rows, columns, places), constants, num_warps=4, launch_pdl=constants["FOLLOWS"]
    )
