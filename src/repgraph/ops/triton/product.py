"""Matrix products with an epilogue, and sums over rows, for which PyTorch has no single kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from repgraph.ops import tf32
from repgraph.ops.triton.plan import cdiv, descriptor, launch, next_power_of_two

try:
    from repgraph.ops.triton import hopper
except (ImportError, AttributeError):  # this Triton has no Gluon, or one with other names
    hopper = None  # type: ignore[assignment]

# Rows, columns and inner channels of a tile, warps and stages, by element size and precision. Measured on an H200.
_TILES = {
    (2, "tf32"): (128, 128, 64, 4, 2),
    (4, "tf32"): (128, 128, 32, 8, 3),
    (4, "bf16x6"): (64, 64, 32, 4, 3),
    (4, "ieee"): (64, 64, 32, 4, 3),
}
_IEEE_CHANNELS = 4  # inner channels up to which float32 is multiplied exactly
_ROW_GROUP = 4  # tiles of rows that advance over the columns together, to share loads through the cache
_CHUNKS = 128  # of rows that ``column_sums`` sums separately


@triton.jit
def _residual(
    a, weight, x, y, bias, rows, columns, inner, HAS_BIAS: tl.constexpr, RELU: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TOGETHER: tl.constexpr,
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
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # NaN stays NaN
    y.store([m, n], total.to(y.dtype))


def residual_product(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """Return x + a weight^T + bias for matrices x (R, C), a (R, C'), weight (C, C') with contiguous rows.

    ``relu``: apply a ReLU.
    """
    x, a, weight = (t if t.data_ptr() % 16 == 0 else t.clone() for t in (x, a, weight))  # descriptors need this
    (rows, columns), inner = x.shape, a.shape[1]
    if hopper is not None and hopper.is_faster(x.shape, inner, x.dtype, x.get_device()):
        return hopper.residual_product(x, a, weight, bias, relu)
    y = torch.empty_like(x)
    precision = _precision(x.dtype, inner)
    m, n, k, warps, stages = _TILES[x.dtype.itemsize, precision]
    if not isinstance(_residual, triton.runtime.JITFunction):
        precision = "ieee"  # the only one of the interpreter
    tiles = ((a, (m, k)), (weight, (n, k)), (x, (m, n)), (y, (m, n)))
    descriptors = tuple(descriptor(matrix, tile, TensorDescriptor) for matrix, tile in tiles)
    constants = {"HAS_BIAS": bias is not None, "RELU": relu, "PRECISION": precision, "M": m, "N": n, "K": k}
    constants["TOGETHER"] = _ROW_GROUP
    programs = cdiv(rows, m) * cdiv(columns, n)
    tensors = (y if bias is None else bias,)
    launch(
        _residual, programs, tensors, (rows, columns, inner), constants, descriptors, num_warps=warps, num_stages=stages
    )
    return y


def _precision(dtype: torch.dtype, inner: int) -> str:
    """Return how float32 is multiplied: as TF32 if PyTorch's products are, else as six products of bfloat16 parts.

    Tensor cores truncate when they accumulate, which is noticeable in the shortest sums: those use IEEE float32.
    """
    if dtype.itemsize == 2 or tf32.allowed():
        return "tf32"
    return "ieee" if inner <= _IEEE_CHANNELS else "bf16x6"


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
        inside = (row < rows)[:, None] & (channel < inner)[None, :]
        features = tl.load(a + row[:, None] * inner + channel[None, :], mask=inside, other=0.0)
        stored = (output < outputs)[None, :] & (channel < inner)[:, None]
        factors = tl.load(weight + output[None, :] * inner + channel[:, None], mask=stored, other=0.0).to(tl.float32)
        if PARTS == 0:  # float32: split both into parts of 11 bits, and omit the lowest product
            total = tl.dot(features, factors, total, input_precision="tf32x3")
        # A float32 weight is the sum of three half-precision numbers, whose products are exact.
        for _ in tl.static_range(PARTS):
            part = factors.to(features.dtype)
            total = tl.dot(features, part, total)
            factors -= part.to(tl.float32)
    total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    batch, position = row // positions, row % positions
    where = y + batch[:, None] * outputs * positions + output[None, :] * positions + position[:, None]
    tl.store(where, total, mask=(row < rows)[:, None] & (output < outputs)[None, :])


def wide_product(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return W a + b in float32, contiguous (B, O, H, W), of a channels-last map (B, C, H, W)."""
    batch, inner, height, width = a.shape
    outputs, rows = weight.shape[0], batch * height * width
    y = torch.empty((batch, outputs, height, width), dtype=torch.float32, device=a.device)
    parts = 0 if a.dtype == torch.float32 else 1 if weight.dtype == a.dtype else 3
    constants = {"PARTS": parts, "M": 128, "K": 128 // a.element_size()}
    constants["OUT"] = max(16, next_power_of_two(outputs))
    sizes = (rows, inner, outputs, height * width)
    launch(_wide, cdiv(rows, 128), (a, weight, bias, y), sizes, constants, num_warps=4, num_stages=3)
    return y


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
    """Return the sums (C,) over the rows of a matrix (R, C) times a factor, in float32 and in a fixed order."""
    return column_parts(x, factor).sum(0)


def column_parts(x: Tensor, factor: float = 1.0) -> Tensor:
    """Return a float32 matrix of C columns with the column sums of a matrix (R, C) times a factor."""
    rows, columns = x.shape
    parts = torch.empty((min(_CHUNKS, rows), columns), dtype=torch.float32, device=x.device)
    n = min(256 if columns > 512 else 64, next_power_of_two(columns))
    numbers = (factor, rows, columns, cdiv(rows, parts.shape[0]))
    constants = {"M": max(1, 8192 // n), "N": n}
    launch(_sums, parts.shape[0] * cdiv(columns, n), (x, parts), numbers, constants, num_warps=4)
    return parts
