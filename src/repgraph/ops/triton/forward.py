"""Sampling, logits, softmax and weighted sum in one kernel; samples stay in registers.

``attend`` is for any grid. ``attend_cells`` is for cells of several queries: logits and sums are matrix products.
"""

import triton
import triton.language as tl

from repgraph.ops.triton.geometry import (
    all_inside,
    channels,
    corners,
    dot,
    patch,
    per_channel,
    program,
    queries,
    read_corners,
    read_offset,
    units,
    widen,
    zeros,
)

SIZES = ["height", "width", "rows", "columns", "tiles_y", "tiles_x", "grid", "cell_h", "cell_w"]
STRIDES = [f"{t}_{axis}" for t in ("query", "key", "value", "y") for axis in ("sb", "sh", "sw")]
STRIDES += [f"offset_{axis}" for axis in ("sb", "sc", "sh", "sw")]


@triton.jit
def bilinear(
    base, stride_h, stride_w, x, y, tx, ty, height, width, channel, CHANNELS: tl.constexpr, INDEX: tl.constexpr,
    INSIDE: tl.constexpr = False,
):  # fmt: skip
    """Return nodes [U, 1, P, C] by bilinear interpolation."""
    a, b, c, d = read_corners(base, stride_h, stride_w, x, y, height, width, channel, CHANNELS, INDEX, INSIDE)
    right, low = per_channel(tx), per_channel(ty)
    left, top = 1 - right, 1 - low
    return left * top * a + right * top * b + left * low * c + right * low * d


@triton.jit
def read_node(
    q, key, key_sh, key_sw, value, value_sh, value_sw, offset, offset_sc, anchor_x, anchor_y, valid, n, height, width,
    channel, channel_v, NODES: tl.constexpr, SHARED: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    INDEX: tl.constexpr, INSIDE: tl.constexpr,
):  # fmt: skip
    """Return logit [U, Q] (-inf for nodes past the last one) and value [U, 1, P, CV] of node ``n``."""
    offset_x, offset_y = read_offset(offset, offset_sc, valid, n, NODES, INSIDE)
    x, tx = corners(anchor_x + offset_x, width, INSIDE)
    y, ty = corners(anchor_y + offset_y, height, INSIDE)
    k = bilinear(key, key_sh, key_sw, x, y, tx, ty, height, width, channel, CHANNELS, INDEX, INSIDE)
    if SHARED:
        v = k
    else:
        v = bilinear(value, value_sh, value_sw, x, y, tx, ty, height, width, channel_v, VALUES, INDEX, INSIDE)
    return tl.where(n < NODES, dot(q, k), -float("inf")), v


@triton.jit
def over_nodes(
    q, key, key_sh, key_sw, value, value_sh, value_sw, offset, offset_sc, anchor_x, anchor_y, valid, height, width,
    channel, channel_v, logits, area, asked, NODES: tl.constexpr, SHARED: tl.constexpr, CHANNELS: tl.constexpr,
    VALUES: tl.constexpr, CHUNK: tl.constexpr, LOGITS: tl.constexpr, INDEX: tl.constexpr, INSIDE: tl.constexpr,
):  # fmt: skip
    """Return the largest logit and the sum of weights relative to it [U, Q], and the sum of values [U, Q, P, CV]."""
    U: tl.constexpr = asked.shape[0]
    Q: tl.constexpr = asked.shape[1]
    peak = tl.full([U, Q], -float("inf"), tl.float32)
    total = tl.zeros([U, Q], tl.float32)
    acc = zeros(U, Q, channel_v)
    for first in range(0, NODES, CHUNK):
        logit, v = read_node(
            q, key, key_sh, key_sw, value, value_sh, value_sw, offset, offset_sc, anchor_x, anchor_y,
            valid, first, height, width, channel, channel_v, NODES, SHARED, CHANNELS, VALUES, INDEX, INSIDE,
        )  # fmt: skip
        if LOGITS:
            tl.store(logits + first * area, logit, mask=asked)
        new_peak = tl.maximum(peak, logit)
        if CHUNK == 3:  # one rescaling for three nodes, and three times as many loads in flight
            logit_1, v_1 = read_node(
                q, key, key_sh, key_sw, value, value_sh, value_sw, offset, offset_sc, anchor_x, anchor_y,
                valid, first + 1, height, width, channel, channel_v, NODES, SHARED, CHANNELS, VALUES, INDEX, INSIDE,
            )  # fmt: skip
            logit_2, v_2 = read_node(
                q, key, key_sh, key_sw, value, value_sh, value_sw, offset, offset_sc, anchor_x, anchor_y,
                valid, first + 2, height, width, channel, channel_v, NODES, SHARED, CHANNELS, VALUES, INDEX, INSIDE,
            )  # fmt: skip
            if LOGITS:
                at = logits + (first + 1) * area
                tl.store(at, logit_1, mask=asked & (first + 1 < NODES))
                tl.store(at + area, logit_2, mask=asked & (first + 2 < NODES))
            new_peak = tl.maximum(new_peak, tl.maximum(logit_1, logit_2))
        fade = tl.exp2(peak - new_peak)
        weight = tl.exp2(logit - new_peak)
        total = total * fade + weight
        acc = acc * per_channel(fade) + per_channel(weight) * v
        if CHUNK == 3:
            weight_1, weight_2 = tl.exp2(logit_1 - new_peak), tl.exp2(logit_2 - new_peak)
            total += weight_1 + weight_2
            acc += per_channel(weight_1) * v_1
            acc += per_channel(weight_2) * v_2
        peak = new_peak
    return peak, total, acc


