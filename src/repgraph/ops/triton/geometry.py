"""The coordinate convention of ``repgraph.ops.geometry`` in Triton, reading of nodes, and the axes of tiles.

Tiles are [U, Q, P, C]: a *unit* is one channel group of one cell, Q are queries of the cell, and P times C the channels
of the group. Per-unit values are [U, 1], per-query values [U, Q], and the features of a node [U, 1, P, C].

Docstrings use this order. Each thread holds all of P, because then fewer threads repeat the per-unit arithmetic. Triton
3.7 changed the order in which threads are assigned to axes: tiles are [U, Q, P, C] before 3.7 and [P, U, Q, C] since.
"""

import torch
import triton
import triton.language as tl

from repgraph.ops.triton.plan import version

PARTS_FIRST = tl.constexpr(version(triton.__version__) >= (3, 7))


@triton.jit
def corners(position, size, INSIDE: tl.constexpr = False):
    """Return left corner and fraction of ``position`` along an axis of length ``size``. INSIDE: both corners exist."""
    if INSIDE:
        left = position.to(tl.int32)
        return left, position - left.to(tl.float32)
    known = position == position
    limited = tl.minimum(tl.maximum(tl.where(known, position, -2.0), -2.0), size + 1.0)
    left = tl.floor(limited)
    return left.to(tl.int32), tl.where(known, limited - left, position)


@triton.jit
def channels(PARTS: tl.constexpr, C: tl.constexpr):
    """Return the channel numbers [1, 1, P, C] of a tile."""
    part, channel = tl.arange(0, PARTS), tl.arange(0, C)[None, None, None, :]
    return (part[:, None, None, None] if PARTS_FIRST else part[None, None, :, None]) * C + channel


@triton.jit
def per_channel(t):
    """Reshape per-unit or per-query values [U, Q] to [U, Q, 1, 1]."""
    return t[None, :, :, None] if PARTS_FIRST else t[:, :, None, None]


@triton.jit
def zeros(U: tl.constexpr, Q: tl.constexpr, channel):
    """Return zeros [U, Q, P, C] for the channels ``channel``."""
    if PARTS_FIRST:
        return tl.zeros([channel.shape[0], U, Q, channel.shape[3]], tl.float32)
    else:
        return tl.zeros([U, Q, channel.shape[2], channel.shape[3]], tl.float32)


@triton.jit
def dot(a, b):
    """Return the sum over channels [U, Q]: first over those of one thread."""
    return tl.sum(tl.sum(a * b, 0 if PARTS_FIRST else 2), 2)


@triton.jit
def over_queries(t, Q: tl.constexpr):
    """Sum [U, Q, P, C] over the queries of a cell: [U, 1, P, C]."""
    return t if Q == 1 else tl.sum(t, 2 if PARTS_FIRST else 1, keep_dims=True)


@triton.jit
def over_units(t):
    """Sum [U, Q, P, C] over units: [1, Q, P, C]."""
    return tl.sum(t, 1 if PARTS_FIRST else 0, keep_dims=True)


@triton.jit
def within(index, size):
    return (index >= 0) & (index < size)


# Whether kernels are compiled to PTX: not in the interpreter, nor for AMD GPUs.
PTX = tl.constexpr(isinstance(within, triton.runtime.JITFunction) and torch.version.hip is None)


@triton.jit
def widen(features, size):
    """Convert features to float32.

    A register holds two bfloat16, and one instruction converts each. The lower one is multiplied by 2^16, because the
    pipeline of shifts is busier. ``size`` is any non-negative number, which hides the factor from the compiler.
    """
    if PTX and features.dtype == tl.bfloat16:
        factor = tl.full(features.shape, 65536, tl.int32) + (size >> 31)
        return tl.inline_asm_elementwise(
            "mul.lo.u32 $0, $2, $3; and.b32 $1, $2, 0xffff0000;", "=r,=r,r,r,r", [features, factor], tl.float32, True, 2
        )
    return features.to(tl.float32)


@triton.jit
def corner_masks(x, y, height, width, stored):
    """Return masks [U, 1, P, C] of the corners on the map: top left, top right, bottom left, bottom right."""
    left, right = within(x, width), within(x + 1, width)
    top, low = within(y, height), within(y + 1, height)
    return (
        per_channel(left & top) & stored,
        per_channel(right & top) & stored,
        per_channel(left & low) & stored,
        per_channel(right & low) & stored,
    )


