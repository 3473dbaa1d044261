"""From tensors to kernels: layouts, tiles, temporary memory."""

import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.formats import channels_together, is_channels_last, memory_format
from repgraph.ops.triton import succession, tiles
from repgraph.ops.triton.backward import attend_backward
from repgraph.ops.triton.cells import attend_cells
from repgraph.ops.triton.forward import attend
from repgraph.ops.triton.inverse_launch import gather
from repgraph.ops.triton.plan import Plan, aligned, on, strides
from repgraph.ops.triton.tiles import power_of_two

_MOST_PROGRAMS = 65535  # along the second and the third axis
_LOOKED_AT = 64  # nodes of a query, to find out whether all are inside the map


def forward(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, grid: int, scale: float,
    with_weights: bool, with_lse: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """See :func:`repgraph.ops.representative_attention`; weights are made of ``lse``."""
    with_lse = with_lse or with_weights
    y, lse, weights = library.outputs(query, key, value, offsets, groups, with_weights, with_lse)
    if query.shape[0] == 0:
        return y, lse, weights
    q, k = channels_together(query), channels_together(key)
    v = k if value is None else channels_together(value)
    result = y if is_channels_last(y) else torch.empty_like(y, memory_format=torch.channels_last)
    plan = _forward_plan(
        q.shape, v.shape[1], q.stride(), k.stride(), v.stride(), result.stride(), offsets.shape, offsets.stride(),
        q.dtype, offsets.dtype, q.get_device(), aligned(q, k, v, offsets), groups, grid, value is None, with_weights,
        with_lse,
    )  # fmt: skip
    with on(q):
        plan(q, k, v, offsets, result, lse, weights, scale)
    if with_weights:  # the kernel left logits to base 2
        weights.mul_(math.log(2)).sub_(lse[:, :, None]).exp_()
    if result is not y:
        y.copy_(result)
    return y, lse, weights


@lru_cache(1024)
def _forward_plan(
    shape, values, query, key, value, y, offset_shape, offset_strides, dtype, offset_dtype, device, is_aligned,
    groups, grid, shared, with_weights, with_lse,
) -> Plan:  # fmt: skip
    align, numbers = strides((query, key, value, y))
    sizes, constants = _common(shape, values, offset_shape, offset_strides, groups, grid, shared, key, value)
    widest = max(power_of_two(constants["CHANNELS"]), power_of_two(constants["VALUES"]))
    constants |= {"ALIGN": align, "LOGITS": with_weights}
    cell = sizes[5] * sizes[6]
    if grid == 1 or widest > tiles.WIDEST_CELLS:
        tile = tiles.forward(widest, dtype.itemsize, groups, cell, shared, constants["NODES"])
        look = power_of_two(constants["NODES"])
        function, constants = attend, constants | _tile_constants(constants, tile)
        constants |= {"CHUNK": tile.chunk, "NODE_BLOCK": look if look <= _LOOKED_AT else 0}
        programs, counts, constants["ONE"] = _programs(shape, offset_shape, cell, tile)
        constants["RELEASE"] = succession.possible(device)
    else:
        tile = tiles.cells(widest, shared)
        function = attend_cells
        # the interpreter has no matrix products in bfloat16
        half = dtype != torch.float32 and isinstance(attend_cells, triton.runtime.JITFunction)
        constants |= {"Q": tile.queries, "NODE_BLOCK": 16, "HALF": half}
        for name, channels in (("C", constants["CHANNELS"]), ("CV", constants["VALUES"])):
            constants[name] = max(16, power_of_two(channels))  # the least a matrix product takes
        counts = (offset_shape[2], offset_shape[3])
        programs = (shape[0] * counts[0] * counts[1] * groups * -(-cell // tile.queries),)
    sizes = (*sizes[:4], *counts, *sizes[4:])
    return Plan(
        function, programs, (*sizes, *numbers, *offset_strides, int(with_lse)), constants, num_warps=tile.warps,
        maxnreg=tile.registers,
    )  # fmt: skip


def _common(
    shape, values, offset_shape, offset_strides, groups, grid, shared, key, value
) -> tuple[tuple, dict[str, Any]]:
    """Numbers and constants that all kernels take."""
    _, channels, height, width = shape
    # elements of one image, with the margin that a corner outside the map may reach
    span = max((height + 4) * max(s[2], width * s[3], channels) + channels for s in (key, value))
    span = max(span, (height + 4) * (width + 4) * max(channels, values))
    # and of one image's offsets, logits and weights
    span = max(span, sum(size * stride for size, stride in zip(offset_shape[1:], offset_strides[1:], strict=True)))
    span = max(span, (offset_shape[1] + 4) * height * width)
    sizes = (height, width, offset_shape[2], offset_shape[3], grid, min(grid, height), min(grid, width))
    constants = {
        "NODES": offset_shape[1] // 2, "GROUPS": groups, "SHARED": shared, "CHANNELS": channels // groups,
        "VALUES": values // groups, "INDEX": tl.int64 if span >= 2**31 else tl.int32,
        "DENSE": key[3] == channels and value[3] == values,
    }  # fmt: skip
    return sizes, constants


def _tile_constants(constants: dict[str, Any], tile: tiles.Tile) -> dict[str, Any]:
    return {
        "PARTS": tile.parts, "U": tile.units, "Q": tile.queries, "PATCH_H": tile.patch[0], "PATCH_W": tile.patch[1],
        "C": max(1, power_of_two(constants["CHANNELS"]) // tile.parts),
        "CV": max(1, power_of_two(constants["VALUES"]) // tile.parts),
    }  # fmt: skip


def _programs(shape, offset_shape, cell: int, tile: tiles.Tile) -> tuple[tuple[int, ...], tuple[int, int], bool]:
    """Grid of programs, patches down and across a map of cells of so many queries, and whether the grid has an axis
    for each of: patches across, patches down, images."""
    down, across = -(-offset_shape[2] // tile.patch[0]), -(-offset_shape[3] // tile.patch[1])
    if cell == 1 and max(down, shape[0]) <= _MOST_PROGRAMS:
        return (across, down, shape[0]), (down, across), True
    return (shape[0] * down * across * -(-cell // tile.queries),), (down, across), False


def backward(
    grad: Tensor, grad_weights: Tensor | None, query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor,
    y: Tensor | None, lse: Tensor, groups: int, grid: int, scale: float, joined: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value and offsets; ``joined``: that of the query is in the key's.

    Where every query has its own nodes, keys and values gather their gradients, which is faster than atomic
    additions. Cells are fewer than queries, so with a grid atomic additions are the faster way; they are not
    reproducible, and torch.use_deterministic_algorithms has them replaced.
    """
    if query.shape[0] == 0:
        return library.gradients(query, key, value, offsets)
    deterministic = torch.are_deterministic_algorithms_enabled()
    scatter = grid > 1 and not deterministic
    assert y is not None  # library.NEEDS_RESULT
    q, k, dy, y = (channels_together(t) for t in (query, key, grad, y))
    v = k if value is None else channels_together(value)
    grad_query = torch.empty_like(q, memory_format=torch.channels_last)
    plan, parts = _backward_plan(
        q.shape, v.shape[1], q.stride(), k.stride(), v.stride(), y.stride(), dy.stride(), grad_query.stride(),
        offsets.shape, offsets.stride(), q.dtype, offsets.dtype, q.get_device(), aligned(q, k, v, y, dy, offsets),
        groups, grid, value is None, grad_weights is not None, scatter, deterministic,
    )  # fmt: skip
    make = torch.zeros if parts == 0 else torch.empty  # 0: all parts are added up
    grad_offsets = make((max(parts, 1), *offsets.shape), dtype=torch.float32, device=q.device)
    unused = lse
    if scatter:
        grad_key = _zeros(key)
        grad_value = grad_key if value is None else _zeros(value)
        pair_logits = pair_weights = unused
    else:
        grad_key = grad_value = unused
        pairs = q.shape[0] * q.shape[2] * q.shape[3] * (offsets.shape[1] // 2)
        pair_logits = torch.empty((pairs, groups), dtype=torch.float32, device=q.device)
        pair_weights = torch.empty_like(pair_logits)
    with on(q):
        plan(
            dy, unused if grad_weights is None else grad_weights.contiguous(), q, k, v, offsets, y, lse, grad_query,
            grad_key, grad_value, grad_offsets, pair_logits, pair_weights, scale,
        )  # fmt: skip
        if not scatter:
            grad_key, grad_value = gather(
                q, dy, offsets, pair_logits, pair_weights, v.shape[1], groups, grid, value is None, deterministic,
                grad_query if joined else None,
            )  # fmt: skip
    if joined:
        grad_key = grad_key.add_(grad_query) if scatter else grad_key
        grad_query = query.new_empty(0)
    total = grad_offsets[0] if len(grad_offsets) == 1 else grad_offsets.sum(0)
    return (
        grad_query if joined else _like(grad_query, query),
        _like(grad_key, key),
        query.new_empty(0) if value is None else _like(grad_value, value),
        total.to(offsets.dtype),
    )


@lru_cache(1024)
def _backward_plan(
    shape, values, query, key, value, y, grad, grad_query, offset_shape, offset_strides, dtype, offset_dtype, device,
    is_aligned, groups, grid, shared, with_weights, scatter, deterministic,
) -> tuple[Plan, int]:  # fmt: skip
    """The plan, and the number of parts of the offsets' gradient (0: they are added up)."""
    align, numbers = strides((query, key, value, y, grad, grad_query))
    sizes, constants = _common(shape, values, offset_shape, offset_strides, groups, grid, shared, key, value)
    widest = max(power_of_two(constants["CHANNELS"]), power_of_two(constants["VALUES"]))
    cell = sizes[5] * sizes[6]
    tile = tiles.backward(widest, dtype.itemsize, groups, cell, shared)
    programs, counts, one = _programs(shape, offset_shape, cell, tile)
    parts = -(-cell // tile.queries) * groups
    add = parts > 1 and not deterministic
    constants |= _tile_constants(constants, tile)
    constants |= {"ALIGN": align, "WEIGHTS": with_weights, "SCATTER": scatter, "ADD_OFFSETS": add, "ONE": one}
    constants["CENTRE"] = dtype != torch.float32 and offset_shape[1] > 2
    sizes = (*sizes[:4], *counts, *sizes[4:])
    part = math.prod(offset_shape)
    plan = Plan(
        attend_backward, programs, (*sizes, *numbers[:12], *offset_strides, *numbers[12:], part), constants,
        num_warps=tile.warps, maxnreg=tile.registers,
    )  # fmt: skip
    return plan, 0 if add else parts


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=torch.float32, memory_format=torch.channels_last)


def _like(t: Tensor, like: Tensor) -> Tensor:
    """``t``, which is channels-last, in the dtype and memory format of ``like``."""
    if t.dtype == like.dtype and is_channels_last(like):
        return t
    return t.to(like.dtype, memory_format=memory_format(like))
