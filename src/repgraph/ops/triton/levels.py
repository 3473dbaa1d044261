"""Attention to nodes on several maps, stored one after the other, with computed or given weights.

A unit is one channel group of one query. A program has a patch of U queries of one group: neighboring queries share
cached reads. ``table`` (L, 5) has height, width, first position, first node and end of the nodes of each map; none of
these is a compile-time constant. NODES is the number of nodes of a group, on all maps.
"""

import triton
import triton.language as tl

from repgraph.ops.triton.backward import bilinear_with_slopes, scatter
from repgraph.ops.triton.forward import bilinear
from repgraph.ops.triton.geometry import PTX, channels, corner_masks, corner_pointers, corners, dot, per_channel, zeros

LOG2_E = tl.constexpr(1.4426950408889634)
NUMBERS = [
    "scale", "positions", "height", "width", "tiles_y", "tiles_x", "grid", "offset_sb", "offset_sc", "offset_sh",
    "offset_sw", "bias_sb", "bias_sc", "bias_sh", "bias_sw",
]  # fmt: skip
GRADIENT_NUMBERS = [
    "grad_offset_sb", "grad_offset_sg", "grad_offset_sc", "grad_offset_sh", "grad_offset_sw",
    "grad_bias_sb", "grad_bias_sc", "grad_bias_sh", "grad_bias_sw",
]  # fmt: skip


@triton.jit
def multiply(a, b):
    """Return a * b in float32, rounded: the compiler does not contract it with a following addition."""
    if PTX:
        return tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1)
    return a * b


@triton.jit
def carry(anchor, size, other):
    """Map positions on an axis of ``size`` pixels to an axis of ``other`` pixels."""
    x = anchor.to(tl.float32)
    carried = tl.div_rn(multiply(x + 0.5, other + tl.zeros_like(x)), size + tl.zeros_like(x)) - 0.5
    return tl.where(size == other, x, carried)


