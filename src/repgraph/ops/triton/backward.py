"""Gradients of query and offsets, and optionally of key and value, by atomic additions to the corners of nodes."""

import triton
import triton.language as tl

from repgraph.ops.triton.forward import SIZES, STRIDES
from repgraph.ops.triton.geometry import (
    channels,
    corner_masks,
    corner_pointers,
    corners,
    dot,
    over_queries,
    patch,
    per_channel,
    queries,
    read_corners,
    read_offset,
    units,
    zeros,
)

MORE_STRIDES = [f"{t}_{axis}" for t in ("grad", "grad_query") for axis in ("sb", "sh", "sw")]


@triton.jit
def bilinear_with_slopes(
    base, stride_h, stride_w, x, y, tx, ty, height, width, channel, CHANNELS: tl.constexpr, INDEX: tl.constexpr
):  # fmt: skip
    """Return nodes [U, 1, P, C] and their derivatives along x and y."""
    a, b, c, d = read_corners(base, stride_h, stride_w, x, y, height, width, channel, CHANNELS, INDEX)
    tx, ty = per_channel(tx), per_channel(ty)
    slope_top, slope_low = b - a, d - c
    top = a + tx * slope_top
    slope_y = c + tx * slope_low - top
    return top + ty * slope_y, slope_top + ty * (slope_low - slope_top), slope_y


