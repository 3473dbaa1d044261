"""Bilinear resizing of channels-last maps with ``align_corners=False``, and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repgraph.ops.triton.plan import cdiv, launch, next_power_of_two


@triton.jit
def _tile(channels, height, width, P: tl.constexpr, C: tl.constexpr):
    """Return image and row of this program, its columns [P, 1] and its channels [1, C]."""
    blocks, across = tl.cdiv(channels, C), tl.cdiv(width, P)
    channel = tl.program_id(0) % blocks * C + tl.arange(0, C)
    program = tl.program_id(0) // blocks
    column = program % across * P + tl.arange(0, P)
    row = program // across
    return (row // height).to(tl.int64), row % height, column[:, None], channel[None, :]


@triton.jit
def _place(index, scale, length):
    """Return the two source positions of output positions on an axis, and the weight of the second."""
    source = tl.maximum((index + 0.5) * scale - 0.5, 0.0)
    first = source.to(tl.int32)
    return first, tl.minimum(first + 1, length - 1), source - first


@triton.jit
def _resize(
    source, target, channels, height, width, high, wide, scale_y, scale_x, stride_b, stride_c, stride_p,
    P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write (B, C, high, wide); a program has P pixels of a row and C channels of the source (B, height, width, C)."""
    batch, y, x, channel = _tile(channels, high, wide, P, C)
    top, low, ty = _place(y, scale_y, height)
    left, right, tx = _place(x, scale_x, width)
    mask = (x < wide) & (channel < channels)
    upper, lower = (batch * height + top) * width * channels, (batch * height + low) * width * channels
    left, right = left * channels + channel, right * channels + channel
    a = tl.load(source + upper + left, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + upper + right, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(source + lower + left, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(source + lower + right, mask=mask, other=0.0).to(tl.float32)
    result = (1 - ty) * ((1 - tx) * a + tx * b) + ty * ((1 - tx) * c + tx * d)
    target += batch * stride_b + y.to(tl.int64) * wide * stride_p
    where = target + x * stride_p + channel.to(tl.int64) * stride_c
    tl.store(where, result.to(target.dtype.element_ty), mask=mask)


@triton.jit
def _weight(index, at, scale, length, size):
    """Return the weight of source positions ``at`` in output positions ``index``."""
    first, second, t = _place(index, scale, length)
    weight = tl.where(first == at, 1 - t, 0.0) + tl.where(second == at, t, 0.0)
    return tl.where((index >= 0) & (index < size), weight, 0.0)


@triton.jit
def _gather(
    grad, result, channels, height, width, high, wide, scale_y, scale_x, stride_b, stride_c, stride_p,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Write the gradient (B, height, width, C): the sum over the ROWS x COLUMNS output pixels that read a position."""
    batch, y, x, channel = _tile(channels, height, width, P, C)
    first_y = tl.floor((y - 0.5) / scale_y - 0.5).to(tl.int32)
    first_x = tl.floor((x - 0.5) / scale_x - 0.5).to(tl.int32)
    grad += batch * stride_b + channel.to(tl.int64) * stride_c
    mask = (x < width) & (channel < channels)
    total = tl.zeros((P, C), tl.float32)
    for number in range(ROWS):
        row = first_y + number
        weight_y = _weight(row, y, scale_y, height, high)
        for column in range(COLUMNS):
            weight = weight_y * _weight(first_x + column, x, scale_x, width, wide)
            where = grad + (row.to(tl.int64) * wide + first_x + column) * stride_p
            total += weight * tl.load(where, mask=mask & (weight != 0.0), other=0.0).to(tl.float32)
    where = result + (batch * height + y) * width * channels + x * channels + channel
    tl.store(where, total.to(result.dtype.element_ty), mask=mask)


def resize(x: Tensor, size: tuple[int, int], dtype: torch.dtype, contiguous: bool) -> Tensor:
    """Return a channels-last map resized to ``size`` in another dtype, contiguous or channels-last."""
    layout = torch.contiguous_format if contiguous else torch.channels_last
    y = torch.empty((*x.shape[:2], *size), dtype=dtype, device=x.device, memory_format=layout)
    _launch(_resize, x, y, y, x.shape, size, contiguous, {})
    return y


def resize_backward(grad: Tensor, shape: torch.Size, dtype: torch.dtype, contiguous: bool) -> Tensor:
    """Return the channels-last gradient (B, C, H, W) of a map of this shape."""
    result = torch.empty(shape, dtype=dtype, device=grad.device, memory_format=torch.channels_last)
    size = grad.shape[2:]
    # Two source intervals, and one output position more on either side for rounding.
    rows, columns = (cdiv(2 * large, small) + 3 for large, small in zip(size, shape[2:], strict=True))
    _launch(_gather, grad, result, result, shape, size, contiguous, {"ROWS": rows, "COLUMNS": columns})
    return result


def _launch(function, source, target, written, shape, size, contiguous, constants) -> None:
    _, channels, height, width = shape
    area, columns = size[0] * size[1], written.shape[3]
    strides = (area * channels, area, 1) if contiguous else (area * channels, 1, channels)
    block = min(128, next_power_of_two(channels))
    pixels = min(2048 // block, next_power_of_two(columns))
    numbers = (channels, height, width, *size, height / size[0], width / size[1], *strides)
    programs = written.shape[0] * written.shape[2] * cdiv(columns, pixels) * cdiv(channels, block)
    launch(function, programs, (source, target), numbers, {**constants, "P": pixels, "C": block}, num_warps=4)