@triton.jit
def queries_of(tiles_y, tiles_x, height, width, U: tl.constexpr, PATCH_W: tl.constexpr, GROUPS: tl.constexpr):
    """Return group, image, and row, column and validity [U, 1] of the queries of this program."""
    program = tl.program_id(0)
    group = program % GROUPS
    tile = program // GROUPS
    index = tl.arange(0, U)[:, None]
    y = tile // tiles_x % tiles_y * (U // PATCH_W) + index // PATCH_W
    x = tile % tiles_x * PATCH_W + index % PATCH_W
    return group, (tile // tiles_x // tiles_y).to(tl.int64), y, x, (y < height) & (x < width)


@triton.jit
def read_node(
    offset, stride, n, valid, anchor_y, anchor_x, map_height, map_width, GIVEN: tl.constexpr
):  # fmt: skip
    """Return the top-left corner (x, y) and the fractions of node ``n`` of each unit."""
    x = tl.load(offset + 2 * n * stride, mask=valid, other=0.0).to(tl.float32)
    y = tl.load(offset + (2 * n + 1) * stride, mask=valid, other=0.0).to(tl.float32)
    if GIVEN:
        x = multiply(x, map_width + tl.zeros_like(x)) - 0.5
        y = multiply(y, map_height + tl.zeros_like(y)) - 0.5
    else:
        x, y = anchor_x + x, anchor_y + y
    left, tx = corners(x, map_width)
    top, ty = corners(y, map_height)
    return left, top, tx, ty


@triton.jit(do_not_specialize=NUMBERS)
def attend_levels(
    query, key, value, offsets, bias, table, y, response, lse, logits, scale, positions, height, width, tiles_y,
    tiles_x, grid, offset_sb, offset_sc, offset_sh, offset_sw, bias_sb, bias_sc, bias_sh, bias_sw, LEVELS: tl.constexpr,
    NODES: tl.constexpr, GROUPS: tl.constexpr, OWN: tl.constexpr, SHARED: tl.constexpr, GIVEN: tl.constexpr,
    BIAS: tl.constexpr, LSE: tl.constexpr, RESPONSE: tl.constexpr, LOGITS: tl.constexpr, CHANNELS: tl.constexpr,
    VALUES: tl.constexpr, C: tl.constexpr, CV: tl.constexpr, PARTS: tl.constexpr, U: tl.constexpr,
    PATCH_W: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Write y; if LSE, RESPONSE and LOGITS also logsumexp, y in float32, and logits to base 2 (B, G, NODES, H, W)."""
    group, batch, row, column, valid = queries_of(tiles_y, tiles_x, height, width, U, PATCH_W, GROUPS)
    cell_y, cell_x = row // grid, column // grid
    offset = offsets + batch * offset_sb + cell_y.to(tl.int64) * offset_sh + cell_x.to(tl.int64) * offset_sw
    if OWN:
        offset += group.to(tl.int64) * 2 * NODES * offset_sc
    offset_sc = offset_sc.to(INDEX)
    bias_sc = bias_sc.to(INDEX)
    bias_place = bias + batch * bias_sb + row.to(tl.int64) * bias_sh + column.to(tl.int64) * bias_sw
    bias_place += (group * NODES).to(tl.int64) * bias_sc
    channel = channels(PARTS, C)
    channel_v = channels(PARTS, CV)
    place = (batch * height + row) * width + column  # [U, 1]
    key += batch * positions * (GROUPS * CHANNELS) + group * CHANNELS
    value += batch * positions * (GROUPS * VALUES) + group * VALUES
    area = height.to(tl.int64) * width
    logit_place = logits + ((batch * GROUPS + group) * NODES * height + row) * width + column
    if not GIVEN:
        mask = per_channel(valid) & (channel < CHANNELS)
        q = tl.load(query + per_channel(place * (GROUPS * CHANNELS) + group * CHANNELS) + channel, mask=mask, other=0.0)
        q = q.to(tl.float32) * (scale * LOG2_E)  # softmax in base 2
        peak = tl.full([U, 1], -float("inf"), tl.float32)
        total = tl.zeros([U, 1], tl.float32)
    acc = zeros(U, 1, channel_v)
    for level in range(LEVELS):
        map_height = tl.load(table + 5 * level)
        map_width = tl.load(table + 5 * level + 1)
        start = tl.load(table + 5 * level + 2).to(INDEX)
        anchor_y, anchor_x = carry(cell_y * grid, height, map_height), carry(cell_x * grid, width, map_width)
        key_map = key + start * (GROUPS * CHANNELS) + tl.zeros([U, 1], tl.int32)
        value_map = value + start * (GROUPS * VALUES) + tl.zeros([U, 1], tl.int32)
        key_sh, value_sh = map_width.to(INDEX) * (GROUPS * CHANNELS), map_width.to(INDEX) * (GROUPS * VALUES)
        for n in range(tl.load(table + 5 * level + 3), tl.load(table + 5 * level + 4)):
            left, top, tx, ty = read_node(offset, offset_sc, n, valid, anchor_y, anchor_x, map_height, map_width, GIVEN)
            v = bilinear(
                value_map, value_sh, GROUPS * VALUES, left, top, tx, ty, map_height, map_width, channel_v, VALUES, INDEX
            )
            if GIVEN:
                weight = tl.load(bias_place + n * bias_sc, mask=valid, other=0.0).to(tl.float32)
                acc += per_channel(weight) * v
            else:
                if SHARED:
                    logit = dot(q, v)
                else:
                    logit = dot(q, bilinear(
                        key_map, key_sh, GROUPS * CHANNELS, left, top, tx, ty, map_height, map_width, channel, CHANNELS,
                        INDEX,
                    ))  # fmt: skip
                if BIAS:
                    logit += tl.load(bias_place + n * bias_sc, mask=valid, other=0.0).to(tl.float32) * LOG2_E
                if LOGITS:
                    tl.store(logit_place + n * area, logit, mask=valid)
                new_peak = tl.maximum(peak, logit)
                fade = tl.exp2(peak - new_peak)
                weight = tl.exp2(logit - new_peak)
                total = total * fade + weight
                acc = acc * per_channel(fade) + per_channel(weight) * v
                peak = new_peak
    if not GIVEN:
        acc = acc * per_channel(1.0 / total)
        if LSE:
            at = lse + ((batch * GROUPS + group) * height + row) * width + column
            tl.store(at, (peak + tl.log2(total)) * 0.6931471805599453, mask=valid)
    at = per_channel(place * (GROUPS * VALUES) + group * VALUES) + channel_v
    mask = per_channel(valid) & (channel_v < VALUES)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=mask)
    if RESPONSE:
        tl.store(response + at, acc, mask=mask)


@triton.jit
def add_fixed(base, stride_h, stride_w, x, y, tx, ty, height, width, valid, grad, channel, fixed,
              CHANNELS: tl.constexpr, INDEX: tl.constexpr):  # fmt: skip
    """Add gradients [U, 1, P, C] times ``fixed`` to the corners in a map of int64: the order does not matter."""
    top, low = corner_pointers(base, stride_h, stride_w, x, y, channel, INDEX)
    m0, m1, m2, m3 = corner_masks(x, y, height, width, per_channel(valid) & (channel < CHANNELS))
    tx, ty = per_channel(tx), per_channel(ty)
    upper, lower = (1 - ty) * grad * fixed, ty * grad * fixed
    tl.atomic_add(top, ((1 - tx) * upper).to(tl.int64), mask=m0, sem="relaxed")
    tl.atomic_add(top + stride_w, (tx * upper).to(tl.int64), mask=m1, sem="relaxed")
    tl.atomic_add(low, ((1 - tx) * lower).to(tl.int64), mask=m2, sem="relaxed")
    tl.atomic_add(low + stride_w, (tx * lower).to(tl.int64), mask=m3, sem="relaxed")


@triton.jit
def add_corners(base, stride_h, stride_w, x, y, tx, ty, height, width, valid, grad, channel, fixed,
                CHANNELS: tl.constexpr, INDEX: tl.constexpr, FIXED: tl.constexpr):  # fmt: skip
    if FIXED:
        add_fixed(base, stride_h, stride_w, x, y, tx, ty, height, width, valid, grad, channel, fixed, CHANNELS, INDEX)
    else:
        scatter(base, stride_h, stride_w, x, y, tx, ty, height, width, valid, grad, channel, CHANNELS, INDEX)


@triton.jit(do_not_specialize=[*NUMBERS, *GRADIENT_NUMBERS])
def attend_levels_backward(
    grad, grad_weights, query, key, value, offsets, bias, table, response, lse, grad_query, grad_key, grad_value,
    grad_offsets, grad_bias, fixed, scale, positions, height, width, tiles_y, tiles_x, grid, offset_sb, offset_sc,
    offset_sh, offset_sw, bias_sb, bias_sc, bias_sh, bias_sw, grad_offset_sb, grad_offset_sg, grad_offset_sc,
    grad_offset_sh, grad_offset_sw, grad_bias_sb, grad_bias_sc, grad_bias_sh, grad_bias_sw, LEVELS: tl.constexpr,
    NODES: tl.constexpr, GROUPS: tl.constexpr, OWN: tl.constexpr, SHARED: tl.constexpr, GIVEN: tl.constexpr,
    BIAS: tl.constexpr, WEIGHTS: tl.constexpr, FIXED: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    C: tl.constexpr, CV: tl.constexpr, PARTS: tl.constexpr, U: tl.constexpr, PATCH_W: tl.constexpr,
    INDEX: tl.constexpr,
):  # fmt: skip
    """Write the gradients of query, node positions and bias (or weights), and add those of key and value.

    ``grad_offsets`` has a slot for each query and group. ``grad_key`` and ``grad_value`` are float32 rows; if FIXED,
    int64 in units of 1 / fixed[0] and 1 / fixed[1], whose sums do not depend on the order of additions.
    """
    group, batch, row, column, valid = queries_of(tiles_y, tiles_x, height, width, U, PATCH_W, GROUPS)
    cell_y, cell_x = row // grid, column // grid
    y64, x64 = row.to(tl.int64), column.to(tl.int64)
    offset = offsets + batch * offset_sb + cell_y.to(tl.int64) * offset_sh + cell_x.to(tl.int64) * offset_sw
    if OWN:
        offset += group.to(tl.int64) * 2 * NODES * offset_sc
    offset_sc = offset_sc.to(INDEX)
    bias_sc = bias_sc.to(INDEX)
    bias_place = bias + batch * bias_sb + y64 * bias_sh + x64 * bias_sw + (group * NODES).to(tl.int64) * bias_sc
    grad_offsets += batch * grad_offset_sb + group.to(tl.int64) * grad_offset_sg
    grad_offset = grad_offsets + y64 * grad_offset_sh + x64 * grad_offset_sw
    grad_offset_sc = grad_offset_sc.to(INDEX)
    grad_bias_sc = grad_bias_sc.to(INDEX)
    grad_bias_place = grad_bias + batch * grad_bias_sb + y64 * grad_bias_sh + x64 * grad_bias_sw
    grad_bias_place += (group * NODES).to(tl.int64) * grad_bias_sc
    channel = channels(PARTS, C)
    channel_v = channels(PARTS, CV)
    place = (batch * height + row) * width + column  # [U, 1]
    key_base = batch * positions * (GROUPS * CHANNELS) + group * CHANNELS
    value_base = batch * positions * (GROUPS * VALUES) + group * VALUES
    area = height.to(tl.int64) * width
    mask = per_channel(valid) & (channel < CHANNELS)
    mask_v = per_channel(valid) & (channel_v < VALUES)
    query_at = per_channel(place * (GROUPS * CHANNELS) + group * CHANNELS) + channel
    value_at = per_channel(place * (GROUPS * VALUES) + group * VALUES) + channel_v
    dy = tl.load(grad + value_at, mask=mask_v, other=0.0).to(tl.float32)
    fixed_key, fixed_value = 1.0, 1.0
    if FIXED:
        fixed_key, fixed_value = tl.load(fixed), tl.load(fixed + 1)
    if not GIVEN:
        q = tl.load(query + query_at, mask=mask, other=0.0).to(tl.float32)
        mean = dot(dy, tl.load(response + value_at, mask=mask_v, other=0.0).to(tl.float32))
        log_total = tl.load(lse + ((batch * GROUPS + group) * height + row) * width + column, mask=valid, other=0.0)
        weight_place = grad_weights + ((batch * GROUPS + group) * NODES * height + row) * width + column
        dq = zeros(U, 1, channel)
    for level in range(LEVELS):
        map_height = tl.load(table + 5 * level)
        map_width = tl.load(table + 5 * level + 1)
        start = tl.load(table + 5 * level + 2).to(INDEX)
        anchor_y, anchor_x = carry(cell_y * grid, height, map_height), carry(cell_x * grid, width, map_width)
        key_map = key_base + start * (GROUPS * CHANNELS) + tl.zeros([U, 1], tl.int32)
        value_map = value_base + start * (GROUPS * VALUES) + tl.zeros([U, 1], tl.int32)
        key_sh, value_sh = map_width.to(INDEX) * (GROUPS * CHANNELS), map_width.to(INDEX) * (GROUPS * VALUES)
        for n in range(tl.load(table + 5 * level + 3), tl.load(table + 5 * level + 4)):
            left, top, tx, ty = read_node(offset, offset_sc, n, valid, anchor_y, anchor_x, map_height, map_width, GIVEN)
            v, v_x, v_y = bilinear_with_slopes(
                value + value_map, value_sh, GROUPS * VALUES, left, top, tx, ty, map_height, map_width, channel_v,
                VALUES, INDEX,
            )  # fmt: skip
            d_weight = dot(dy, v)
            if GIVEN:
                weight = tl.load(bias_place + n * bias_sc, mask=valid, other=0.0).to(tl.float32)
                d_x = weight * dot(dy, v_x) * map_width
                d_y = weight * dot(dy, v_y) * map_height
                tl.store(grad_bias_place + n * grad_bias_sc, d_weight.to(grad_bias.dtype.element_ty), mask=valid)
                dv = per_channel(weight) * dy
            else:
                if SHARED:
                    k, k_x, k_y = v, v_x, v_y
                else:
                    k, k_x, k_y = bilinear_with_slopes(
                        key + key_map, key_sh, GROUPS * CHANNELS, left, top, tx, ty, map_height, map_width, channel,
                        CHANNELS, INDEX,
                    )  # fmt: skip
                logit = dot(q, k) * scale
                if BIAS:
                    logit += tl.load(bias_place + n * bias_sc, mask=valid, other=0.0).to(tl.float32)
                weight = tl.where(valid, tl.exp(logit - log_total), 0.0)
                if WEIGHTS:
                    d_weight += tl.load(weight_place + n * area, mask=valid, other=0.0)
                if NODES == 1:  # the softmax of one logit is constant
                    d_logit = weight * 0.0
                else:
                    d_logit = weight * (d_weight - mean)
                if BIAS:
                    tl.store(grad_bias_place + n * grad_bias_sc, d_logit, mask=valid)
                d_logit *= scale
                dq += per_channel(d_logit) * k
                dk = per_channel(d_logit) * q
                dv = per_channel(weight) * dy
                if SHARED:
                    dv += dk
                    d_x, d_y = dot(dv, v_x), dot(dv, v_y)
                else:
                    d_x = dot(dk, k_x) + dot(dv, v_x)
                    d_y = dot(dk, k_y) + dot(dv, v_y)
                    add_corners(
                        grad_key + key_map, key_sh, GROUPS * CHANNELS, left, top, tx, ty, map_height, map_width, valid,
                        dk, channel, fixed_key, CHANNELS, INDEX, FIXED,
                    )  # fmt: skip
            add_corners(
                grad_value + value_map, value_sh, GROUPS * VALUES, left, top, tx, ty, map_height, map_width, valid, dv,
                channel_v, fixed_value, VALUES, INDEX, FIXED,
            )  # fmt: skip
            at = grad_offset + 2 * n * grad_offset_sc
            tl.store(at, d_x.to(grad_offsets.dtype.element_ty), mask=valid)
            tl.store(at + grad_offset_sc, d_y.to(grad_offsets.dtype.element_ty), mask=valid)
    if not GIVEN:
        tl.store(grad_query + query_at, dq.to(grad_query.dtype.element_ty), mask=mask)
