"""Batch normalisation and ReLU of a matrix (R, C), with the statistics of its rows: three passes each way.

Rows are cut into chunks. A chunk's sums are of differences to its first row, so that a large mean does not eat the
digits of a small variance.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from repgraph.ops.triton.norm import bring_forward
from repgraph.ops.triton.plan import Plan, aligned, on
from repgraph.ops.triton.tiles import power_of_two

CHUNKS = 128
_ELEMENTS = 8192  # of a matrix in one step


@triton.jit
def _moments(x, parts, rows, columns, chunk, M: tl.constexpr, N: tl.constexpr):
    column = tl.program_id(0) % tl.cdiv(columns, N) * N + tl.arange(0, N)
    part = (tl.program_id(0) // tl.cdiv(columns, N)).to(tl.int64)
    first = part * chunk
    last = min(first + chunk, rows)
    here = column < columns
    origin = tl.load(x + min(first, rows - 1) * columns + column, mask=here, other=0.0).to(tl.float32)
    total = tl.zeros((M, N), tl.float32)
    squares = tl.zeros((M, N), tl.float32)
    for start in range(0, chunk, M):
        row = first + start + tl.arange(0, M)
        inside = (row < last)[:, None] & here[None, :]
        values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        values = tl.where(inside, values - origin[None, :], 0.0)
        total += values
        squares += values * values
    count = tl.maximum(last - first, 1).to(tl.float32)
    s = tl.sum(total, 0)
    where = part * columns + column
    tl.store(parts + where, origin + s / count, mask=here)
    where += tl.num_programs(0) // tl.cdiv(columns, N) * columns
    tl.store(parts + where, tl.sum(squares, 0) - s * s / count, mask=here)


@triton.jit
def _join(
    parts, gamma, beta, running_mean, running_var, scale, shift, means, rstds, rows, columns, chunk, count, eps,
    momentum, AFFINE: tl.constexpr, TRACK: tl.constexpr, PARTS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * N + tl.arange(0, N)
    part = tl.arange(0, PARTS)
    here = column < columns
    inside = (part < count)[:, None] & here[None, :]
    where = part[:, None] * columns + column[None, :]
    n = tl.maximum(tl.minimum(rows - part * chunk, chunk), 0).to(tl.float32)[:, None]
    mean = tl.load(parts + where, mask=inside, other=0.0)
    spread = tl.load(parts + count * columns + where, mask=inside & (n > 0), other=0.0)
    m = tl.sum(n * mean, 0) / rows
    apart = mean - m[None, :]
    variance = tl.sum(tl.where(inside, spread + n * apart * apart, 0.0), 0) / rows
    rstd = 1 / tl.sqrt_rn(variance + eps)
    s = rstd
    t = -m * rstd
    if AFFINE:
        s *= tl.load(gamma + column, mask=here, other=0.0).to(tl.float32)
        t = tl.load(beta + column, mask=here, other=0.0).to(tl.float32) - m * s
    tl.store(scale + column, s, mask=here)
    tl.store(shift + column, t, mask=here)
    tl.store(means + column, m, mask=here)
    tl.store(rstds + column, rstd, mask=here)
    if TRACK:
        bring_forward(running_mean, column, here, m, momentum)
        bring_forward(running_var, column, here, variance * (rows / (rows - 1.0)), momentum)


@triton.jit
def _apply(x, y, scale, shift, rows, columns, M: tl.constexpr, N: tl.constexpr):
    column = tl.program_id(0) % tl.cdiv(columns, N) * N + tl.arange(0, N)
    row = (tl.program_id(0) // tl.cdiv(columns, N)).to(tl.int64) * M + tl.arange(0, M)
    here = column < columns
    inside = (row < rows)[:, None] & here[None, :]
    where = row[:, None] * columns + column[None, :]
    s = tl.load(scale + column, mask=here, other=0.0)
    t = tl.load(shift + column, mask=here, other=0.0)
    z = tl.load(x + where, mask=inside, other=0.0).to(tl.float32) * s[None, :] + t[None, :]
    z = tl.where(z < 0, 0.0, z)  # a NaN stays one
    tl.store(y + where, z.to(y.dtype.element_ty), mask=inside)


def norm_relu(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running: tuple[Tensor, Tensor] | None, eps: float,
    momentum: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """relu(batch_norm(x)) of a matrix (R, C), R > 1, and what its backward pass needs: (4, C) float32."""
    rows, columns = x.shape
    y = torch.empty_like(x)
    parts = torch.empty((2, min(CHUNKS, rows), columns), dtype=torch.float32, device=x.device)
    numbers = torch.empty((4, columns), dtype=torch.float32, device=x.device)  # scale, shift, mean, rstd
    gammas = (parts, parts) if gamma is None or beta is None else (gamma, beta)
    track = (parts, parts) if running is None else running
    first, second, third = _plans(
        x.shape, x.dtype, gammas[0].dtype, track[0].dtype, x.get_device(), aligned(x, *gammas, *track),
        gamma is not None, running is not None,
    )  # fmt: skip
    with on(x):
        first(x, parts)
        count = parts.shape[1]
        second(parts, *gammas, *track, *numbers, rows, columns, -(-rows // count), count, eps, momentum)
        third(x, y, numbers[0], numbers[1])
    return y, numbers


@lru_cache(256)
def _plans(shape, dtype, gamma, running, device, is_aligned, affine, track) -> tuple[Plan, Plan, Plan]:
    rows, columns = shape
    parts, n, m, across = _tiles(shape)
    constants = {"AFFINE": affine, "TRACK": track, "PARTS": power_of_two(parts), "N": 16}
    return (
        Plan(_moments, (parts * across,), (rows, columns, -(-rows // parts)), {"M": m, "N": n}, num_warps=4),
        Plan(_join, (-(-columns // 16),), (), constants, num_warps=4),
        Plan(_apply, (-(-rows // m) * across,), (rows, columns), {"M": m, "N": n}, num_warps=4),
    )


@triton.jit
def _grad_sums(grad, x, numbers, parts, rows, columns, chunk, M: tl.constexpr, N: tl.constexpr):
    column = tl.program_id(0) % tl.cdiv(columns, N) * N + tl.arange(0, N)
    part = (tl.program_id(0) // tl.cdiv(columns, N)).to(tl.int64)
    here = column < columns
    s = tl.load(numbers + column, mask=here, other=0.0)
    t = tl.load(numbers + columns + column, mask=here, other=0.0)
    mean = tl.load(numbers + 2 * columns + column, mask=here, other=0.0)
    rstd = tl.load(numbers + 3 * columns + column, mask=here, other=0.0)
    total = tl.zeros((M, N), tl.float32)
    along = tl.zeros((M, N), tl.float32)
    last = min(part * chunk + chunk, rows)
    for start in range(0, chunk, M):
        row = part * chunk + start + tl.arange(0, M)
        inside = (row < last)[:, None] & here[None, :]
        where = row[:, None] * columns + column[None, :]
        values = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + where, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(values * s[None, :] + t[None, :] <= 0, 0.0, g)
        total += g
        along += g * (values - mean[None, :])
    tl.store(parts + part * columns + column, tl.sum(total, 0), mask=here)
    where = (tl.num_programs(0) // tl.cdiv(columns, N) + part) * columns + column
    tl.store(parts + where, tl.sum(along, 0) * rstd, mask=here)


@triton.jit
def _grad_apply(grad, x, numbers, sums, grad_x, rows, columns, M: tl.constexpr, N: tl.constexpr):
    column = tl.program_id(0) % tl.cdiv(columns, N) * N + tl.arange(0, N)
    row = (tl.program_id(0) // tl.cdiv(columns, N)).to(tl.int64) * M + tl.arange(0, M)
    here = column < columns
    inside = (row < rows)[:, None] & here[None, :]
    where = row[:, None] * columns + column[None, :]
    s = tl.load(numbers + column, mask=here, other=0.0)
    t = tl.load(numbers + columns + column, mask=here, other=0.0)
    mean = tl.load(numbers + 2 * columns + column, mask=here, other=0.0)
    rstd = tl.load(numbers + 3 * columns + column, mask=here, other=0.0)
    of_all = tl.load(sums + column, mask=here, other=0.0) / rows
    along = tl.load(sums + columns + column, mask=here, other=0.0) / rows * rstd
    values = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + where, mask=inside, other=0.0).to(tl.float32)
    g = tl.where(values * s[None, :] + t[None, :] <= 0, 0.0, g)
    d = s[None, :] * (g - of_all[None, :] - (values - mean[None, :]) * along[None, :])
    tl.store(grad_x + where, d.to(grad_x.dtype.element_ty), mask=inside)


def norm_relu_backward(grad: Tensor, x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of x, and those (2, C) of beta and gamma in float32."""
    rows, columns = x.shape
    parts = torch.empty((2, min(CHUNKS, rows), columns), dtype=torch.float32, device=x.device)
    grad_x = torch.empty_like(x)
    first, second = _backward_plans(x.shape, x.dtype, x.get_device(), aligned(grad, x))
    with on(x):
        first(grad, x, numbers, parts)
        sums = parts.sum(1)
        second(grad, x, numbers, sums, grad_x)
    return grad_x, sums


@lru_cache(256)
def _backward_plans(shape, dtype, device, is_aligned) -> tuple[Plan, Plan]:
    rows, columns = shape
    parts, n, m, across = _tiles(shape)
    tile = {"M": m // 2 or 1, "N": n}
    return (
        Plan(_grad_sums, (parts * across,), (rows, columns, -(-rows // parts)), tile, num_warps=4),
        Plan(_grad_apply, (-(-rows // tile["M"]) * across,), (rows, columns), tile, num_warps=4),
    )


def _tiles(shape: tuple[int, int]) -> tuple[int, int, int, int]:
    """Chunks of rows, columns and rows of a tile, tiles across; several programs for each processor."""
    rows, columns = shape
    n = min(64, power_of_two(columns))
    return min(CHUNKS, rows), n, max(1, _ELEMENTS // n), -(-columns // n)