@triton.jit
def corner_pointers(base, stride_h, stride_w, x, y, channel, INDEX: tl.constexpr):
    """Return pointers [U, 1, P, C] to the top-left and bottom-left corners; right corners are ``stride_w`` further."""
    place = base + (y.to(INDEX) * stride_h + x.to(INDEX) * stride_w)
    return per_channel(place) + channel, per_channel(place + stride_h) + channel


@triton.jit
def read_corners(
    base, stride_h, stride_w, x, y, height, width, channel, CHANNELS: tl.constexpr, INDEX: tl.constexpr,
    INSIDE: tl.constexpr = False,
):  # fmt: skip
    """Return float32 features [U, 1, P, C] at the four corners of nodes; zero off the map (INSIDE: none is)."""
    top, low = corner_pointers(base, stride_h, stride_w, x, y, channel, INDEX)
    stored = channel < CHANNELS
    if not INSIDE:
        m0, m1, m2, m3 = corner_masks(x, y, height, width, stored)
    elif channel.numel == CHANNELS:
        m0, m1, m2, m3 = None, None, None, None
    else:
        m0, m1, m2, m3 = stored, stored, stored, stored
    other = None if m0 is None else 0.0
    left_top = tl.load(top, mask=m0, other=other)
    right_top = tl.load(top + stride_w, mask=m1, other=other)
    left_low = tl.load(low, mask=m2, other=other)
    right_low = tl.load(low + stride_w, mask=m3, other=other)
    return widen(left_top, height), widen(right_top, height), widen(left_low, height), widen(right_low, height)


@triton.jit
def units(index, tile_y, tile_x, rows, columns, PATCH_H: tl.constexpr, PATCH_W: tl.constexpr, GROUPS: tl.constexpr):
    """Return cell row, cell column, group and validity of the units ``index`` of a patch of cells."""
    cell = index // GROUPS
    cell_y = tile_y * PATCH_H + cell // PATCH_W
    cell_x = tile_x * PATCH_W + cell % PATCH_W
    valid = (cell < PATCH_H * PATCH_W) & (cell_y < rows) & (cell_x < columns)
    return cell_y, cell_x, index % GROUPS, valid


@triton.jit
def program(cell_h, cell_w, Q: tl.constexpr):
    """Return the index of this program's tile, and its share of a cell's queries, both from the first axis."""
    shares = (cell_h * cell_w + Q - 1) // Q
    return tl.program_id(0) // shares, tl.program_id(0) % shares


@triton.jit
def patch(tiles_y, tiles_x, cell_h, cell_w, Q: tl.constexpr, ONE: tl.constexpr):
    """Return row, column and image of this program's patch of cells, and its share of their queries (ONE: one each)."""
    if ONE:
        return tl.program_id(1), tl.program_id(0), tl.program_id(2).to(tl.int64), 0
    else:
        tile, share = program(cell_h, cell_w, Q)
        return tile // tiles_x % tiles_y, tile % tiles_x, (tile // tiles_x // tiles_y).to(tl.int64), share


@triton.jit
def queries(index, cell_y, cell_x, valid, grid, cell_h, cell_w, height, width):
    """Return positions and validity [U, Q] of the queries ``index`` [1, Q] of each cell, in row-major order."""
    y = cell_y * grid + index // cell_w
    x = cell_x * grid + index % cell_w
    return y, x, valid & (index < cell_h * cell_w) & (y < height) & (x < width)


@triton.jit
def read_offset(offset, stride, valid, n, NODES: tl.constexpr, INSIDE: tl.constexpr = False):
    """Return the offset of node ``n`` of each unit; past the last node, off the map (INSIDE: the last node again)."""
    if INSIDE:
        place = offset + 2 * tl.minimum(n, NODES - 1) * stride
        return tl.load(place).to(tl.float32), tl.load(place + stride).to(tl.float32)
    asked = valid & (n < NODES)
    x = tl.load(offset + 2 * n * stride, mask=asked, other=-float("inf")).to(tl.float32)
    y = tl.load(offset + (2 * n + 1) * stride, mask=asked, other=-float("inf")).to(tl.float32)
    return x, y


@triton.jit
def all_inside(offset, stride, anchor_x, anchor_y, valid, height, width, NODES: tl.constexpr, NODE_BLOCK: tl.constexpr):
    """Return whether all corners of all nodes of all units are on the map. NODE_BLOCK is at least NODES."""
    n = tl.arange(0, NODE_BLOCK)[None, :]
    offset_x, offset_y = read_offset(offset, stride, valid, n, NODES)
    x, y = anchor_x + offset_x, anchor_y + offset_y
    inside = (x >= 0) & (x < width - 1) & (y >= 0) & (y < height - 1)
    return tl.min((inside | (n >= NODES) & valid).to(tl.int32)) > 0
