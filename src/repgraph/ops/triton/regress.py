"""A feature behind a ReLU, and the offsets that are regressed from it, in one pass on Hopper GPUs.

A program takes 2 M rows of ``x`` at a time. One warp fetches them and the weights, K channels after the other; two
groups of four warps have M rows each, and all columns, so that the feature is whole when the offsets are made of it.
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

from repgraph.ops.triton import hopper
from repgraph.ops.triton.hopper import barriers, described, read_tile, write_tile
from repgraph.ops.triton.plan import Plan, on

WIDTH = 256  # channels of the feature
MOST_OUTPUTS = 32
_ROWS, _CHANNELS = 64, 64  # of a group; of a step
_STAGES = 4  # steps at a time
_BUSY = 0.7  # of the multiprocessors, at least, on average over the rounds that all rows take


@gluon.jit
def _fetch(
    x, weight, regress, rows_of_x, rows_of_weight, full, free, last, last_full, tiles, steps, M: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    mbarrier.expect(last_full, OUT * N * 2)
    read_tile(regress, [0, 0], last_full, last)
    n = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        for step in range(steps):
            slot = n % STAGES
            mbarrier.wait(free.index(slot), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(slot), (2 * M + N) * K * 2)
            read_tile(x, [tile * 2 * M, step * K], full.index(slot), rows_of_x.index(slot))
            read_tile(weight, [0, step * K], full.index(slot), rows_of_weight.index(slot))
            n += 1


@gluon.jit
def _halves(t, M: gl.constexpr, N: gl.constexpr):
    """The left and the right half of N columns; no value changes its thread."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N // 2, 16])
    left, right = t.reshape([M, 2, N // 2]).permute((0, 2, 1)).split()
    return gl.convert_layout(left, layout), gl.convert_layout(right, layout)


@gluon.jit
def _send(y, place, part, row, column):
    tma.store_wait(0)  # what was sent before has left its place
    place.store(part)
    fence_async_shared()
    write_tile(y, [row, column], place)


@gluon.jit
def _multiply(
    y, offsets, shifts, last_shifts, rows_of_x, rows_of_weight, full, free, last, last_full, places, tiles, steps,
    rows, outputs, positions, GROUP: gl.constexpr, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
    OUT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, N, 16])
    narrow: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, OUT, 16])
    place = places.index(GROUP)
    n = 0
    mbarrier.wait(last_full, 0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row = (tile * 2 + GROUP) * M
        total = gl.zeros([M, N], gl.float32, layout=layout)
        for _ in range(steps):
            slot = n % STAGES
            mbarrier.wait(full.index(slot), n // STAGES & 1)
            mine = rows_of_x.index(slot).slice(GROUP * M, M, dim=0)
            total = warpgroup_mma(mine, rows_of_weight.index(slot).permute((1, 0)), total, is_async=True)
            total = warpgroup_mma_wait(0, deps=[total])  # the other group multiplies meanwhile
            mbarrier.arrive(free.index(slot))
            n += 1
        total += shifts.load(gl.SliceLayout(0, layout))[None, :]
        # Not maximum(total, 0), which would make NaN zero.
        feature = gl.where(total < 0.0, 0.0, total).to(y.dtype)

        operand = gl.convert_layout(feature, gl.DotOperandLayout(0, narrow, k_width=2))
        few = gl.zeros([M, OUT], gl.float32, layout=narrow)
        few = warpgroup_mma(operand, last.permute((1, 0)), few, use_acc=False, is_async=True)
        left, right = _halves(feature, M, N)
        f0, f1 = _halves(left, M, N // 2)
        f2, f3 = _halves(right, M, N // 2)
        _send(y, place, f0, row, 0)
        _send(y, place, f1, row, N // 4)
        _send(y, place, f2, row, N // 2)
        _send(y, place, f3, row, 3 * N // 4)
        few = warpgroup_mma_wait(0, deps=[few])
        few += last_shifts.load(gl.SliceLayout(0, narrow))[None, :]
        r = row + gl.arange(0, M, layout=gl.SliceLayout(1, narrow))
        output = gl.arange(0, OUT, layout=gl.SliceLayout(0, narrow))
        first = (r // positions).to(gl.int64) * outputs * positions + r % positions
        where = offsets + first[:, None] + output[None, :].to(gl.int64) * positions
        gl.store(where, few, mask=(r < rows)[:, None] & (output < outputs)[None, :])
    tma.store_wait(0)


@gluon.jit
def _feature_and_offsets(
    x, weight, regress, y, offsets, bias, last_bias, rows, channels, outputs, positions, M: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr, MULTIPLYING: gl.constexpr,
    FETCHING: gl.constexpr,
):  # fmt: skip
    rows_of_x = gl.allocate_shared_memory(x.dtype, [STAGES, 2 * M, K], x.layout)
    rows_of_weight = gl.allocate_shared_memory(weight.dtype, [STAGES, N, K], weight.layout)
    places = gl.allocate_shared_memory(y.dtype, [2, M, N // 4], y.layout)
    last = gl.allocate_shared_memory(regress.dtype, [OUT, N], regress.layout)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    shifts = gl.allocate_shared_memory(gl.float32, [N], flat)
    last_shifts = gl.allocate_shared_memory(gl.float32, [OUT], flat)
    column = gl.arange(0, N, layout=gl.BlockedLayout([N // 128], [32], [4], [0]))
    shifts.store(gl.load(bias + column).to(gl.float32))
    output = gl.arange(0, OUT, layout=gl.BlockedLayout([1], [32], [4], [0]))
    last_shifts.store(gl.load(last_bias + output, mask=output < outputs, other=0.0).to(gl.float32))
    full, free, last_full = barriers(STAGES, 1), barriers(STAGES, 2), barriers(1, 1).index(0)
    fence_async_shared()
    tiles, steps = gl.cdiv(rows, 2 * M), gl.cdiv(channels, K)
    gl.warp_specialize(
        [
            (_multiply, (y, offsets, shifts, last_shifts, rows_of_x, rows_of_weight, full, free, last, last_full,
                         places, tiles, steps, rows, outputs, positions, gl.constexpr(0), M, N, K, OUT, STAGES)),
            (_multiply, (y, offsets, shifts, last_shifts, rows_of_x, rows_of_weight, full, free, last, last_full,
                         places, tiles, steps, rows, outputs, positions, gl.constexpr(1), M, N, K, OUT, STAGES)),
            (_fetch, (x, weight, regress, rows_of_x, rows_of_weight, full, free, last, last_full, tiles, steps, M, N,
                      K, OUT, STAGES)),
        ],
        [4, 1],
        [MULTIPLYING, FETCHING],
    )  # fmt: skip


def pays(x: Tensor, weight: Tensor, regress: Tensor) -> bool:
    """Whether :func:`feature_and_offsets` takes these, and is the faster way."""
    return (
        weight.shape[0] == WIDTH
        and regress.shape[0] <= MOST_OUTPUTS
        and x.dtype == weight.dtype == regress.dtype
        and x.element_size() == 2
        and x.shape[1] * x.element_size() % 16 == 0
        and x.shape[0] > 0
        and hopper.can_run(x.get_device())
        and _busy(x.shape[0], hopper.processors(x.get_device())) >= max(_BUSY, 1 - 256 / x.shape[1])
    )


def _busy(rows: int, processors: int) -> float:
    """The share of multiprocessors that have a tile, on average over rounds. PyTorch's product has smaller tiles for a
    last round with few of them, which counts the more the longer a tile takes: the more channels ``x`` has. (Measured
    with 256 to 2048 channels and 1,024 to 131,072 rows.)

    >>> _busy(32768, 132), _busy(32768 + 128 * 8, 132)
    (0.9696969696969697, 1.0)
    """
    tiles = -(-rows // (2 * _ROWS))
    return tiles / (-(-tiles // processors) * processors)


def feature_and_offsets(
    x: Tensor, weight: Tensor, bias: Tensor, regress: Tensor, last_bias: Tensor, positions: int
) -> tuple[Tensor, Tensor]:
    """f = relu(x weight^T + bias) (R, 256) and, in float32, f regress^T + last_bias (B, O, positions).

    For matrices x (R, C), weight (256, C), regress (O, 256) with contiguous rows that start at multiples of 16 bytes.
    """
    rows, outputs = x.shape[0], regress.shape[0]
    y = torch.empty((rows, WIDTH), dtype=x.dtype, device=x.device)
    offsets = torch.empty((rows // positions, outputs, positions), dtype=torch.float32, device=x.device)
    with on(x):
        _plan(x.shape, outputs, positions, x.dtype, bias.dtype, last_bias.dtype, x.get_device())(
            described(x, 2 * _ROWS, _CHANNELS), described(weight, WIDTH, _CHANNELS),
            described(regress, MOST_OUTPUTS, WIDTH), described(y, _ROWS, WIDTH // 4), offsets, bias, last_bias,
        )  # fmt: skip
    return y, offsets


@lru_cache(256)
def _plan(shape, outputs, positions, dtype, bias, last_bias, device) -> Plan:
    rows, channels = shape
    constants = {
        "M": _ROWS, "N": WIDTH, "K": _CHANNELS, "OUT": MOST_OUTPUTS, "STAGES": _STAGES,
        "MULTIPLYING": hopper.REGISTERS[0], "FETCHING": hopper.REGISTERS[1],
    }  # fmt: skip
    tiles = -(-rows // (2 * _ROWS))
    programs = (min(tiles, hopper.processors(device) if device >= 0 else tiles),)
    return Plan(_feature_and_offsets, programs, (rows, channels, outputs, positions), constants, num_warps=4)
