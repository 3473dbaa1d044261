"""Products of matrices, and sums over their rows, that the layers need and PyTorch has no single kernel for."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from repgraph.ops import tf32
from repgraph.ops.triton.plan import Plan, aligned, on
from repgraph.ops.triton.tiles import power_of_two

try:
    from repgraph.ops.triton import regress, strips
except (ImportError, AttributeError):  # a Triton without Gluon, or with one that has other names
    regress = strips = None  # type: ignore[assignment]

# Rows and columns of a tile, its steps along the inner channels, warps and stages; by measurement on an H200. For the
# size of an element, and how float32 is multiplied (:func:`_precision`).
_TILES = {
    (2, "tf32"): (128, 128, 64, 4, 2),
    (4, "tf32"): (128, 128, 32, 8, 3),
    (4, "bf16x6"): (64, 64, 32, 4, 3),
    (4, "ieee"): (64, 64, 32, 4, 3),
}
_FEW = 4  # inner channels
_ROWS_TOGETHER = 4  # tiles of rows that go through the columns together: what they share stays in the cache
_CHUNKS = 128  # of rows that are summed up on their own
_NARROW = 128  # rows in one program


@triton.jit
def _residual(
    a, weight, x, y, bias, rows, columns, inner, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(rows, M), tl.cdiv(columns, N)
    strip = tl.program_id(0) // (TOGETHER * tiles_n)
    place = tl.program_id(0) % (TOGETHER * tiles_n)
    height = min(tiles_m - strip * TOGETHER, TOGETHER)
    m = (strip * TOGETHER + place % height) * M
    n = (place // height) * N
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, inner, K):
        total = tl.dot(a.load([m, k]), weight.load([n, k]).T, total, input_precision=PRECISION)
    if HAS_BIAS:
        column = n + tl.arange(0, N)
        total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    total += x.load([m, n]).to(tl.float32)
    y.store([m, n], total.to(y.dtype))


def residual_product(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x + a weight^T + bias for matrices x (R, C), a (R, C'), weight (C, C') with contiguous rows."""
    # Descriptors read from multiples of 16 bytes, and the kernel that was compiled for one bias is that for the next.
    x, a, weight = map(_moved, (x, a, weight))
    bias = None if bias is None else _moved(bias)
    if strips is not None and strips.pay(x.shape, a.shape[1], x.dtype, x.get_device()):
        return strips.residual_strips(x, a, weight, bias)
    y = torch.empty_like(x)
    plan, m, n, k = _residual_plan(
        x.shape, a.shape[1], x.dtype, None if bias is None else bias.dtype, x.get_device(),
        _precision(x.dtype, a.shape[1]),
    )  # fmt: skip
    with on(x):
        plan(
            TensorDescriptor.from_tensor(a, [m, k]), TensorDescriptor.from_tensor(weight, [n, k]),
            TensorDescriptor.from_tensor(x, [m, n]), TensorDescriptor.from_tensor(y, [m, n]),
            y if bias is None else bias,
        )  # fmt: skip
    return y


def _precision(dtype: torch.dtype, inner: int) -> str:
    """How float32 is multiplied: as TF32 where PyTorch's products are, else to full precision.

    That is six products of parts in bfloat16, in tensor cores. They cut off what they add up, which shows in the
    shortest sums: their numbers are multiplied one by one, which takes longer. (An error of 8.8e-8 with 256 channels,
    where PyTorch's product has 2.9e-7; with 4 it would be 5.3e-8 and 4.9e-8.)
    """
    if dtype.itemsize == 2 or tf32.allowed():
        return "tf32"
    return "ieee" if inner <= _FEW else "bf16x6"


def _moved(t: Tensor) -> Tensor:
    """``t``, or a copy that starts at a multiple of 16 bytes."""
    return t if aligned(t) else t.clone()