@triton.jit(do_not_specialize=[*SIZES, *STRIDES, "scale", "keep"])
def attend(
    query, key, value, offsets, y, lse, logits, scale, height, width, rows, columns, tiles_y, tiles_x, grid, cell_h,
    cell_w, query_sb, query_sh, query_sw, key_sb, key_sh, key_sw, value_sb, value_sh, value_sw, y_sb, y_sh, y_sw,
    offset_sb, offset_sc, offset_sh, offset_sw, keep, ALIGN: tl.constexpr, NODES: tl.constexpr, GROUPS: tl.constexpr,
    SHARED: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr, C: tl.constexpr, CV: tl.constexpr,
    PARTS: tl.constexpr, U: tl.constexpr, Q: tl.constexpr, PATCH_H: tl.constexpr, PATCH_W: tl.constexpr,
    CHUNK: tl.constexpr, LOGITS: tl.constexpr, INDEX: tl.constexpr, NODE_BLOCK: tl.constexpr, ONE: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """Write y and, if ``keep``, logsumexp for a patch of cells; also ``logits`` (B, G, S, H, W) if LOGITS.

    If all nodes of a step of units are inside the map, nothing is masked; the check reads the offsets of NODE_BLOCK
    nodes (0: no check). CHANNELS and VALUES are the channels of one group, padded to PARTS times C or CV, powers of
    two. Map strides are divided by ALIGN, a power of two: loads are vectorized without a kernel for every image size.
    """
    if ONE:
        grid, cell_h, cell_w = 1, 1, 1
    tile_y, tile_x, batch, share = patch(tiles_y, tiles_x, cell_h, cell_w, Q, ONE)
    index = share * Q + tl.arange(0, Q)[None, :]
    channel = channels(PARTS, C)
    channel_v = channels(PARTS, CV)
    query += batch * query_sb * ALIGN
    key += batch * key_sb * ALIGN
    value += batch * value_sb * ALIGN
    y += batch * y_sb * ALIGN
    offsets += batch * offset_sb
    key_sh, key_sw = key_sh.to(INDEX) * ALIGN, key_sw.to(INDEX) * ALIGN
    value_sh, value_sw = value_sh.to(INDEX) * ALIGN, value_sw.to(INDEX) * ALIGN
    if DENSE:  # known at compile time
        key_sw, value_sw = GROUPS * CHANNELS, GROUPS * VALUES
    offset_sc = offset_sc.to(INDEX)
    area = height.to(INDEX) * width

    for step in range(0, PATCH_H * PATCH_W * GROUPS, U):
        cell_y, cell_x, group, valid = units(
            step + tl.arange(0, U)[:, None], tile_y, tile_x, rows, columns, PATCH_H, PATCH_W, GROUPS
        )
        query_y, query_x, asked = queries(index, cell_y, cell_x, valid, grid, cell_h, cell_w, height, width)
        row = query_y.to(tl.int64) * (query_sh * ALIGN) + query_x.to(tl.int64) * (query_sw * ALIGN)
        mask = per_channel(asked) & (channel < CHANNELS)
        q = widen(tl.load(query + per_channel(row + group * CHANNELS) + channel, mask=mask, other=0.0), height)
        q *= scale * 1.4426950408889634  # softmax in base 2

        anchor_x, anchor_y = (cell_x * grid).to(tl.float32), (cell_y * grid).to(tl.float32)
        offset = offsets + cell_y.to(tl.int64) * offset_sh + cell_x.to(tl.int64) * offset_sw  # [U, 1]
        key_base = key + group * CHANNELS
        value_base = value + group * VALUES
        logit_place = ((batch * GROUPS + group) * NODES * height + query_y) * width + query_x
        inside = False
        if NODE_BLOCK > 0:
            inside = all_inside(offset, offset_sc, anchor_x, anchor_y, valid, height, width, NODES, NODE_BLOCK)
        if inside:
            peak, total, acc = over_nodes(
                q, key_base, key_sh, key_sw, value_base, value_sh, value_sw, offset, offset_sc, anchor_x, anchor_y,
                valid, height, width, channel, channel_v, logits + logit_place, area, asked, NODES, SHARED, CHANNELS,
                VALUES, CHUNK, LOGITS, INDEX, True,
            )  # fmt: skip
        else:
            peak, total, acc = over_nodes(
                q, key_base, key_sh, key_sw, value_base, value_sh, value_sw, offset, offset_sc, anchor_x, anchor_y,
                valid, height, width, channel, channel_v, logits + logit_place, area, asked, NODES, SHARED, CHANNELS,
                VALUES, CHUNK, LOGITS, INDEX, False,
            )  # fmt: skip

        row = query_y.to(tl.int64) * (y_sh * ALIGN) + query_x.to(tl.int64) * (y_sw * ALIGN) + group * VALUES
        mask = per_channel(asked) & (channel_v < VALUES)
        response = (acc * per_channel(1.0 / total)).to(y.dtype.element_ty)
        tl.store(y + per_channel(row) + channel_v, response, mask=mask)
        if keep:
            place = ((batch * GROUPS + group) * height + query_y) * width + query_x  # [U, Q]
            tl.store(lse + place, (peak + tl.log2(total)) * 0.6931471805599453, mask=asked)


@triton.jit
def read_nodes(
    base, stride_h, stride_w, x, y, tx, ty, height, width, CHANNELS: tl.constexpr, C: tl.constexpr,
    NODE_BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Return features [N, C] of nodes with positions [N, 1]."""
    nodes = bilinear(base, stride_h, stride_w, x, y, tx, ty, height, width, channels(1, C), CHANNELS, INDEX)
    return tl.reshape(nodes, [NODE_BLOCK, C])


@triton.jit
def split(t, like):
    """Split float32 ``t`` [M, N] into a sum of two tensors in the half-precision dtype of ``like``."""
    high = t.to(like.dtype)
    return high, (t - high.to(tl.float32)).to(like.dtype)


@triton.jit
def logits_of(q, k, HALF: tl.constexpr):
    """Return q k^T [Q, N] to float32 accuracy; half-precision queries are exact, so only the nodes are split."""
    if HALF:
        high, low = split(k, q)
        return tl.dot(q, tl.trans(high), acc=tl.dot(q, tl.trans(low)))
    else:
        return tl.dot(q.to(tl.float32), tl.trans(k), input_precision="ieee")


@triton.jit
def weighted_sum(weight, v, acc, q, HALF: tl.constexpr):
    """Return weight v + acc [Q, CV] to float32 accuracy, except for the product of the two low parts."""
    if HALF:
        high, low = split(weight, q)
        v_high, v_low = split(v, q)
        return tl.dot(high, v_high, acc=tl.dot(high, v_low, acc=tl.dot(low, v_high, acc=acc)))
    else:
        return tl.dot(weight, v, acc=acc, input_precision="ieee")


@triton.jit(do_not_specialize=[*SIZES, *STRIDES, "scale", "keep"])
def attend_cells(
    query, key, value, offsets, y, lse, logits, scale, height, width, rows, columns, tiles_y, tiles_x, grid, cell_h,
    cell_w, query_sb, query_sh, query_sw, key_sb, key_sh, key_sw, value_sb, value_sh, value_sw, y_sb, y_sh, y_sw,
    offset_sb, offset_sc, offset_sh, offset_sw, keep, ALIGN: tl.constexpr, NODES: tl.constexpr, GROUPS: tl.constexpr,
    SHARED: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr, C: tl.constexpr, CV: tl.constexpr,
    Q: tl.constexpr, NODE_BLOCK: tl.constexpr, LOGITS: tl.constexpr, INDEX: tl.constexpr, HALF: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """Write y and, if ``keep``, logsumexp for Q queries of one cell and group. HALF: products in half precision."""
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
