"""Grid RepGraph: the queries of a cell share their nodes, so logits and sums are matrix products."""

import triton
import triton.language as tl

from repgraph.ops.triton.forward import SIZES, STRIDES, bilinear
from repgraph.ops.triton.geometry import channels, corners, program, read_offset


@triton.jit
def read_nodes(
    base, stride_h, stride_w, x, y, tx, ty, height, width, CHANNELS: tl.constexpr, C: tl.constexpr,
    NODE_BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Features [N, C] of nodes whose places are [N, 1]."""
    nodes = bilinear(base, stride_h, stride_w, x, y, tx, ty, height, width, channels(1, C), CHANNELS, INDEX)
    return tl.reshape(nodes, [NODE_BLOCK, C])


@triton.jit
def split(t, like):
    """``t`` [M, N] in float32 as a sum of two half-precision tensors in the dtype of ``like``."""
    high = t.to(like.dtype)
    return high, (t - high.to(tl.float32)).to(like.dtype)


@triton.jit
def logits_of(q, k, HALF: tl.constexpr):
    """q k^T [Q, N] to float32's accuracy; half-precision queries are exact, so only the nodes are split."""
    if HALF:
        high, low = split(k, q)
        return tl.dot(q, tl.trans(high), acc=tl.dot(q, tl.trans(low)))
    else:
        return tl.dot(q.to(tl.float32), tl.trans(k), input_precision="ieee")


@triton.jit
def weighted_sum(weight, v, acc, q, HALF: tl.constexpr):
    """weight v + acc [Q, CV], to float32's accuracy but for the product of the two low parts."""
    if HALF:
        high, low = split(weight, q)
        v_high, v_low = split(v, q)
        return tl.dot(high, v_high, acc=tl.dot(high, v_low, acc=tl.dot(low, v_high, acc=acc)))
    else:
        return tl.dot(weight, v, acc=acc, input_precision="ieee")


@triton.jit(do_not_specialize=[*SIZES, *STRIDES, "scale", "keep"])
def attend_cells(
    query, key, value, offsets, y, lse, logits, scale,
    height, width, rows, columns, tiles_y, tiles_x, grid, cell_h, cell_w,
    query_sb, query_sh, query_sw, key_sb, key_sh, key_sw, value_sb, value_sh, value_sw, y_sb, y_sh, y_sw,
    offset_sb, offset_sc, offset_sh, offset_sw, keep,
    ALIGN: tl.constexpr, NODES: tl.constexpr, GROUPS: tl.constexpr, SHARED: tl.constexpr,
    CHANNELS: tl.constexpr, VALUES: tl.constexpr, C: tl.constexpr, CV: tl.constexpr,
    Q: tl.constexpr, NODE_BLOCK: tl.constexpr, LOGITS: tl.constexpr, INDEX: tl.constexpr, HALF: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """y and, if ``keep``, logsumexp for Q queries of one cell and group; arguments as in ``forward.attend``.

    A tile is a cell. HALF: features are in half precision, and so are the operands of the matrix products.
    """
    unit, share = program(cell_h, cell_w, Q)
    group = unit % GROUPS
    cell_x = unit // GROUPS % columns
    cell_y = unit // GROUPS // columns % rows
    batch = (unit // GROUPS // columns // rows).to(tl.int64)
    index = share * Q + tl.arange(0, Q)
    query_y, query_x = cell_y * grid + index // cell_w, cell_x * grid + index % cell_w
    asked = (index < cell_h * cell_w) & (query_y < height) & (query_x < width)
    channel = tl.arange(0, C)[None, :]
    channel_v = tl.arange(0, CV)[None, :]
    y64, x64 = query_y.to(tl.int64), query_x.to(tl.int64)
    row = (batch * query_sb + y64 * query_sh + x64 * query_sw) * ALIGN + group * CHANNELS
    mask = asked[:, None] & (channel < CHANNELS)
    q = tl.load(query + row[:, None] + channel, mask=mask, other=0.0)  # [Q, C]

    key += batch * key_sb * ALIGN + group * CHANNELS
    value += batch * value_sb * ALIGN + group * VALUES
    offsets += batch * offset_sb + cell_y.to(tl.int64) * offset_sh + cell_x.to(tl.int64) * offset_sw
    key_sh, key_sw = key_sh.to(INDEX) * ALIGN, key_sw.to(INDEX) * ALIGN
    value_sh, value_sw = value_sh.to(INDEX) * ALIGN, value_sw.to(INDEX) * ALIGN
    if DENSE:
        key_sw, value_sw = GROUPS * CHANNELS, GROUPS * VALUES
    offset_sc = offset_sc.to(INDEX)
    anchor_x, anchor_y = (cell_x * grid).to(tl.float32), (cell_y * grid).to(tl.float32)
    unit_place = (batch * GROUPS + group) * height * width
    place = query_y * width + query_x
    peak = tl.full([Q], -float("inf"), tl.float32)
    total = tl.zeros([Q], tl.float32)
    acc = tl.zeros([Q, CV], tl.float32)
    for first in range(0, NODES, NODE_BLOCK):
        n = first + tl.arange(0, NODE_BLOCK)
        offset_x, offset_y = read_offset(offsets, offset_sc, True, n[:, None], NODES)
        left, tx = corners(anchor_x + offset_x, width)
        top, ty = corners(anchor_y + offset_y, height)
        k = read_nodes(key, key_sh, key_sw, left, top, tx, ty, height, width, CHANNELS, C, NODE_BLOCK, INDEX)
        if SHARED:
            v = k
        else:
            v = read_nodes(value, value_sh, value_sw, left, top, tx, ty, height, width, VALUES, CV, NODE_BLOCK, INDEX)
        logit = logits_of(q, k, HALF) * (scale * 1.4426950408889634)  # [Q, N]
        logit = tl.where((n < NODES)[None, :], logit, -float("inf"))
        if LOGITS:
            at = logits + unit_place * NODES + n[None, :] * (height.to(INDEX) * width) + place[:, None]
            tl.store(at, logit, mask=asked[:, None] & (n < NODES)[None, :])
        new_peak = tl.maximum(peak, tl.max(logit, 1))
        fade = tl.exp2(peak - new_peak)
        weight = tl.exp2(logit - new_peak[:, None])
        total = total * fade + tl.sum(weight, 1)
        acc = weighted_sum(weight, v, acc * fade[:, None], q, HALF)
        peak = new_peak
    row = (batch * y_sb + y64 * y_sh + x64 * y_sw) * ALIGN + group * VALUES
    response = (acc / total[:, None]).to(y.dtype.element_ty)
    tl.store(y + row[:, None] + channel_v, response, mask=asked[:, None] & (channel_v < VALUES))
    if keep:
        tl.store(lse + unit_place + place, (peak + tl.log2(total)) * 0.6931471805599453, mask=asked)
