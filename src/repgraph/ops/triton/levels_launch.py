"""The two passes of attention: see ``repgraph.ops.library`` for the arguments. One map has kernels of its own."""

import itertools
import math
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.formats import memory_format
from repgraph.ops.triton.launch import one_map_backward, one_map_forward
from repgraph.ops.triton.levels import attend_levels, attend_levels_backward
from repgraph.ops.triton.plan import Plan, aligned, cdiv, device_guard, next_power_of_two, rows_at_once

LAST = torch.channels_last


def forward(
    query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, training, with_weights
):  # fmt: skip
    """Return (y, lse, weights, response). Weights are computed from ``lse``."""
    if query is not None and library.is_plain(sizes, sets, bias):
        options = (groups, grid, scale, with_weights, training)
        return one_map_forward(query, key, value, offsets, *options)
    y, lse, weights, response = library.outputs(
        query, key, value, offsets, bias, sizes, groups, sets, "triton", training, with_weights
    )
    if y.numel() == 0:
        return y, lse, weights, response
    key, value, sizes, points = library.flattened(query, key, value, offsets, sizes, points, sets)
    q, k, v, features, result = _dense(query, key, value, y)
    unused = offsets if bias is None else bias
    flags = (value is None, query is None, bias is not None, lse.numel() > 0, response.numel() > 0, with_weights)
    launch = _forward_plan(
        tuple(y.shape), sizes, points, groups, sets, grid, k.shape[-1], v.shape[-1], offsets.stride(),
        _strides(unused), flags, features.dtype, offsets.dtype, unused.dtype, y.get_device(),
        aligned(q, k, v, offsets, unused),
    )  # fmt: skip
    with device_guard(y):
        table = _table(sizes, points, y.device)
        launch(q, k, v, offsets, unused, table, result, response, lse, weights, numbers=(scale,))
    if with_weights:  # the kernel wrote logits to base 2
        weights.mul_(math.log(2)).sub_(lse[:, :, None]).exp_()
    if result is not y:
        y.copy_(result)
    return y, lse, weights, response


def _dense(query: Tensor | None, key: Tensor | None, value: Tensor | None, y: Tensor) -> tuple[Tensor, ...]:
    """Return dense rows of query, key and value (one in place of another that is None), features, and a dense y."""
    features = key if value is None else value
    assert features is not None
    v = features.contiguous()
    k = v if key is None or value is None else key.contiguous()
    q = v if query is None else query.contiguous(memory_format=LAST)
    result = y if y.is_contiguous(memory_format=LAST) else torch.empty_like(y, memory_format=LAST)
    return q, k, v, features, result


def _strides(t: Tensor) -> tuple[int, ...]:
    """Return the strides of a map that broadcasts along axes of length 1."""
    return tuple(0 if n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True))


@lru_cache(1024)
def _table(sizes: tuple[int, ...], points: tuple[int, ...], device: torch.device) -> Tensor:
    """Return height, width, first position, first node and end of the nodes of each map, (L, 5) on the device."""
    heights, widths = sizes[::2], sizes[1::2]
    starts = [0, *itertools.accumulate(height * width for height, width in zip(heights, widths, strict=True))]
    firsts = [0, *itertools.accumulate(points)]
    rows = list(zip(heights, widths, starts[:-1], firsts[:-1], firsts[1:], strict=True))
    return torch.tensor(rows, dtype=torch.int32, device=device)


