"""The residual's product in float32 (TF32) on Hopper, by warps with roles: a trial."""
from functools import lru_cache

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait
from repgraph.ops.triton import hopper
from repgraph.ops.triton.hopper import read_tile, write_tile
from repgraph.ops.triton.plan import Plan, on

INNER = 256
_ROWS, _COLUMNS, _PIECES, _SLOTS = 64, 128, 4, 2


@gluon.jit
def _fetch(a, weight, x, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free,
           place, places, count, column, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr):
    L: gl.constexpr = K // PIECES
    mbarrier.expect(weights_full, N * K * 4)
    read_tile(weight, [column, 0], weights_full, weights)
    for i in range(count):
        row = ((count - 1 - i) * places + place) * M
        group = i % 2
        for piece in gl.static_range(PIECES):
            n = i * PIECES + piece
            slot = piece % SLOTS
            mbarrier.wait(features_free.index(slot), (n // SLOTS & 1) ^ 1)
            full = features_full.index(group * SLOTS + slot)
            mbarrier.expect(full, M * L * 4)
            read_tile(a, [row, piece * L], full, features.index(slot))
        mbarrier.wait(tiles_free.index(group), (i // 2 & 1) ^ 1)
        mbarrier.expect(tiles_full.index(group), M * N * 4)
        read_tile(x, [row, column], tiles_full.index(group), tiles.index(group))


@gluon.jit
def _piece(features, features_full, features_free, i, GROUP: gl.constexpr, PIECE: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr, H: gl.constexpr, operand: gl.constexpr):
    slot: gl.constexpr = PIECE % SLOTS
    use = i // 2 * (PIECES // SLOTS) + PIECE // SLOTS
    mbarrier.wait(features_full.index(GROUP * SLOTS + slot), use & 1)
    place = features.index(slot)
    a0 = place.slice(0, H, dim=1).load(operand)
    a1 = place.slice(H, H, dim=1).load(operand)
    fence_async_shared()
    mbarrier.arrive(features_free.index(slot))
    return a0, a1


@gluon.jit
def _two(a0, a1, weights, total, FIRST: gl.constexpr, PIECE: gl.constexpr, L: gl.constexpr, H: gl.constexpr):
    total = warpgroup_mma(a0, weights.slice(PIECE * L, H, dim=1).permute((1, 0)), total, use_acc=not FIRST, is_async=True)
    return warpgroup_mma(a1, weights.slice(PIECE * L + H, H, dim=1).permute((1, 0)), total, is_async=True)


@gluon.jit
def _multiply(y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free,
              place, places, count, column, GROUP: gl.constexpr, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
              K: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 8])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, k_width=1)
    L: gl.constexpr = K // PIECES
    H: gl.constexpr = L // 2
    mbarrier.wait(weights_full, 0)
    for i in range(GROUP, count, 2):
        total = gl.zeros([M, N], gl.float32, layout=layout)
        a0, a1 = _piece(features, features_full, features_free, i, GROUP, 0, PIECES, SLOTS, H, operand)
        total = _two(a0, a1, weights, total, True, 0, L, H)
        b0, b1 = _piece(features, features_full, features_free, i, GROUP, 1, PIECES, SLOTS, H, operand)
        total = _two(b0, b1, weights, total, False, 1, L, H)
        c0, c1 = _piece(features, features_full, features_free, i, GROUP, 2, PIECES, SLOTS, H, operand)
        total = _two(c0, c1, weights, total, False, 2, L, H)
        d0, d1 = _piece(features, features_full, features_free, i, GROUP, 3, PIECES, SLOTS, H, operand)
        total = _two(d0, d1, weights, total, False, 3, L, H)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.wait(tiles_full.index(GROUP), i // 2 & 1)
        tile = tiles.index(GROUP)
        total += tile.load(layout)
        if HAS_BIAS:
            total += shifts.load(gl.SliceLayout(0, layout))[None, :]
        tile.store(total)
        fence_async_shared()
        write_tile(y, [((count - 1 - i) * places + place) * M, column], tile)
        tma.store_wait(0)
        mbarrier.arrive(tiles_free.index(GROUP))


@gluon.jit
def _residual_strips(a, weight, x, y, bias, rows, columns, places, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
                     K: gl.constexpr, PIECES: gl.constexpr, SLOTS: gl.constexpr, MULTIPLYING: gl.constexpr, FETCHING: gl.constexpr):
    across = gl.cdiv(columns, N)
    column = gl.program_id(0) % across * N
    place = gl.program_id(0) // across
    count = gl.cdiv(gl.cdiv(rows, M) - place, places)
    weights = gl.allocate_shared_memory(weight.dtype, [N, K], weight.layout)
    features = gl.allocate_shared_memory(a.dtype, [SLOTS, M, K // PIECES], a.layout)
    tiles = gl.allocate_shared_memory(x.dtype, [2, M, N], x.layout)
    shifts = gl.allocate_shared_memory(gl.float32, [N], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    weights_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    features_full = gl.allocate_shared_memory(gl.int64, [2 * SLOTS, 1], mbarrier.MBarrierLayout())
    features_free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    tiles_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    tiles_free = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(weights_full, count=1)
    for slot in gl.static_range(2 * SLOTS):
        mbarrier.init(features_full.index(slot), count=1)
    for slot in gl.static_range(SLOTS):
        mbarrier.init(features_free.index(slot), count=1)
    for group in gl.static_range(2):
        mbarrier.init(tiles_full.index(group), count=1)
        mbarrier.init(tiles_free.index(group), count=1)
    fence_async_shared()
    gdc_wait()
    if HAS_BIAS:
        where = column + gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0]))
        shifts.store(gl.load(bias + where, mask=where < columns, other=0.0).to(gl.float32))
    gl.warp_specialize(
        [
            (_multiply, (y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free, place, places, count, column, gl.constexpr(0), HAS_BIAS, M, N, K, PIECES, SLOTS)),
            (_multiply, (y, shifts, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free, place, places, count, column, gl.constexpr(1), HAS_BIAS, M, N, K, PIECES, SLOTS)),
            (_fetch, (a, weight, x, weights, weights_full, features, features_full, features_free, tiles, tiles_full, tiles_free, place, places, count, column, M, N, K, PIECES, SLOTS)),
        ],
        [4, 1],
        [MULTIPLYING, FETCHING],
    )


def _described(t, r, c):
    return TensorDescriptor.from_tensor(t, [r, c], gl.NVMMASharedLayout.get_default_for([r, c], gl.float32))


def residual_strips(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.empty_like(x)
    across = -(-x.shape[1] // _COLUMNS)
    places = min(max(1, hopper.processors(x.get_device()) // across), -(-x.shape[0] // _ROWS))
    with on(x):
        _plan(x.shape, places, None if bias is None else bias.dtype, x.get_device())(
            _described(a, _ROWS, INNER // _PIECES), _described(weight, _COLUMNS, INNER), _described(x, _ROWS, _COLUMNS),
            _described(y, _ROWS, _COLUMNS), y if bias is None else bias,
        )
    return y


@lru_cache(256)
def _plan(shape, places, bias, device) -> Plan:
    rows, columns = shape
    constants = {"HAS_BIAS": bias is not None, "M": _ROWS, "N": _COLUMNS, "K": INNER, "PIECES": _PIECES, "SLOTS": _SLOTS,
                 "MULTIPLYING": hopper.REGISTERS[0], "FETCHING": hopper.REGISTERS[1]}
    return Plan(_residual_strips, (places * -(-columns // _COLUMNS),), (rows, columns, places), constants, num_warps=4, launch_pdl=True)
