"""The coordinate convention of ``repgraph.ops.geometry``, and the read of a node, for Triton.

Tiles are [U, Q, P, C]: a *unit* is one cell's one channel group, Q are queries of the cell, and P times C the
channels of the group. Threads are given to C first and to P last, so that one thread holds all of P: the more
channels a thread has, the fewer threads repeat the arithmetic of a unit, which has no channels. What belongs to a
unit is [U, 1], to a query [U, Q], the features of a node are [U, 1, P, C].

That is how kernels speak of tiles. In which order the axes really are, only ``PARTS_FIRST`` and the functions that ask
it know. Triton gives threads to the last axis first, which is C; then Triton 3.6 goes on from the first axis, newer
ones from the last but one backwards. For P to come last, tiles are [U, Q, P, C] for 3.6 and [P, U, Q, C] since 3.7.
"""

import torch
import triton
import triton.language as tl

from repgraph.ops.triton.plan import version


def parts_first(text: str) -> bool:
    """Whether tiles are [P, U, Q, C] for this version of Triton."""
    return version(text) >= (3, 7)


PARTS_FIRST = tl.constexpr(parts_first(triton.__version__))


@triton.jit
def corners(position, size, INSIDE: tl.constexpr = False):
    """Left corner and fraction of ``position`` along an axis of ``size`` positions; INSIDE: it has both corners."""
    if INSIDE:
        left = position.to(tl.int32)
        return left, position - left.to(tl.float32)
    known = position == position
    limited = tl.minimum(tl.maximum(tl.where(known, position, -2.0), -2.0), size + 1.0)
    left = tl.floor(limited)
    return left.to(tl.int32), tl.where(known, limited - left, position)


@triton.jit
def channels(PARTS: tl.constexpr, C: tl.constexpr):
    """Channel numbers [1, 1, P, C] of a tile."""
    part, channel = tl.arange(0, PARTS), tl.arange(0, C)[None, None, None, :]
    if PARTS_FIRST:
        return part[:, None, None, None] * C + channel
    else:
        return part[None, None, :, None] * C + channel


@triton.jit
def per_channel(t):
    """What belongs to units or queries, [U, Q], as [U, Q, 1, 1]."""
    if PARTS_FIRST:
        return t[None, :, :, None]
    else:
        return t[:, :, None, None]


@triton.jit
def zeros(U: tl.constexpr, Q: tl.constexpr, channel):
    """Zeros [U, Q, P, C] for the channels ``channel``."""
    if PARTS_FIRST:
        return tl.zeros([channel.shape[0], U, Q, channel.shape[3]], tl.float32)
    else:
        return tl.zeros([U, Q, channel.shape[2], channel.shape[3]], tl.float32)


@triton.jit
def dot(a, b):
    """Sum over channels [U, Q]: first those of one thread."""
    if PARTS_FIRST:
        return tl.sum(tl.sum(a * b, 0), 2)
    else:
        return tl.sum(tl.sum(a * b, 2), 2)


@triton.jit
def over_queries(t, Q: tl.constexpr):
    """[U, 1, P, C]: the sum of [U, Q, P, C] over a cell's queries."""
    if Q == 1:
        return t
    elif PARTS_FIRST:
        return tl.sum(t, 2, keep_dims=True)
    else:
        return tl.sum(t, 1, keep_dims=True)


@triton.jit
def over_units(t):
    """[1, Q, P, C]: the sum of [U, Q, P, C] over units."""
    if PARTS_FIRST:
        return tl.sum(t, 1, keep_dims=True)
    else:
        return tl.sum(t, 0, keep_dims=True)


@triton.jit
def within(index, size):
    return (index >= 0) & (index < size)


# Whether kernels become PTX: not so in the interpreter, nor on AMD's GPUs.
PTX = tl.constexpr(isinstance(within, triton.runtime.JITFunction) and torch.version.hip is None)


@triton.jit
def widen(features, size):
    """Features in float32. Of bfloat16 a register holds two, each of which is one instruction away from its float32;
    Triton's own conversion unpacks them first.

    ``size`` is any number that is not negative and that the compiler does not know. It makes a factor of 2^16 whose
    product stays one: that is for the units of multiplication, and a shift for those of logic, which have the more to
    do here.
    """
    if PTX and features.dtype == tl.bfloat16:
        factor = tl.full(features.shape, 65536, tl.int32) + (size >> 31)
        return tl.inline_asm_elementwise(
            "mul.lo.u32 $0, $2, $3; and.b32 $1, $2, 0xffff0000;", "=r,=r,r,r,r", [features, factor], tl.float32, True, 2
        )
    return features.to(tl.float32)


