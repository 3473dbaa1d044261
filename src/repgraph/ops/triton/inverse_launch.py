"""Launches the kernels of ``inverse``: order the pairs by bin, cut the tiles into pieces, gather."""

from functools import lru_cache

import torch
from torch import Tensor

from repgraph.ops.triton import inverse, tiles
from repgraph.ops.triton.plan import Plan, aligned
from repgraph.ops.triton.tiles import power_of_two

BLOCK = 256
MOST_PAIRS = 2**29  # at once: pairs are numbered in 32 bits


def gather(
    query: Tensor, grad: Tensor, offsets: Tensor, pair_logits: Tensor, pair_weights: Tensor, values: int,
    groups: int, grid: int, shared: bool, deterministic: bool, added: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of key and value (the same one if shared), channels-last, from those of each query's nodes.

    Args:
        query, grad: (B, C, H, W) and (B, Cv, H, W) with channels together.
        pair_logits, pair_weights: (B H W S, G), derivatives of the logits, and weights.
        added: (B, C, H, W), channels-last: what is added to the key's gradient.
    """
    batch, channels, height, width = query.shape
    device = query.device
    nodes = offsets.shape[1] // 2
    if height * width * nodes >= 2**31:
        raise RuntimeError(
            f"{nodes} nodes for each of {height} x {width} positions are too many for the gradients of one image: "
            f"{height * width * nodes} pairs, at most {2**31 - 1} are possible"
        )
    if batch > max(1, MOST_PAIRS // (height * width * nodes)):
        half = batch // 2 * height * width * nodes
        parts = [
            gather(q, dy, o, logits, weights, values, groups, grid, shared, deterministic, more)
            for q, dy, o, logits, weights, more in zip(
                query.tensor_split([batch // 2]), grad.tensor_split([batch // 2]), offsets.tensor_split([batch // 2]),
                pair_logits.tensor_split([half]), pair_weights.tensor_split([half]),
                (None, None) if added is None else added.tensor_split([batch // 2]), strict=True,
            )
        ]  # fmt: skip
        keys = torch.cat([part[0] for part in parts])
        return keys, keys if shared else torch.cat([part[1] for part in parts])

    q, dy = _in_step(query), _in_step(grad)
    plans = _plans(
        batch, height, width, nodes, channels, values, grid, groups, shared, offsets.stride(), offsets.dtype,
        q.stride(), dy.stride(), q.dtype, q.get_device(), aligned(q, dy, offsets), deterministic, added is not None,
    )  # fmt: skip
    pairs, tile_count, surplus = plans.pairs, plans.tiles, plans.surplus
    counts = torch.zeros(batch * (height + 2) * (width + 2) + 1, dtype=torch.int32, device=device)
    order = torch.empty(pairs, dtype=torch.int64 if deterministic else torch.int32, device=device)
    plans.count(offsets, counts[1:], order)
    starts = counts.cumsum(0, dtype=torch.int32)
    if deterministic:
        order = order.argsort(stable=True)
    records = torch.empty(pairs, dtype=torch.int64, device=device)
    fractions = torch.empty(pairs, dtype=torch.float32, device=device)
    plans.fill(offsets, starts, order, records, fractions)
    extras = torch.empty(tile_count, dtype=torch.int32, device=device)
    plans.plan(starts, extras)
    extra_ends = extras.cumsum(0, dtype=torch.int32)

    def sums(channels: int) -> tuple[Tensor, Tensor]:
        size = (batch, channels, height, width)
        whole = torch.empty(size, dtype=q.dtype, device=device, memory_format=torch.channels_last)
        return whole, torch.empty((8 * surplus + 4, channels), dtype=torch.float32, device=device)

    more = q if added is None else added
    grad_key, partial_key = sums(channels)
    grad_value, partial_value = (grad_key, partial_key) if shared else sums(values)
    plans.gather(
        q, dy, pair_logits, pair_weights, records, fractions, starts, extra_ends, more,
        grad_key, grad_value, partial_key, partial_value,
    )  # fmt: skip
    plans.join_key(partial_key, grad_key, more, extra_ends)
    if not shared:
        plans.join_value(partial_value, grad_value, more, extra_ends)
    return grad_key, grad_value


def _in_step(t: Tensor) -> Tensor:
    """``t`` where one step leads from each of its positions to the next, from row to row and image to image, else a
    copy."""
    return t if _step(t.shape, t.stride()) is not None else t.contiguous(memory_format=torch.channels_last)


def _step(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """The stride from each position to the next; None where there is no single one."""
    step = None
    size = 1  # positions passed so far
    for axis in (3, 2, 0):
        if shape[axis] > 1:
            if step is None:
                step = strides[axis]
            elif strides[axis] != size * step:
                return None
        size *= shape[axis]
    return shape[1] if step is None else step


class _Plans:
    """The launches of one kind of call."""

    def __init__(
        self, batch, height, width, nodes, channels, values, grid, groups, shared, offset_strides, query_stride,
        grad_stride, itemsize, deterministic, add,
    ):  # fmt: skip
        self.pairs = batch * height * width * nodes
        piece = max(64, 64 * nodes)  # about seven times what an average tile has
        down, across = -(-height // 2), -(-width // 2)
        self.tiles = batch * down * across
        self.surplus = 4 * self.pairs // piece  # a pair is in at most four tiles
        tiling = (self.tiles, down, across, height, width)
        sizes = (self.pairs, height, width, grid, *offset_strides)
        blocks = (-(-self.pairs // BLOCK),)
        self.count = Plan(inverse.count, blocks, sizes, {"NODES": nodes, "BLOCK": BLOCK, "BINS": deterministic})
        self.fill = Plan(inverse.fill, blocks, sizes, {"NODES": nodes, "BLOCK": BLOCK, "ORDERED": deterministic})
        self.plan = Plan(inverse.plan, (-(-self.tiles // BLOCK),), tiling, {"PIECE": piece, "BLOCK": BLOCK})
        bits = 16 | query_stride | grad_stride
        align = bits & -bits
        wide, wide_v = power_of_two(channels), power_of_two(values)
        parts, at_once, warps = tiles.gather(max(wide, wide_v), itemsize, shared)
        constants = {
            "ALIGN": align, "NODES": nodes, "GROUPS": groups, "SHARED": shared, "CHANNELS": channels // groups,
            "VALUES": values // groups, "C": max(1, wide // parts), "CV": max(1, wide_v // parts), "PARTS": parts,
            "E": at_once, "PIECE": piece, "ADD": add,
        }  # fmt: skip
        numbers = (*tiling, query_stride // align, grad_stride // align)
        self.gather = Plan(inverse.gather, (self.tiles + self.surplus,), numbers, constants, num_warps=warps)
        blocks = (-(-self.tiles // BLOCK),)
        self.join_key = Plan(inverse.join, blocks, tiling, {"TOTAL": channels, "C": wide, "BLOCK": BLOCK, "ADD": add})
        self.join_value = Plan(
            inverse.join, blocks, tiling, {"TOTAL": values, "C": wide_v, "BLOCK": BLOCK, "ADD": False}
        )


@lru_cache(256)
def _plans(
    batch, height, width, nodes, channels, values, grid, groups, shared, offset_strides, offset_dtype,
    query_strides, grad_strides, dtype, device, is_aligned, deterministic, add,
) -> _Plans:  # fmt: skip
    query_stride = _step((batch, channels, height, width), query_strides)
    grad_stride = _step((batch, values, height, width), grad_strides)
    return _Plans(
        batch, height, width, nodes, channels, values, grid, groups, shared, offset_strides, query_stride,
        grad_stride, dtype.itemsize, deterministic, add,
    )  # fmt: skip
