"""Batch normalization: folded into the weight of the preceding product, and with ReLU; with their gradients."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repgraph.ops.triton.plan import cdiv, launch, next_power_of_two

Running = tuple[Tensor, Tensor]  # mean and variance

_FOLDED = 4096  # elements of the weight per program
_CHUNKS = 128  # of rows that ``norm_relu`` sums separately
_PARTS = 8  # partial sums that a program adds at once
_TILE = 8192  # elements of a tile of ``norm_relu``


@triton.jit
def scale_and_shift(gamma, beta, channel, here, mean, rstd):
    """Return normalization as a scale and a shift."""
    scale = rstd * tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)
    return scale, tl.load(beta + channel, mask=here, other=0.0).to(tl.float32) - mean * scale


@triton.jit
def running_scale(gamma, beta, mean, variance, channel, here, eps):
    """Return normalization by running statistics as a scale and a shift."""
    m = tl.load(mean + channel, mask=here, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt_rn(tl.load(variance + channel, mask=here, other=1.0).to(tl.float32) + eps)
    return scale_and_shift(gamma, beta, channel, here, m, rstd)


@triton.jit
def update_running(running, channel, here, new, momentum):
    """Update running statistics of some channels with the statistics of this batch."""
    old = tl.load(running + channel, mask=here, other=0.0).to(tl.float32)
    tl.store(running + channel, (old + momentum * (new - old)).to(running.dtype.element_ty), mask=here)


@triton.jit
def sum_parts(parts, count, columns, column, here, N: tl.constexpr, P: tl.constexpr):
    """Return P sums [P, N] of the ``count`` rows of some columns, which add up to the sums of all rows."""
    total = tl.zeros((P, N), tl.float32)
    for first in range(0, count, P):
        part = first + tl.arange(0, P)
        inside = (part < count)[:, None] & here[None, :]
        total += tl.load(parts + part[:, None] * columns + column[None, :], mask=inside, other=0.0)
    return total


@triton.jit
def weight_tile(channels, inner, M: tl.constexpr, K: tl.constexpr):
    """Return channels and inputs of this program's rows of the weight, the indices of their elements, and masks."""
    channel = tl.program_id(0) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    here = channel < channels
    where = channel[:, None] * inner + k[None, :]
    return channel, k, here, where, here[:, None] & (k < inner)[None, :]