@triton.jit
def scatter(
    base, stride_h, stride_w, x, y, tx, ty, height, width, valid, grad, channel,
    CHANNELS: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Add gradients [U, 1, P, C] of nodes to their corners in a float32 map."""
    top, low = corner_pointers(base, stride_h, stride_w, x, y, channel, INDEX)
    stored = per_channel(valid) & (channel < CHANNELS)
    m0, m1, m2, m3 = corner_masks(x, y, height, width, stored)
    tx, ty = per_channel(tx), per_channel(ty)
    upper, lower = (1 - ty) * grad, ty * grad
    tl.atomic_add(top, (1 - tx) * upper, mask=m0, sem="relaxed")
    tl.atomic_add(top + stride_w, tx * upper, mask=m1, sem="relaxed")
    tl.atomic_add(low, (1 - tx) * lower, mask=m2, sem="relaxed")
    tl.atomic_add(low + stride_w, tx * lower, mask=m3, sem="relaxed")


@triton.jit(do_not_specialize=[*SIZES, *STRIDES, *MORE_STRIDES, "scale", "part"])
def attend_backward(
    grad, grad_weights, query, key, value, offsets, y, lse, grad_query, grad_key, grad_value, grad_offsets, pair_logits,
    pair_weights, scale, height, width, rows, columns, tiles_y, tiles_x, grid, cell_h, cell_w, query_sb, query_sh,
    query_sw, key_sb, key_sh, key_sw, value_sb, value_sh, value_sw, y_sb, y_sh, y_sw, offset_sb, offset_sc, offset_sh,
    offset_sw, grad_sb, grad_sh, grad_sw, grad_query_sb, grad_query_sh, grad_query_sw, part, ALIGN: tl.constexpr,
    NODES: tl.constexpr, GROUPS: tl.constexpr, SHARED: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    C: tl.constexpr, CV: tl.constexpr, PARTS: tl.constexpr, U: tl.constexpr, Q: tl.constexpr, PATCH_H: tl.constexpr,
    PATCH_W: tl.constexpr, WEIGHTS: tl.constexpr, SCATTER: tl.constexpr, ADD_OFFSETS: tl.constexpr,
    CENTRE: tl.constexpr, INDEX: tl.constexpr, ONE: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """Write the gradients for a patch of cells in one pass over the nodes, with the softmax from ``lse`` and ``y``.

    SCATTER: add to the dense channels-last float32 maps ``grad_key`` and ``grad_value``. Otherwise write the gradients
    of the logits, and the weights, to ``pair_logits`` and ``pair_weights`` (B, H, W, S, G). ADD_OFFSETS: add all parts
    of ``grad_offsets`` (parts, B, 2S, Hc, Wc), groups and shares of a cell's queries, into one.

    The gradients of a query's logits sum to zero, except for the rounding of ``y`` to half precision, which keys with a
    large mean amplify. CENTRE subtracts the remainder from the gradient of the query and from the pairs.
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
    grad += batch * grad_sb * ALIGN
    grad_query += batch * grad_query_sb * ALIGN
    offsets += batch * offset_sb
    key_sh, key_sw = key_sh.to(INDEX) * ALIGN, key_sw.to(INDEX) * ALIGN
    value_sh, value_sw = value_sh.to(INDEX) * ALIGN, value_sw.to(INDEX) * ALIGN
    if DENSE:  # known at compile time
        key_sw, value_sw = GROUPS * CHANNELS, GROUPS * VALUES
    offset_sc = offset_sc.to(INDEX)
    area = height.to(INDEX) * width
    cells = rows.to(INDEX) * columns
    dense, dense_v = GROUPS * CHANNELS, GROUPS * VALUES
    grad_key += batch * height * width * dense
    grad_value += batch * height * width * dense_v

    for step in range(0, PATCH_H * PATCH_W * GROUPS, U):
        cell_y, cell_x, group, valid = units(
            step + tl.arange(0, U)[:, None], tile_y, tile_x, rows, columns, PATCH_H, PATCH_W, GROUPS
        )
        query_y, query_x, asked = queries(index, cell_y, cell_x, valid, grid, cell_h, cell_w, height, width)
        y64, x64 = query_y.to(tl.int64), query_x.to(tl.int64)
        mask = per_channel(asked) & (channel < CHANNELS)
        mask_v = per_channel(asked) & (channel_v < VALUES)
        row = y64 * (query_sh * ALIGN) + x64 * (query_sw * ALIGN) + group * CHANNELS
        q = tl.load(query + per_channel(row) + channel, mask=mask, other=0.0).to(tl.float32)
        row = y64 * (grad_sh * ALIGN) + x64 * (grad_sw * ALIGN) + group * VALUES
        dy = tl.load(grad + per_channel(row) + channel_v, mask=mask_v, other=0.0).to(tl.float32)
        row = y64 * (y_sh * ALIGN) + x64 * (y_sw * ALIGN) + group * VALUES
        response = tl.load(y + per_channel(row) + channel_v, mask=mask_v, other=0.0).to(tl.float32)
        mean = dot(dy, response)  # [U, Q]: mean gradient of the weights
        place = ((batch * GROUPS + group) * height + query_y) * width + query_x
        log_total = tl.load(lse + place, mask=asked, other=0.0)
        weight_place = ((batch * GROUPS + group) * NODES * height + query_y) * width + query_x
        pair = ((batch * height + query_y) * width + query_x) * NODES * GROUPS + group

        anchor_x, anchor_y = (cell_x * grid).to(tl.float32), (cell_y * grid).to(tl.float32)
        offset = offsets + cell_y.to(tl.int64) * offset_sh + cell_x.to(tl.int64) * offset_sw  # [U, 1]
        offset_place = (batch * 2 * NODES * rows + cell_y) * columns + cell_x
        if not ADD_OFFSETS:
            offset_place += (share * GROUPS + group).to(tl.int64) * part
        key_base = key + group * CHANNELS
        value_base = value + group * VALUES
        dq = zeros(U, Q, channel)
        if CENTRE:
            surplus = tl.zeros([U, Q], tl.float32)
            if not SHARED:
                mean_key = zeros(U, Q, channel)
        for n in range(NODES):
            offset_x, offset_y = read_offset(offset, offset_sc, valid, n, NODES)
            left, tx = corners(anchor_x + offset_x, width)
            top, ty = corners(anchor_y + offset_y, height)
            k, k_x, k_y = bilinear_with_slopes(
                key_base, key_sh, key_sw, left, top, tx, ty, height, width, channel, CHANNELS, INDEX
            )
            if SHARED:
                v, v_x, v_y = k, k_x, k_y
            else:
                v, v_x, v_y = bilinear_with_slopes(
                    value_base, value_sh, value_sw, left, top, tx, ty, height, width, channel_v, VALUES, INDEX
                )
            weight = tl.where(asked, tl.exp(dot(q, k) * scale - log_total), 0.0)  # [U, Q]
            d_weight = dot(dy, v)
            if WEIGHTS:
                d_weight += tl.load(grad_weights + weight_place + n * area, mask=asked, other=0.0)
            if NODES == 1:  # the softmax of one logit is constant
                weight = asked.to(tl.float32)
                d_logit = weight * 0.0
            else:
                d_logit = weight * (d_weight - mean) * scale
            dq += per_channel(d_logit) * k
            if CENTRE:
                surplus += d_logit
                if not SHARED:
                    mean_key += per_channel(weight) * k
            dk = over_queries(per_channel(d_logit) * q, Q)  # [U, 1, P, C]
            dv = over_queries(per_channel(weight) * dy, Q)
            if SHARED:
                dk += dv
                d_x, d_y = dot(dk, k_x), dot(dk, k_y)  # [U, 1]
            else:
                d_x = dot(dk, k_x) + dot(dv, v_x)
                d_y = dot(dk, k_y) + dot(dv, v_y)

            at = grad_offsets + offset_place + 2 * n * cells
            if ADD_OFFSETS:
                tl.atomic_add(at, d_x, mask=valid, sem="relaxed")
                tl.atomic_add(at + cells, d_y, mask=valid, sem="relaxed")
            else:
                tl.store(at, d_x, mask=valid)
                tl.store(at + cells, d_y, mask=valid)
            if SCATTER:
                scatter(
                    grad_key + group * CHANNELS, width * dense, dense, left, top, tx, ty, height, width, valid, dk,
                    channel, CHANNELS, INDEX,
                )  # fmt: skip
                if not SHARED:
                    scatter(
                        grad_value + group * VALUES, width * dense_v, dense_v, left, top, tx, ty, height, width, valid,
                        dv, channel_v, VALUES, INDEX,
                    )  # fmt: skip
            else:
                tl.store(pair_logits + pair + n * GROUPS, d_logit, mask=asked)
                tl.store(pair_weights + pair + n * GROUPS, weight, mask=asked)

        if CENTRE:
            if SHARED:
                dq -= per_channel(surplus) * response
            else:
                dq -= per_channel(surplus) * mean_key
            if not SCATTER:
                tl.debug_barrier()  # other threads may have written what is read here
                for n in range(NODES):
                    at = pair + n * GROUPS
                    d_logit = tl.load(pair_logits + at, mask=asked, other=0.0)
                    weight = tl.load(pair_weights + at, mask=asked, other=0.0)
                    tl.store(pair_logits + at, d_logit - weight * surplus, mask=asked)
        row = y64 * (grad_query_sh * ALIGN) + x64 * (grad_query_sw * ALIGN) + group * CHANNELS
        tl.store(grad_query + per_channel(row) + channel, dq.to(grad_query.dtype.element_ty), mask=mask)
