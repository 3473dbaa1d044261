"""The two passes of attention to one map of the query's size: memory layouts, temporary memory, plans of kernels."""

import math
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.formats import channels_together, is_channels_last, memory_format
from repgraph.ops.triton import gather
from repgraph.ops.triton.backward import attend_backward
from repgraph.ops.triton.forward import attend, attend_cells
from repgraph.ops.triton.plan import Plan, aligned, cdiv, device_guard, next_power_of_two, power_of_two, rows_at_once

WIDEST_CELLS = 512  # channels of a group; with more, matrix products of ``attend_cells`` exceed shared memory
_MAX_PROGRAMS = 65535  # along the second and third axes of a CUDA grid
MAX_PAIRS = 2**29  # of query and node per launch of the gather: they are numbered in 32 bits
_BLOCK = 256  # pairs or tiles per program of the gather's small kernels
_MAX_CHECKED_NODES = 64  # with more nodes, the kernel does not check whether all are inside the map


def one_map_forward(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, grid: int, scale: float,
    with_weights: bool, with_lse: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return (y, lse, weights, response); see ``repgraph.ops.library``. Weights are computed from ``lse``."""
    with_lse = with_lse or with_weights
    options = (groups, 1, "triton", with_lse, with_weights)
    results = y, lse, weights, _ = library.outputs(query, key, value, offsets, None, (), *options)
    if query.shape[0] == 0:
        return results
    q, k = channels_together(query), channels_together(key)
    v = k if value is None else channels_together(value)
    result = y if is_channels_last(y) else torch.empty_like(y, memory_format=torch.channels_last)
    launch = _forward_plan(
        q.shape, v.shape[1], q.stride(), k.stride(), v.stride(), result.stride(), offsets.shape, offsets.stride(),
        q.dtype, offsets.dtype, q.get_device(), aligned(q, k, v, offsets), groups, grid, value is None, with_weights,
        with_lse,
    )  # fmt: skip
    with device_guard(q):
        launch(q, k, v, offsets, result, lse, weights, numbers=(scale,))
    if with_weights:  # the kernel wrote logits to base 2
        weights.mul_(math.log(2)).sub_(lse[:, :, None]).exp_()
    if result is not y:
        y.copy_(result)
    return results


@lru_cache(1024)
def _forward_plan(
    shape, values, query, key, value, y, offset_shape, offset_strides, dtype, offset_dtype, device, is_aligned,
    groups, grid, shared, with_weights, with_lse,
) -> Plan:  # fmt: skip
    align, numbers = _divided_strides(query, key, value, y)
    sizes, constants = _common(shape, values, offset_shape, offset_strides, groups, grid, shared, key, value)
    widest = next_power_of_two(max(constants["CHANNELS"], constants["VALUES"]))
    nodes = constants["NODES"]
    constants |= {"ALIGN": align, "LOGITS": with_weights}
    cell = sizes[5] * sizes[6]
    if grid == 1 or widest > WIDEST_CELLS:
        function = attend
        programs, counts, options = _tile(shape, offset_shape, cell, dtype.itemsize, 4, constants)
        constants["CHUNK"] = 3 if cell == 1 and shared and nodes > 1 else 1  # nodes per rescaling of the running sum
        node_block = next_power_of_two(nodes)
        constants["NODE_BLOCK"] = node_block if node_block <= _MAX_CHECKED_NODES else 0
    else:
        function = attend_cells
        warps = max(4, widest // 64)
        options = {"num_warps": warps, "maxnreg": 128 if shared and warps == 4 else None}
        # the interpreter does not support matrix products in bfloat16
        half = dtype != torch.float32 and isinstance(attend_cells, triton.runtime.JITFunction)
        constants |= {"Q": 16, "NODE_BLOCK": 16, "HALF": half}
        for name, channels in (("C", constants["CHANNELS"]), ("CV", constants["VALUES"])):
            constants[name] = max(16, next_power_of_two(channels))  # the least that a matrix product supports
        counts = (offset_shape[2], offset_shape[3])
        programs = (shape[0] * counts[0] * counts[1] * groups * cdiv(cell, 16),)
    sizes = (*sizes[:4], *counts, *sizes[4:])
    return Plan(function, programs, (*sizes, *numbers, *offset_strides, int(with_lse)), constants, **options)


def _divided_strides(*maps: tuple[int, ...]) -> tuple[int, list[int]]:
    """Return a power of two that divides batch, row and column strides of all maps, and the quotients."""
    numbers = [stride for batch, _, row, column in maps for stride in (batch, row, column)]
    align = power_of_two(*numbers)
    return align, [number // align for number in numbers]


def _common(shape, values, offset_shape, offset_strides, groups, grid, shared, key, value) -> tuple[tuple, dict]:
    """Return the scalars and constants that all kernels take."""
    _, channels, height, width = shape
    # Elements of one image, with a margin for the addresses of corners off the map;
    span = max((height + 4) * max(s[2], width * s[3], channels) + channels for s in (key, value))
    span = max(span, (height + 4) * (width + 4) * max(channels, values))
    # and elements of one image's offsets, logits and weights.
    span = max(span, sum(size * stride for size, stride in zip(offset_shape[1:], offset_strides[1:], strict=True)))
    span = max(span, (offset_shape[1] + 4) * height * width)
    sizes = (height, width, offset_shape[2], offset_shape[3], grid, min(grid, height), min(grid, width))
    constants = {
        "NODES": offset_shape[1] // 2, "GROUPS": groups, "SHARED": shared, "CHANNELS": channels // groups,
        "VALUES": values // groups, "INDEX": tl.int64 if span >= 2**31 else tl.int32,
        "DENSE": key[3] == channels and value[3] == values,
    }  # fmt: skip
    return sizes, constants


def _tile(shape, offset_shape, cell: int, itemsize: int, warps: int, constants: dict) -> tuple[tuple, tuple, dict]:
    """Return the grid of programs, the rows and columns of patches, and options; add the constants of a tile.

    Sizes were measured on an H200 (docs/journal/kernels.md). The grid has three axes for cells of one query, else one.
    """
    wide, wide_v = next_power_of_two(constants["CHANNELS"]), next_power_of_two(constants["VALUES"])
    parts, units, warps = rows_at_once(max(wide, wide_v), itemsize, 16 if cell == 1 else 8, warps)
    queries = 1 if cell == 1 else 4
    cells = next_power_of_two(max(1, units // constants["GROUPS"]))
    high = 1 << (cells.bit_length() - 1) // 2  # a near-square patch of cells that fills a step of units
    down, across = cdiv(offset_shape[2], high), cdiv(offset_shape[3], cells // high)
    one = cell == 1 and max(down, shape[0]) <= _MAX_PROGRAMS
    constants |= {
        "PARTS": parts, "U": units, "Q": queries, "PATCH_H": high, "PATCH_W": cells // high, "ONE": one,
        "C": max(1, wide // parts), "CV": max(1, wide_v // parts),
    }  # fmt: skip
    programs = (across, down, shape[0]) if one else (shape[0] * down * across * cdiv(cell, queries),)
    registers = 128 if cell == 1 and constants["SHARED"] and itemsize == 2 else None
    return programs, (down, across), {"num_warps": warps, "maxnreg": registers}


def one_map_backward(
    grad: Tensor, grad_weights: Tensor | None, query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor,
    y: Tensor, lse: Tensor, groups: int, grid: int, scale: float, joint: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value and offsets; see ``repgraph.ops.library``.

    ``joint``: query and key are the same tensor; return the sum of their gradients for both.

    Keys and values gather their gradients. With a grid, atomic additions are faster, but not reproducible:
    ``torch.use_deterministic_algorithms`` selects the gather there too.
    """
    if query.shape[0] == 0:
        return library.gradients(query, key, value, offsets, None)[:4]
    deterministic = torch.are_deterministic_algorithms_enabled()
    scatter = grid > 1 and not deterministic
    q, k, dy, y = (channels_together(t) for t in (query, key, grad, y))
    v = k if value is None else channels_together(value)
    grad_query = torch.empty_like(q, memory_format=torch.channels_last)
    launch, parts = _backward_plan(
        q.shape, v.shape[1], q.stride(), k.stride(), v.stride(), y.stride(), dy.stride(), grad_query.stride(),
        offsets.shape, offsets.stride(), q.dtype, offsets.dtype, q.get_device(), aligned(q, k, v, y, dy, offsets),
        groups, grid, value is None, grad_weights is not None, scatter, deterministic,
    )  # fmt: skip
    make = torch.zeros if parts == 0 else torch.empty  # 0: the kernel adds all parts
    grad_offsets = make((max(parts, 1), *offsets.shape), dtype=torch.float32, device=q.device)
    grad_key = grad_value = pair_logits = pair_weights = unused = lse
    if scatter:
        dense: Any = {"dtype": torch.float32, "memory_format": torch.channels_last}
        grad_key = torch.zeros_like(key, **dense)
        grad_value = grad_key if value is None else torch.zeros_like(value, **dense)
    else:
        pairs = (q.shape[0], q.shape[2] * q.shape[3] * (offsets.shape[1] // 2), groups)
        pair_logits = torch.empty(pairs, dtype=torch.float32, device=q.device)
        pair_weights = torch.empty_like(pair_logits)
    with device_guard(q):
        launch(
            dy, unused if grad_weights is None else grad_weights.contiguous(), q, k, v, offsets, y, lse, grad_query,
            grad_key, grad_value, grad_offsets, pair_logits, pair_weights, numbers=(scale,),
        )  # fmt: skip
        if not scatter:
            grad_key, grad_value = _gather(
                q, dy, offsets, pair_logits, pair_weights, v.shape[1], groups, grid, value is None, deterministic,
                grad_query if joint else None,
            )  # fmt: skip
        elif joint:
            grad_key += grad_query
    total = grad_offsets[0] if len(grad_offsets) == 1 else grad_offsets.sum(0)
    grad_value = query.new_empty(0) if value is None else _like(grad_value, value)
    grad_key = _like(grad_key, key)
    return grad_key if joint else _like(grad_query, query), grad_key, grad_value, total.to(offsets.dtype)


@lru_cache(1024)
def _backward_plan(
    shape, values, query, key, value, y, grad, grad_query, offset_shape, offset_strides, dtype, offset_dtype, device,
    is_aligned, groups, grid, shared, with_weights, scatter, deterministic,
) -> tuple[Plan, int]:  # fmt: skip
    """Return the plan and the number of parts of the offsets' gradient (0: the kernel adds them)."""
    align, numbers = _divided_strides(query, key, value, y, grad, grad_query)
    sizes, constants = _common(shape, values, offset_shape, offset_strides, groups, grid, shared, key, value)
    cell = sizes[5] * sizes[6]
    programs, counts, options = _tile(shape, offset_shape, cell, dtype.itemsize, 1, constants)
    parts = cdiv(cell, constants["Q"]) * groups
    add = parts > 1 and not deterministic
    constants |= {"ALIGN": align, "WEIGHTS": with_weights, "SCATTER": scatter, "ADD_OFFSETS": add}
    constants["CENTRE"] = dtype != torch.float32 and offset_shape[1] > 2
    sizes = (*sizes[:4], *counts, *sizes[4:])
    scalars = (*sizes, *numbers[:12], *offset_strides, *numbers[12:], math.prod(offset_shape))
    return Plan(attend_backward, programs, scalars, constants, **options), 0 if add else parts


def _like(t: Tensor, like: Tensor) -> Tensor:
    return t.to(like.dtype, memory_format=memory_format(like))


def _gather(
    query: Tensor, grad: Tensor, offsets: Tensor, pair_logits: Tensor, pair_weights: Tensor, values: int,
    groups: int, grid: int, shared: bool, deterministic: bool, total: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the gradients of key and value (one tensor if shared), channels-last; pairs are (B, H W S, G).

    ``total``: a gradient to which that of the key is added in place, which is then the result.
    """
    batch, channels, height, width = query.shape
    device = query.device
    nodes = offsets.shape[1] // 2
    pairs = height * width * nodes  # of an image
    if pairs >= 2**31:
        positions = f"{height} x {width} positions with {nodes} nodes each"
        raise RuntimeError(f"the map has {positions}; the backward pass supports fewer than 2^31 nodes per image")
    if batch > max(1, MAX_PAIRS // pairs):
        tensors = (query, grad, offsets, pair_logits, pair_weights, *(() if total is None else (total,)))
        halves = zip(*(t.tensor_split(2) for t in tensors), strict=True)
        options = (values, groups, grid, shared, deterministic)
        parts = [_gather(*half[:5], *options, *half[5:]) for half in halves]  # type: ignore[call-arg]
        keys = torch.cat([part[0] for part in parts])
        return keys, keys if shared else torch.cat([part[1] for part in parts])

    q, dy = (t.contiguous(memory_format=torch.channels_last) for t in (query, grad))
    plans = _gather_plans(
        batch, height, width, nodes, channels, values, grid, groups, shared, offsets.stride(), offsets.dtype, q.dtype,
        q.get_device(), aligned(q, dy, offsets), deterministic, total is not None,
    )  # fmt: skip
    counts = torch.zeros(plans.counts, dtype=torch.int32, device=device)
    order = torch.empty(plans.pairs, dtype=torch.int64 if deterministic else torch.int32, device=device)
    plans.count(offsets, counts, order)
    starts = counts.cumsum(0, dtype=torch.int32)
    if deterministic:
        order = order.argsort(stable=True)
    records = torch.empty(plans.pairs, dtype=torch.int64, device=device)
    fractions = torch.empty(plans.pairs, dtype=torch.float32, device=device)
    extras = torch.empty(plans.tiles + plans.surplus, dtype=torch.int32, device=device)
    plans.fill(offsets, starts, order, records, fractions, counts, extras)

    def sums(channels: int, whole: Tensor | None) -> tuple[Tensor, Tensor]:
        if whole is None:
            size = (batch, channels, height, width)
            whole = torch.empty(size, dtype=q.dtype, device=device, memory_format=torch.channels_last)
        return whole, torch.empty((8 * plans.surplus + 4, channels), dtype=torch.float32, device=device)

    grad_key, partial_key = sums(channels, total)
    grad_value, partial_value = (grad_key, partial_key) if shared else sums(values, None)
    plans.gather(
        q, dy, pair_logits, pair_weights, records, fractions, starts, counts, extras,
        grad_key, grad_value, partial_key, partial_value,
    )  # fmt: skip
    plans.join_key(partial_key, grad_key, starts, extras)
    if not shared:
        plans.join_value(partial_value, grad_value, starts, extras)
    return grad_key, grad_value


@lru_cache(256)
def _gather_plans(
    batch, height, width, nodes, channels, values, grid, groups, shared, offset_strides, offset_dtype, dtype, device,
    is_aligned, deterministic, add,
) -> SimpleNamespace:  # fmt: skip
    pairs = batch * height * width * nodes
    piece = max(64, 64 * nodes)  # about seven times the pairs of an average tile
    down, across = cdiv(height, 2), cdiv(width, 2)
    tiles = batch * down * across
    surplus = 4 * pairs // piece  # pieces beyond the first, at most: a pair is in at most four tiles
    tiling = (tiles, down, across, height, width)
    sizes = (pairs, height, width, grid, *offset_strides)
    pair_blocks, tile_blocks = (cdiv(pairs, _BLOCK),), (cdiv(tiles, _BLOCK),)
    align = power_of_two(channels, values)
    wide, wide_v = next_power_of_two(channels), next_power_of_two(values)
    parts, at_once, warps = rows_at_once(max(wide, wide_v), dtype.itemsize, 16 if shared else 8, 1)
    constants = {
        "ALIGN": align, "NODES": nodes, "GROUPS": groups, "SHARED": shared, "CHANNELS": channels // groups,
        "VALUES": values // groups, "C": max(1, wide // parts), "CV": max(1, wide_v // parts), "PARTS": parts,
        "E": at_once, "PIECE": piece, "ADD": add,
    }  # fmt: skip
    blocks = {"NODES": nodes, "BLOCK": _BLOCK}
    joined = {"BLOCK": _BLOCK, "PIECE": piece}
    numbers = (*tiling, channels // align, values // align)
    return SimpleNamespace(
        pairs=pairs,
        tiles=tiles,
        surplus=surplus,
        counts=batch * (height + 2) * (width + 2) + 2,
        count=Plan(gather.count, pair_blocks, sizes, blocks | {"BINS": deterministic}),
        fill=Plan(gather.fill, pair_blocks, (*sizes, *tiling[:3]), blocks | {"ORDERED": deterministic, "PIECE": piece}),
        gather=Plan(gather.gather, (tiles + surplus,), numbers, constants, num_warps=warps),
        join_key=Plan(gather.join, tile_blocks, tiling, joined | {"TOTAL": channels, "C": wide, "ADD": add}),
        join_value=Plan(gather.join, tile_blocks, tiling, joined | {"TOTAL": values, "C": wide_v, "ADD": False}),
    )