@lru_cache(256)
def _residual_plan(shape, inner, dtype, bias, device, precision) -> tuple[Plan, int, int, int]:
    rows, columns = shape
    m, n, k, warps, stages = _TILES[dtype.itemsize, precision]
    if not isinstance(_residual, triton.runtime.JITFunction):
        precision = "ieee"  # the interpreter's products always are
    constants = {"HAS_BIAS": bias is not None, "PRECISION": precision, "M": m, "N": n, "K": k}
    plan = Plan(
        _residual, (-(-rows // m) * -(-columns // n),), (rows, columns, inner),
        constants | {"TOGETHER": _ROWS_TOGETHER}, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return plan, m, n, k


@triton.jit
def _wide(
    a, weight, bias, y, rows, inner, outputs, positions, PARTS: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
    OUT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    output = tl.arange(0, OUT)
    total = tl.zeros((M, OUT), tl.float32)
    for k in range(0, inner, K):
        channel = k + tl.arange(0, K)
        features = tl.load(
            a + row[:, None] * inner + channel[None, :],
            mask=(row < rows)[:, None] & (channel < inner)[None, :],
            other=0.0,
        )
        factors = tl.load(
            weight + output[None, :] * inner + channel[:, None],
            mask=(output < outputs)[None, :] & (channel < inner)[:, None],
            other=0.0,
        ).to(tl.float32)
        if PARTS == 0:  # of float32: both are split into parts of 11 bits, and the lowest product is left out
            total = tl.dot(features, factors, total, input_precision="tf32x3")
        # A float32 weight is the sum of three numbers of half precision, each product of which is exact.
        for _ in tl.static_range(PARTS):
            part = factors.to(features.dtype)
            total = tl.dot(features, part, total)
            factors -= part.to(tl.float32)
    total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    batch, position = row // positions, row % positions
    where = y + batch[:, None] * outputs * positions + output[None, :] * positions + position[:, None]
    tl.store(where, total, mask=(row < rows)[:, None] & (output < outputs)[None, :])


def wide_product(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, O, H, W) float32, contiguous, from a channels-last map (B, C, H, W)."""
    batch, _, height, width = a.shape
    y = torch.empty((batch, weight.shape[0], height, width), dtype=torch.float32, device=a.device)
    plan = _wide_plan(
        a.shape, weight.shape[0], a.dtype, weight.dtype, bias.dtype, a.get_device(), aligned(a, weight, bias)
    )
    with on(a):
        plan(a, weight, bias, y)
    return y


@lru_cache(256)
def _wide_plan(shape, outputs, dtype, weight, bias, device, is_aligned) -> Plan:
    batch, inner, height, width = shape
    rows = batch * height * width
    parts = 0 if dtype == torch.float32 else 1 if weight == dtype else 3
    constants = {"PARTS": parts, "M": 128, "K": 128 // dtype.itemsize, "OUT": max(16, power_of_two(outputs))}
    numbers = (rows, inner, outputs, height * width)
    return Plan(_wide, (-(-rows // 128),), numbers, constants, num_warps=4, num_stages=3)


def relu_products(
    x: Tensor, weight: Tensor, bias: Tensor, last_weight: Tensor, last_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """f = relu(W x + b) and :func:`wide_product` of it, from a channels-last map of half precision."""
    batch, _, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])
    if regress is not None and regress.pays(rows, weight, last_weight):
        rows, weight, bias, last_weight, last_bias = map(_moved, (rows, weight, bias, last_weight, last_bias))
        feature, offsets = regress.feature_and_offsets(rows, weight, bias, last_weight, last_bias, height * width)
        return _as_map(feature, batch, height, width), offsets.view(batch, len(last_weight), height, width)
    feature = _as_map(torch._addmm_activation(bias, rows, weight.t()), batch, height, width)
    return feature, wide_product(feature, last_weight, last_bias)


def _as_map(rows: Tensor, batch: int, height: int, width: int) -> Tensor:
    return rows.view(batch, height, width, rows.shape[1]).permute(0, 3, 1, 2)


@triton.jit
def _narrow(
    y, rows_out, parts, rows, outputs, padded, positions, M: tl.constexpr, OUT: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    output = tl.arange(0, OUT)
    batch, position = row // positions, row % positions
    where = y + batch[:, None] * outputs * positions + output[None, :] * positions + position[:, None]
    values = tl.load(where, mask=(row < rows)[:, None] & (output < outputs)[None, :], other=0.0)
    where = rows_out + row[:, None] * padded + output[None, :]
    tl.store(where, values.to(rows_out.dtype.element_ty), mask=(row < rows)[:, None] & (output < padded)[None, :])
    tl.store(parts + tl.program_id(0) * outputs + output, tl.sum(values, 0), mask=output < outputs)


def narrow_rows(y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What the gradients of :func:`wide_product` are made of, from that of its result (B, O, H, W), contiguous.

    Gives rows (B H W, P) in ``dtype``, P being O and as many zeros as make a multiple of 16 bytes, and sums (O).
    """
    batch, outputs, height, width = y.shape
    step = 16 // dtype.itemsize
    padded, rows = -(-outputs // step) * step, batch * height * width
    narrow = torch.empty((rows, padded), dtype=dtype, device=y.device)
    parts = torch.empty((-(-rows // _NARROW), outputs), dtype=torch.float32, device=y.device)
    with on(y):
        _narrow_plan(rows, outputs, padded, height * width, dtype, y.get_device(), aligned(y))(y, narrow, parts)
    return narrow, parts.sum(0)


@lru_cache(256)
def _narrow_plan(rows, outputs, padded, positions, dtype, device, is_aligned) -> Plan:
    constants = {"M": _NARROW, "OUT": power_of_two(padded)}
    return Plan(_narrow, (-(-rows // _NARROW),), (rows, outputs, padded, positions), constants, num_warps=4)


@triton.jit
def _sums(x, parts, factor, rows, columns, chunk, M: tl.constexpr, N: tl.constexpr):
    column = tl.program_id(0) % tl.cdiv(columns, N) * N + tl.arange(0, N)
    part = (tl.program_id(0) // tl.cdiv(columns, N)).to(tl.int64)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, chunk, M):
        row = part * chunk + first + tl.arange(0, M)
        inside = ((row < rows) & (first + tl.arange(0, M) < chunk))[:, None] & (column < columns)[None, :]
        total += tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(parts + part * columns + column, tl.sum(total, 0) * factor, mask=column < columns)


def column_sums(x: Tensor, factor: float = 1.0) -> Tensor:
    """Sums (C,) over the rows of a matrix (R, C) times a factor, in float32 and always in the same order."""
    rows, columns = x.shape
    parts = torch.empty((min(_CHUNKS, rows), columns), dtype=torch.float32, device=x.device)
    with on(x):
        _sums_plan(rows, columns, len(parts), x.dtype, x.get_device(), aligned(x))(x, parts, factor)
    return parts.sum(0)


@lru_cache(256)
def _sums_plan(rows, columns, parts, dtype, device, is_aligned) -> Plan:
    n = min(256 if columns > 512 else 64, power_of_two(columns))
    programs = (parts * -(-columns // n),)
    return Plan(_sums, programs, (rows, columns, -(-rows // parts)), {"M": max(1, 8192 // n), "N": n}, num_warps=4)