def _common(
    shape, sizes, points, groups, sets, grid, channels, values, itemsize, per_thread, warps
) -> tuple[tuple, tuple, dict, dict]:
    """Return programs, scalars, constants and options of a kernel for a result of ``shape`` (B, Cv, H, W)."""
    batch, _, height, width = shape
    wide, wide_v = next_power_of_two(channels // groups), next_power_of_two(values // groups)
    parts, units, warps = rows_at_once(max(wide, wide_v), itemsize, per_thread, warps)
    columns = units if height == 1 else 1 << units.bit_length() // 2  # a near-square patch of queries
    down, across = cdiv(height, units // columns), cdiv(width, columns)
    positions = sum(h * w for h, w in zip(sizes[::2], sizes[1::2], strict=True))
    widest = max(sizes[1::2])
    span = (positions + 4 * widest + 8) * max(channels, values)  # with a margin for corners off the map
    constants = {
        "LEVELS": len(points), "NODES": sum(points), "GROUPS": groups, "OWN": sets > 1, "CHANNELS": channels // groups,
        "VALUES": values // groups, "C": max(1, wide // parts), "CV": max(1, wide_v // parts), "PARTS": parts,
        "U": units, "PATCH_W": columns, "INDEX": tl.int64 if span >= 2**31 else tl.int32,
    }  # fmt: skip
    numbers = (positions, height, width, down, across, grid)
    return (batch * down * across * groups,), numbers, constants, {"num_warps": warps}


@lru_cache(1024)
def _forward_plan(
    shape, sizes, points, groups, sets, grid, channels, values, offset_strides, bias_strides, flags, dtype,
    offset_dtype, bias_dtype, device, is_aligned,
) -> Plan:  # fmt: skip
    # Measured on an H200. With key and value in one, a thread holds more channels, and fewer repeat the softmax.
    tile = (16, 2) if flags[0] else (8, 4)
    programs, numbers, constants, options = _common(
        shape, sizes, points, groups, sets, grid, channels, values, dtype.itemsize, *tile
    )
    names = ("SHARED", "GIVEN", "BIAS", "LSE", "RESPONSE", "LOGITS")
    constants |= dict(zip(names, flags, strict=True))
    return Plan(attend_levels, programs, (*numbers, *offset_strides, *bias_strides), constants, **options)


def backward(
    grad, grad_weights, query, key, value, offsets, bias, response, lse, sizes, points, groups, sets, grid, scale,
    joint=False,
):  # fmt: skip
    """Return the gradients of query, key, value, offsets and bias.

    ``joint``: query and key are the same tensor; return the sum of their gradients for the query, and none for the key.

    Gradients of key and value are added atomically in float32, or in int64 if PyTorch's deterministic algorithms are
    enabled.
    """
    if query is not None and library.is_plain(sizes, sets, bias):
        tensors = (grad, grad_weights, query, key, value, offsets, response, lse)
        grads = one_map_backward(*tensors, groups, grid, scale, joint=joint)
        return grads[0], None if joint else grads[1], *grads[2:], offsets.new_empty(0)
    maps = key, value
    if grad.numel() == 0:
        return tuple(t.zero_() for t in library.gradients(query, key, value, offsets, bias))
    key, value, sizes, points = library.flattened(query, key, value, offsets, sizes, points, sets)
    deterministic = torch.are_deterministic_algorithms_enabled()
    dy = grad.contiguous(memory_format=LAST)
    q, k, v, features, _ = _dense(query, key, value, dy)
    given, device = query is None, grad.device
    batch, _, height, width = grad.shape
    nodes = sum(points)
    wide: Any = {"dtype": torch.int64 if deterministic else torch.float32, "device": device}
    grad_value = torch.zeros(v.shape, **wide)
    grad_key = grad_value if key is None or value is None else torch.zeros(k.shape, **wide)
    grad_query = q if given else torch.empty_like(q, memory_format=LAST)
    if given:
        rows = torch.empty((batch, height, width, offsets.shape[1]), dtype=offsets.dtype, device=device)
        grad_offsets = rows.permute(0, 3, 1, 2).unflatten(1, (groups, 2 * nodes))
        rows = torch.empty((batch, height, width, bias.shape[1]), dtype=bias.dtype, device=device)
        grad_bias = rows.permute(0, 3, 1, 2)
    else:
        grad_offsets = torch.empty((batch, groups, 2 * nodes, height, width), dtype=torch.float32, device=device)
        size = (batch, groups * nodes, height, width) if bias is not None else (1, 1, 1, 1)
        grad_bias = torch.empty(size, dtype=torch.float32, device=device)
    unused = offsets if bias is None else bias
    fixed = _fixed_point(dy, grad_weights, query, features, bias, scale, nodes) if deterministic else lse
    extra = lse if grad_weights is None else grad_weights.contiguous()
    response = dy if given else response.contiguous(memory_format=LAST) if response.shape == grad.shape else response
    flags = (grad_key is grad_value and not given, given, bias is not None, grad_weights is not None, deterministic)
    launch = _backward_plan(
        tuple(grad.shape), sizes, points, groups, sets, grid, k.shape[-1], v.shape[-1], offsets.stride(),
        _strides(unused), grad_offsets.stride(), grad_bias.stride(), flags, features.dtype, offsets.dtype,
        unused.dtype, response.dtype, grad.get_device(), aligned(q, k, v, dy, response, offsets, unused),
    )  # fmt: skip
    table = _table(sizes, points, device)
    with device_guard(grad):
        launch(
            dy, extra, q, k, v, offsets, unused, table, response, lse, grad_query, grad_key, grad_value, grad_offsets,
            grad_bias, fixed, numbers=(scale,),
        )  # fmt: skip
    if deterministic:
        grad_key, grad_value = (t.double().div_(f) for t, f in zip((grad_key, grad_value), fixed, strict=True))
    grad_value = grad_value.to(features.dtype)
    empty = features.new_empty(0)
    if given:
        return empty, empty, grad_value, grad_offsets.flatten(1, 2), grad_bias
    grad_offsets = _over_cells(grad_offsets.sum(1) if sets == 1 else grad_offsets.flatten(1, 2), grid)
    grad_bias = empty if bias is None else grad_bias.sum_to_size(bias.shape).to(bias.dtype)
    if value is None:
        grad_key, grad_value = grad_value, empty
    grad_query = grad_query.to(query.dtype, memory_format=memory_format(query))
    grad_key, grad_value = _shaped(grad_key.to(features.dtype), maps[0]), _shaped(grad_value, maps[1])
    return grad_query, grad_key, grad_value, grad_offsets.to(offsets.dtype), grad_bias


def _shaped(grad: Tensor, like: Tensor | None) -> Tensor:
    """Return the gradient (B, N, C) of flattened maps in the shape and format of the argument of the operator."""
    if like is None or like.dim() == 3:
        return grad
    maps = grad.view(like.shape[0], *like.shape[2:], -1).permute(0, 3, 1, 2)
    return maps.contiguous(memory_format=memory_format(like))


@lru_cache(1024)
def _backward_plan(
    shape, sizes, points, groups, sets, grid, channels, values, offset_strides, bias_strides, grad_offset_strides,
    grad_bias_strides, flags, dtype, offset_dtype, bias_dtype, response_dtype, device, is_aligned,
) -> Plan:  # fmt: skip
    programs, numbers, constants, options = _common(
        shape, sizes, points, groups, sets, grid, channels, values, dtype.itemsize, 8, 4
    )
    names = ("SHARED", "GIVEN", "BIAS", "WEIGHTS", "FIXED")
    constants |= dict(zip(names, flags, strict=True))
    strides = (*offset_strides, *bias_strides, *grad_offset_strides, *grad_bias_strides)
    return Plan(attend_levels_backward, programs, (*numbers, *strides), constants, **options)


def _over_cells(grads: Tensor, grid: int) -> Tensor:
    """Sum gradients (B, C, H, W) over the queries of each cell."""
    for axis in (2, 3) if grid > 1 else ():
        length = grads.shape[axis]
        cell = torch.arange(length, device=grads.device) // grid
        size = list(grads.shape)
        size[axis] = -(-length // grid)
        grads = torch.zeros(size, dtype=grads.dtype, device=grads.device).index_add_(axis, cell, grads)
    return grads


def _fixed_point(grad, grad_weights, query, features, bias, scale: float, nodes: int) -> Tensor:
    """Return units of the sums in int64, for the gradients of key and value: powers of two that cannot overflow."""
    most = grad.abs().amax().double()
    if query is None:
        key, value = most, most * bias.abs().amax()
    else:
        weight = most * features.abs().amax() * features.shape[2]
        if grad_weights is not None:
            weight = weight + grad_weights.abs().amax()
        key = 2 * weight * query.abs().amax() * abs(scale)
        value = most + key if features is not None else most
    count = grad.shape[2] * grad.shape[3] * nodes
    bound = torch.stack((key, value)).clamp(min=1e-30) * count
    return torch.exp2((62 - bound.log2()).floor().clamp(max=100)).float()