@triton.jit
def _fold(
    weight, products, mean, gamma, beta, running_mean, running_var, folded, projected, numbers, rows, channels, inner,
    eps, momentum, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CENTRE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * M + tl.arange(0, M)
    here = channel < channels
    m = tl.zeros((M,), tl.float32)
    variance = tl.zeros((M,), tl.float32)
    for start in range(0, inner, N):
        n = start + tl.arange(0, N)
        mean_n = tl.load(mean + n, mask=n < inner, other=0.0)
        total = tl.zeros((M, N), tl.float32)  # the weight times the covariance
        for first in range(0, inner, K):
            k = first + tl.arange(0, K)
            _, w = read_weight(weight, channel, here, k, inner)
            inside = (k < inner)[:, None] & (n < inner)[None, :]
            covariance = tl.load(products + k[:, None] * inner + n[None, :], mask=inside, other=0.0) / rows
            if CENTRE:
                covariance -= tl.load(mean + k, mask=k < inner, other=0.0)[:, None] * mean_n[None, :]
            total = tl.dot(w, covariance, total, input_precision=PRECISION)
        where, w = read_weight(weight, channel, here, n, inner)
        tl.store(projected + where, total, mask=here[:, None] & (n < inner)[None, :])
        m += tl.sum(w * mean_n[None, :], 1)
        variance += tl.sum(w * total, 1)
    variance = tl.maximum(variance, 0.0)
    rstd = 1 / tl.sqrt_rn(variance + eps)
    scale, t = scale_and_shift(gamma, beta, channel, here, m, rstd)
    for start in range(0, inner, N):
        n = start + tl.arange(0, N)
        where, w = read_weight(weight, channel, here, n, inner)
        new = (w * scale[:, None]).to(folded.dtype.element_ty)
        tl.store(folded + where, new, mask=here[:, None] & (n < inner)[None, :])
    tl.store(numbers + channel, t, mask=here)
    tl.store(numbers + channels + channel, m, mask=here)
    tl.store(numbers + 2 * channels + channel, rstd, mask=here)
    update_running(running_mean, channel, here, m, momentum)
    update_running(running_var, channel, here, variance * (rows / (rows - 1.0)), momentum)


@triton.jit
def read_weight(weight, channel, here, k, inner):
    """Return the indices of some elements of the weight, and their values in float32."""
    where = channel[:, None] * inner + k[None, :]
    return where, tl.load(weight + where, mask=here[:, None] & (k < inner)[None, :], other=0.0).to(tl.float32)


def fold(
    weight: Tensor, products: Tensor, mean: Tensor, gamma: Tensor, beta: Tensor, running: Running, eps: float,
    momentum: float, count: int, centred: bool, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return folded weight (C, C') in ``dtype``, weight times covariance (C, C'), and float32 numbers (3, C).

    ``products`` are the sums of products of the C' inputs over ``count`` rows (``centred``: without the mean), ``mean``
    their mean. The numbers are shift, mean and reciprocal standard deviation.
    """
    channels, inner = weight.shape
    folded = torch.empty_like(weight, dtype=dtype)
    projected = torch.empty((channels, inner), dtype=torch.float32, device=weight.device)
    numbers = torch.empty((3, channels), dtype=torch.float32, device=weight.device)
    tensors = (weight, products, mean, gamma, beta, *running, folded, projected, numbers)
    precision = "bf16x6" if isinstance(_fold, triton.runtime.JITFunction) else "ieee"  # the only one of the interpreter
    constants = {"M": 16, "N": 64, "K": 32, "CENTRE": not centred, "PRECISION": precision}
    launch(_fold, cdiv(channels, 16), tensors, (float(count), channels, inner, eps, momentum), constants, num_warps=4)
    return folded, projected, numbers


@triton.jit
def _fold_running(
    weight, gamma, beta, mean, variance, folded, shift, channels, inner, eps, M: tl.constexpr, K: tl.constexpr
):  # fmt: skip
    channel, _, here, where, inside = weight_tile(channels, inner, M, K)
    w = tl.load(weight + where, mask=inside, other=0.0).to(tl.float32)  # [M, K]
    scale, t = running_scale(gamma, beta, mean, variance, channel, here, eps)
    tl.store(folded + where, (w * scale[:, None]).to(folded.dtype.element_ty), mask=inside)
    tl.store(shift + channel, t, mask=here)


def fold_running(
    weight: Tensor, gamma: Tensor, beta: Tensor, running: Running, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the weight (C, C') in ``dtype`` and the shift (C,) with normalization by running statistics folded in."""
    folded = torch.empty_like(weight, dtype=dtype)
    shift = torch.empty(weight.shape[:1], dtype=torch.float32, device=weight.device)
    programs, tile = _weight_tiles(weight)
    tensors = (weight, gamma, beta, *running, folded, shift)
    launch(_fold_running, programs, tensors, (*weight.shape, eps), tile, num_warps=4)
    return folded, shift


@triton.jit
def _fold_backward(
    weight, projected, mean, gamma, numbers, grad_folded, parts, grad_weight, grad_gamma, grad_beta, weighted, rows,
    channels, inner, count, M: tl.constexpr, K: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    channel, k, here, where, inside = weight_tile(channels, inner, M, K)
    w = tl.load(weight + where, mask=inside, other=0.0).to(tl.float32)  # [M, K]
    d = tl.load(grad_folded + where, mask=inside, other=0.0).to(tl.float32)
    p = tl.load(projected + where, mask=inside, other=0.0)
    m = tl.load(numbers + channels + channel, mask=here, other=0.0)
    rstd = tl.load(numbers + 2 * channels + channel, mask=here, other=0.0)
    grad_t = tl.sum(sum_parts(parts, count, channels, channel, here, M, P), 0)
    tl.store(grad_beta + channel, grad_t.to(grad_beta.dtype.element_ty), mask=here)
    grad_scale = tl.sum(d * w, 1) - grad_t * m
    scale = rstd * tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)
    tl.store(grad_gamma + channel, (grad_scale * rstd).to(grad_gamma.dtype.element_ty), mask=here)
    grad_variance = -0.5 * grad_scale * scale * rstd * rstd
    grad_mean = -grad_t * scale
    from_mean = grad_mean[:, None] * tl.load(mean + k, mask=k < inner, other=0.0)[None, :]
    grad_w = scale[:, None] * d + 2 * grad_variance[:, None] * p + from_mean
    tl.store(grad_weight + where, grad_w.to(grad_weight.dtype.element_ty), mask=inside)
    place = channel * (inner + 1)
    tl.store(weighted + place[:, None] + k[None, :], (2 / rows * grad_variance)[:, None] * w, mask=inside)
    tl.store(weighted + place + inner, grad_mean / rows, mask=here)


def fold_backward(
    weight: Tensor, projected: Tensor, mean: Tensor, gamma: Tensor, numbers: Tensor, grad_folded: Tensor,
    parts: Tensor, count: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of weight, gamma and beta, and a matrix (C, C' + 1) for the gradient of the input.

    ``parts`` sum up to the gradient of the shift. The matrix is the weight times 2 / ``count`` times the gradients of
    variances, and the gradients of means over ``count``.
    """
    channels, inner = weight.shape
    grad_weight, grad_gamma, grad_beta = torch.empty_like(weight), torch.empty_like(gamma), torch.empty_like(gamma)
    weighted = torch.empty((channels, inner + 1), dtype=torch.float32, device=weight.device)
    inputs = (weight, projected, mean, gamma, numbers, grad_folded, parts)
    tensors = (*inputs, grad_weight, grad_gamma, grad_beta, weighted)
    sizes = (float(count), channels, inner, parts.shape[0])
    programs, tile = _weight_tiles(weight)
    launch(_fold_backward, programs, tensors, sizes, tile | {"P": _PARTS}, num_warps=4)
    return grad_weight, grad_gamma, grad_beta, weighted


@triton.jit
def _slope(both, mean, slope, shift, inner, M: tl.constexpr, K: tl.constexpr):
    row, k, here, where, inside = weight_tile(inner, inner, M, K)
    at = row * (inner + 1)
    s = tl.load(both + at[:, None] + k[None, :], mask=inside, other=0.0).to(slope.dtype.element_ty)
    tl.store(slope + where, s, mask=inside)
    m = tl.load(mean + k, mask=k < inner, other=0.0)
    t = tl.load(both + at + inner, mask=here, other=0.0) - tl.sum(s.to(tl.float32) * m[None, :], 1)
    tl.store(shift + row, t.to(shift.dtype.element_ty), mask=here)


def slope_and_shift(both: Tensor, mean: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the symmetric slope (C', C') and the shift minus the slope times the mean (C') of a matrix (C', C' + 1).

    The rounded slope is multiplied with the mean, so that the means cancel.
    """
    inner = len(both)
    slope = torch.empty((inner, inner), dtype=dtype, device=both.device)
    shift = torch.empty(inner, dtype=dtype, device=both.device)
    programs, tile = _weight_tiles(slope)
    launch(_slope, programs, (both, mean, slope, shift), (inner,), tile, num_warps=4)
    return slope, shift


def _weight_tiles(weight: Tensor) -> tuple[int, dict[str, int]]:
    """Return the number of programs, and the rows and columns of the weight in each."""
    k = next_power_of_two(weight.shape[1])
    m = max(1, _FOLDED // k)
    return cdiv(len(weight), m), {"M": m, "K": k}


@triton.jit
def place_of(columns, N: tl.constexpr):
    """Return the columns of this program's tile, and its index along the rows."""
    across = tl.cdiv(columns, N)
    column = tl.program_id(0) % across * N + tl.arange(0, N)
    return column, (tl.program_id(0) // across).to(tl.int64)


@triton.jit  # sums differences to the first row of the chunk: a small variance keeps its precision next to a large mean
def _moments(x, parts, rows, columns, chunk, M: tl.constexpr, N: tl.constexpr):
    column, part = place_of(columns, N)
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
    parts, gamma, beta, running_mean, running_var, numbers, rows, columns, chunk, count, eps, momentum,
    PARTS: tl.constexpr, N: tl.constexpr,
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
    s, t = scale_and_shift(gamma, beta, column, here, m, rstd)
    tl.store(numbers + column, s, mask=here)
    tl.store(numbers + columns + column, t, mask=here)
    tl.store(numbers + 2 * columns + column, m, mask=here)
    tl.store(numbers + 3 * columns + column, rstd, mask=here)
    update_running(running_mean, column, here, m, momentum)
    update_running(running_var, column, here, variance * (rows / (rows - 1.0)), momentum)


@triton.jit
def tile_of(rows, columns, M: tl.constexpr, N: tl.constexpr):
    """Return the columns of this program's tile and their mask, and the indices of its elements and their mask."""
    column, strip = place_of(columns, N)
    row = strip * M + tl.arange(0, M)
    here = column < columns
    return column, here, row[:, None] * columns + column[None, :], (row < rows)[:, None] & here[None, :]


@triton.jit
def _apply(x, y, numbers, rows, columns, M: tl.constexpr, N: tl.constexpr):
    column, here, where, inside = tile_of(rows, columns, M, N)
    s = tl.load(numbers + column, mask=here, other=0.0)
    t = tl.load(numbers + columns + column, mask=here, other=0.0)
    z = tl.load(x + where, mask=inside, other=0.0).to(tl.float32) * s[None, :] + t[None, :]
    z = tl.where(z < 0, 0.0, z)  # NaN stays NaN
    tl.store(y + where, z.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _apply_running(
    x, y, gamma, beta, mean, variance, rows, columns, eps, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    column, here, where, inside = tile_of(rows, columns, M, N)
    s, t = running_scale(gamma, beta, mean, variance, column, here, eps)
    z = tl.load(x + where, mask=inside, other=0.0).to(tl.float32) * s[None, :] + t[None, :]
    tl.store(y + where, tl.where(z < 0, 0.0, z).to(y.dtype.element_ty), mask=inside)


def norm_relu_running(x: Tensor, gamma: Tensor, beta: Tensor, running: Running, eps: float) -> Tensor:
    """Return relu(batch_norm(x)) of a matrix (R, C) with running statistics."""
    rows, columns = x.shape
    y = torch.empty_like(x)
    n = min(64, next_power_of_two(columns))
    tile = {"M": max(1, _TILE // n), "N": n}
    programs = cdiv(rows, tile["M"]) * cdiv(columns, n)
    launch(_apply_running, programs, (x, y, gamma, beta, *running), (rows, columns, eps), tile, num_warps=4)
    return y


def norm_relu(
    x: Tensor, gamma: Tensor, beta: Tensor, running: Running, eps: float, momentum: float
) -> tuple[Tensor, Tensor]:
    """Return relu(batch_norm(x)) of a matrix (R, C), R > 1, and float32 numbers (4, C) for the backward pass."""
    rows, columns = x.shape
    y = torch.empty_like(x)
    numbers = torch.empty((4, columns), dtype=torch.float32, device=x.device)  # scale, shift, mean, rstd
    parts, chunk, n, across = _chunks(x)
    tile = {"M": max(1, _TILE // n), "N": n}
    count = parts.shape[1]
    launch(_moments, count * across, (x, parts), (rows, columns, chunk), tile, num_warps=4)
    tensors, sizes = (parts, gamma, beta, *running, numbers), (rows, columns, chunk, count)
    constants = {"PARTS": next_power_of_two(count), "N": 16}
    launch(_join, cdiv(columns, 16), tensors, (*sizes, eps, momentum), constants, num_warps=4)
    programs = cdiv(rows, tile["M"]) * across
    launch(_apply, programs, (x, y, numbers), (rows, columns), tile, num_warps=4)
    return y, numbers


def _chunks(x: Tensor) -> tuple[Tensor, int, int, int]:
    """Return memory for two sums of each chunk of rows, the rows of a chunk, columns of a tile, and tiles across."""
    rows, columns = x.shape
    parts = torch.empty((2, min(_CHUNKS, rows), columns), dtype=torch.float32, device=x.device)
    n = min(64, next_power_of_two(columns))
    return parts, cdiv(rows, parts.shape[1]), n, cdiv(columns, n)


@triton.jit
def read_numbers(numbers, column, here, columns):
    """Return scale, shift, mean and reciprocal standard deviation of some columns."""
    s = tl.load(numbers + column, mask=here, other=0.0)
    t = tl.load(numbers + columns + column, mask=here, other=0.0)
    mean = tl.load(numbers + 2 * columns + column, mask=here, other=0.0)
    rstd = tl.load(numbers + 3 * columns + column, mask=here, other=0.0)
    return s, t, mean, rstd


@triton.jit
def read_gradient(grad, x, where, inside, s, t):
    """Return the features, and the gradient of the ReLU's input."""
    values = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + where, mask=inside, other=0.0).to(tl.float32)
    return values, tl.where(values * s[None, :] + t[None, :] <= 0, 0.0, g)


@triton.jit
def _grad_sums(grad, x, numbers, parts, rows, columns, chunk, M: tl.constexpr, N: tl.constexpr):
    column, part = place_of(columns, N)
    here = column < columns
    s, t, mean, rstd = read_numbers(numbers, column, here, columns)
    total = tl.zeros((M, N), tl.float32)
    along = tl.zeros((M, N), tl.float32)
    last = min(part * chunk + chunk, rows)
    for start in range(0, chunk, M):
        row = part * chunk + start + tl.arange(0, M)
        inside = (row < last)[:, None] & here[None, :]
        values, g = read_gradient(grad, x, row[:, None] * columns + column[None, :], inside, s, t)
        total += g
        along += g * (values - mean[None, :])
    tl.store(parts + part * columns + column, tl.sum(total, 0), mask=here)
    where = (tl.num_programs(0) // tl.cdiv(columns, N) + part) * columns + column
    tl.store(parts + where, tl.sum(along, 0) * rstd, mask=here)


@triton.jit
def _grad_apply(grad, x, numbers, sums, grad_x, rows, columns, M: tl.constexpr, N: tl.constexpr):
    column, here, where, inside = tile_of(rows, columns, M, N)
    s, t, mean, rstd = read_numbers(numbers, column, here, columns)
    of_all = tl.load(sums + column, mask=here, other=0.0) / rows
    along = tl.load(sums + columns + column, mask=here, other=0.0) / rows * rstd
    values, g = read_gradient(grad, x, where, inside, s, t)
    d = s[None, :] * (g - of_all[None, :] - (values - mean[None, :]) * along[None, :])
    tl.store(grad_x + where, d.to(grad_x.dtype.element_ty), mask=inside)


def norm_relu_backward(grad: Tensor, x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and float32 gradients (2, C) of beta and gamma."""
    rows, columns = x.shape
    grad_x = torch.empty_like(x)
    parts, chunk, n, across = _chunks(x)
    tile = {"M": max(1, _TILE // n // 2), "N": n}
    launch(_grad_sums, parts.shape[1] * across, (grad, x, numbers, parts), (rows, columns, chunk), tile, num_warps=4)
    sums = parts.sum(1)
    programs = cdiv(rows, tile["M"]) * across
    launch(_grad_apply, programs, (grad, x, numbers, sums, grad_x), (rows, columns), tile, num_warps=4)
    return grad_x, sums
