"""The residual's product on Hopper, by warps with roles, in Gluon: Triton's language for placing things oneself.

A program has 2 M rows. One warp fetches; two groups of four warps each hold M rows of ``a`` in registers, multiply them
with one block of columns after another, and add what they fetched of ``x`` in the place that it lies in. Both share the
weights, and while one multiplies the other adds.
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

from repgraph.ops.triton.plan import Plan, on

# Gluon is experimental, and differs from version to version: those that this was compiled with.
_VERSIONS = ((3, 6), (3, 9))
INNER = 256  # channels of ``a``: those of M rows fill a group's registers
_ENOUGH = 100  # programs that fill a GPU
_M, _N, _WEIGHTS, _TILES = 128, 64, 3, 3  # rows of a group, columns of a step; stages of weights, and of each group's x
_REGISTERS = (232, 24)  # of a thread that multiplies, and of one that fetches

# Named otherwise from Triton 3.7 on.
read_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
write_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def _fetch(
    a, weight, x, weights, weights_full, weights_free, tiles, tiles_full, tiles_free, m, columns, M: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr, WEIGHTS: gl.constexpr, TILES: gl.constexpr,
):  # fmt: skip
    """``a`` comes first, in pieces as wide as a step and by way of x's tiles."""
    PIECES: gl.constexpr = K // N
    for j in range(PIECES + gl.cdiv(columns, N)):
        for group in gl.static_range(2):
            slot = group * TILES + j % TILES
            mbarrier.wait(tiles_free.index(slot), (j // TILES & 1) ^ 1)
            mbarrier.expect(tiles_full.index(slot), M * N * 2)
            if j < PIECES:
                read_tile(a, [m + group * M, j * N], tiles_full.index(slot), tiles.index(slot))
            else:
                read_tile(x, [m + group * M, (j - PIECES) * N], tiles_full.index(slot), tiles.index(slot))
        if j >= PIECES:
            step = j - PIECES
            stage = step % WEIGHTS
            mbarrier.wait(weights_free.index(stage), (step // WEIGHTS & 1) ^ 1)
            mbarrier.expect(weights_full.index(stage), N * K * 2)
            read_tile(weight, [step * N, 0], weights_full.index(stage), weights.index(stage))


@gluon.jit
def _piece(
    tiles, tiles_full, tiles_free, GROUP: gl.constexpr, J: gl.constexpr, TILES: gl.constexpr, LAYOUT: gl.constexpr
):  # fmt: skip
    slot: gl.constexpr = GROUP * TILES + J % TILES
    mbarrier.wait(tiles_full.index(slot), J // TILES & 1)
    piece = tiles.index(slot).load(LAYOUT)
    mbarrier.arrive(tiles_free.index(slot))
    return piece


@gluon.jit
def _multiply(
    y, bias, weights, weights_full, weights_free, tiles, tiles_full, tiles_free, m, columns, GROUP: gl.constexpr,
    HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr, WEIGHTS: gl.constexpr,
    TILES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, layout, k_width=2)
    PIECES: gl.constexpr = K // N
    gl.static_assert(PIECES == 4)
    a0 = _piece(tiles, tiles_full, tiles_free, GROUP, 0, TILES, operand)
    a1 = _piece(tiles, tiles_full, tiles_free, GROUP, 1, TILES, operand)
    a2 = _piece(tiles, tiles_full, tiles_free, GROUP, 2, TILES, operand)
    a3 = _piece(tiles, tiles_full, tiles_free, GROUP, 3, TILES, operand)
    for step in range(gl.cdiv(columns, N)):
        j = step + PIECES
        stage, slot = step % WEIGHTS, GROUP * TILES + j % TILES
        column = step * N + gl.arange(0, N, layout=gl.SliceLayout(0, layout))
        if HAS_BIAS:
            shift = gl.load(bias + column, mask=column < columns, other=0.0).to(gl.float32)
        mbarrier.wait(weights_full.index(stage), step // WEIGHTS & 1)
        block = weights.index(stage)
        total = gl.zeros([M, N], gl.float32, layout=layout)
        total = warpgroup_mma(a0, block.slice(0, N, dim=1).permute((1, 0)), total, use_acc=False, is_async=True)
        total = warpgroup_mma(a1, block.slice(N, N, dim=1).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma(a2, block.slice(2 * N, N, dim=1).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma(a3, block.slice(3 * N, N, dim=1).permute((1, 0)), total, is_async=True)
        if step > 0:  # what was written in the last step has left its tile
            tma.store_wait(0)
            mbarrier.arrive(tiles_free.index(GROUP * TILES + (j - 1) % TILES))
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(weights_free.index(stage))
        mbarrier.wait(tiles_full.index(slot), j // TILES & 1)
        tile = tiles.index(slot)
        total += tile.load(layout).to(gl.float32)
        if HAS_BIAS:
            total += shift[None, :]
        tile.store(total.to(y.dtype))
        fence_async_shared()
        write_tile(y, [m + GROUP * M, step * N], tile)
    tma.store_wait(0)


@gluon.jit
def _residual_strips(
    a, weight, x, y, bias, columns, HAS_BIAS: gl.constexpr, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
    WEIGHTS: gl.constexpr, TILES: gl.constexpr, MULTIPLYING: gl.constexpr, FETCHING: gl.constexpr,
):  # fmt: skip
    m = gl.program_id(0) * (2 * M)
    weights = gl.allocate_shared_memory(weight.dtype, [WEIGHTS, N, K], weight.layout)
    tiles = gl.allocate_shared_memory(x.dtype, [2 * TILES, M, N], x.layout)
    weights_full = gl.allocate_shared_memory(gl.int64, [WEIGHTS, 1], mbarrier.MBarrierLayout())
    weights_free = gl.allocate_shared_memory(gl.int64, [WEIGHTS, 1], mbarrier.MBarrierLayout())
    tiles_full = gl.allocate_shared_memory(gl.int64, [2 * TILES, 1], mbarrier.MBarrierLayout())
    tiles_free = gl.allocate_shared_memory(gl.int64, [2 * TILES, 1], mbarrier.MBarrierLayout())
    for k in gl.static_range(WEIGHTS):
        mbarrier.init(weights_full.index(k), count=1)
        mbarrier.init(weights_free.index(k), count=2)
    for k in gl.static_range(2 * TILES):
        mbarrier.init(tiles_full.index(k), count=1)
        mbarrier.init(tiles_free.index(k), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (y, bias, weights, weights_full, weights_free, tiles, tiles_full, tiles_free, m, columns,
                         gl.constexpr(0), HAS_BIAS, M, N, K, WEIGHTS, TILES)),
            (_multiply, (y, bias, weights, weights_full, weights_free, tiles, tiles_full, tiles_free, m, columns,
                         gl.constexpr(1), HAS_BIAS, M, N, K, WEIGHTS, TILES)),
            (_fetch, (a, weight, x, weights, weights_full, weights_free, tiles, tiles_full, tiles_free, m, columns,
                      M, N, K, WEIGHTS, TILES)),
        ],
        [4, 1],
        [MULTIPLYING, FETCHING],
    )  # fmt: skip


def pay(shape: torch.Size, inner: int, dtype: torch.dtype, device: int) -> bool:
    """Whether :func:`residual_strips` takes these, and is the faster way."""
    rows, columns = shape
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return (
        dtype.itemsize == 2
        and _VERSIONS[0] <= version <= _VERSIONS[1]
        and inner == INNER
        and -(-rows // (2 * _M)) >= _ENOUGH
        and columns >= 2 * _N
        and device >= 0
        and torch.cuda.get_device_capability(device)[0] == 9
    )


def residual_strips(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + a weight^T + bias for matrices x (R, C), a (R, 256), weight (C, 256) with contiguous rows."""
    y = torch.empty_like(x)
    kind = gl.bfloat16 if x.dtype == torch.bfloat16 else gl.float16
    tile = gl.NVMMASharedLayout.get_default_for([_M, _N], kind)
    block = gl.NVMMASharedLayout.get_default_for([_N, INNER], kind)
    with on(x):
        _plan(x.shape, x.dtype, None if bias is None else bias.dtype, x.get_device())(
            TensorDescriptor.from_tensor(a, [_M, _N], tile), TensorDescriptor.from_tensor(weight, [_N, INNER], block),
            TensorDescriptor.from_tensor(x, [_M, _N], tile), TensorDescriptor.from_tensor(y, [_M, _N], tile),
            y if bias is None else bias,
        )  # fmt: skip
    return y


@lru_cache(256)
def _plan(shape, dtype, bias, device) -> Plan:
    rows, columns = shape
    constants = {
        "HAS_BIAS": bias is not None, "M": _M, "N": _N, "K": INNER, "WEIGHTS": _WEIGHTS, "TILES": _TILES,
        "MULTIPLYING": _REGISTERS[0], "FETCHING": _REGISTERS[1],
    }  # fmt: skip
    return Plan(_residual_strips, (-(-rows // (2 * _M)),), (columns,), constants, num_warps=4)