@triton.jit
def corner_masks(x, y, height, width, stored):
    """Which of the four corners [U, 1, P, C] lie on the map: left-top, right-top, left-low, right-low."""
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
    """Pointers [U, 1, P, C] to the left corners, top and low; the right ones are ``stride_w`` further.

    ``base`` [U, 1] points at the first channel of the map's first position. INDEX is the integer type of
    offsets within one image.
    """
    place = base + (y.to(INDEX) * stride_h + x.to(INDEX) * stride_w)
    return per_channel(place) + channel, per_channel(place + stride_h) + channel


@triton.jit
def read_corners(
    base, stride_h, stride_w, x, y, height, width, channel, CHANNELS: tl.constexpr, INDEX: tl.constexpr,
    INSIDE: tl.constexpr = False,
):  # fmt: skip
    """Features [U, 1, P, C] in float32 at the four corners of nodes whose left-top corner is (x, y); zero outside.

    INSIDE: none is outside.
    """
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
    """Cell row, cell column, group and validity of the units ``index`` of a patch of cells."""
    cell = index // GROUPS
    cell_y = tile_y * PATCH_H + cell // PATCH_W
    cell_x = tile_x * PATCH_W + cell % PATCH_W
    valid = (cell < PATCH_H * PATCH_W) & (cell_y < rows) & (cell_x < columns)
    return cell_y, cell_x, index % GROUPS, valid


@triton.jit
def program(cell_h, cell_w, Q: tl.constexpr):
    """Number of this program's tile, and its share of a cell's queries, which are taken Q at a time.

    Both come from one axis: the others have at most 65535 programs.
    """
    shares = (cell_h * cell_w + Q - 1) // Q
    return tl.program_id(0) // shares, tl.program_id(0) % shares


@triton.jit
def patch(tiles_y, tiles_x, cell_h, cell_w, Q: tl.constexpr, ONE: tl.constexpr):
    """Row, column and image of this program's patch of cells, and its share of their queries.

    ONE: a cell is one query, and programs have three axes, which saves the divisions.
    """
    if ONE:
        return tl.program_id(1), tl.program_id(0), tl.program_id(2).to(tl.int64), 0
    else:
        tile, share = program(cell_h, cell_w, Q)
        return tile // tiles_x % tiles_y, tile % tiles_x, (tile // tiles_x // tiles_y).to(tl.int64), share


@triton.jit
def queries(index, cell_y, cell_x, valid, grid, cell_h, cell_w, height, width):
    """Positions and validity [U, Q] of the queries ``index`` [1, Q] of each cell, counted row by row."""
    y = cell_y * grid + index // cell_w
    x = cell_x * grid + index % cell_w
    return y, x, valid & (index < cell_h * cell_w) & (y < height) & (x < width)


@triton.jit
def read_offset(offset, stride, valid, n, NODES: tl.constexpr, INSIDE: tl.constexpr = False):
    """Offset of node ``n`` of each unit, float32; nodes past the last one lie outside every map.

    INSIDE: every unit is valid, and what comes past the last node is that node again.
    """
    if INSIDE:
        place = offset + 2 * tl.minimum(n, NODES - 1) * stride
        return tl.load(place).to(tl.float32), tl.load(place + stride).to(tl.float32)
    asked = valid & (n < NODES)
    x = tl.load(offset + 2 * n * stride, mask=asked, other=-float("inf")).to(tl.float32)
    y = tl.load(offset + (2 * n + 1) * stride, mask=asked, other=-float("inf")).to(tl.float32)
    return x, y


@triton.jit
def all_inside(
    offset, stride, anchor_x, anchor_y, valid, height, width, NODES: tl.constexpr, NODE_BLOCK: tl.constexpr
):  # fmt: skip
    """Whether all nodes of all units have their four corners on the map. NODE_BLOCK holds the nodes."""
    n = tl.arange(0, NODE_BLOCK)[None, :]
    offset_x, offset_y = read_offset(offset, stride, valid, n, NODES)
    x, y = anchor_x + offset_x, anchor_y + offset_y
    inside = (x >= 0) & (x < width - 1) & (y >= 0) & (y < height - 1)
    return tl.min((inside | (n >= NODES) & valid).to(tl.int32)) > 0
