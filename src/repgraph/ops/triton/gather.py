"""Gradients of key and value without atomic additions: every position gathers from the queries that read it.

A *pair* is a query and one of its nodes, numbered query * NODES + node. Pairs are sorted by their *bin*, the top-left
corner of the node; bins are numbered over the map with a margin of one position on each side. A *tile* of 2 x 2
positions sums the pairs of the 3 x 3 bins that reach it, which are three runs of consecutive pairs. They are cut into
*pieces* of at most PIECE, because a position that many queries read would delay the rest. Pieces beyond the first
are the tile's *extras*, which are numbered over all tiles in any order. ``extras`` has the number of each tile's first
extra (-1: none), followed by the tile of every extra; the last of ``counts`` is their number.
"""

import triton
import triton.language as tl

from repgraph.ops.triton.geometry import channels, corners, over_units, per_channel, zeros

SIZES = ["pairs", "height", "width", "grid", "offset_sb", "offset_sc", "offset_sh", "offset_sw"]


@triton.jit
def locate(pair, mask, offsets, height, width, grid, offset_sb, offset_sc, offset_sh, offset_sw, NODES: tl.constexpr):
    """Return the bin (-1: the node is off the map) and the fractions of each pair's node."""
    node = pair % NODES
    query = pair // NODES
    cell_x = query % width // grid
    row = query // width
    cell_y = row % height // grid
    batch = (row // height).to(tl.int64)
    place = batch * offset_sb + (2 * node).to(tl.int64) * offset_sc
    place += cell_y.to(tl.int64) * offset_sh + cell_x.to(tl.int64) * offset_sw
    dx = tl.load(offsets + place, mask=mask, other=0.0).to(tl.float32)
    dy = tl.load(offsets + place + offset_sc, mask=mask, other=0.0).to(tl.float32)
    x, tx = corners((cell_x * grid).to(tl.float32) + dx, width)
    y, ty = corners((cell_y * grid).to(tl.float32) + dy, height)
    found = mask & (x >= -1) & (x < width) & (y >= -1) & (y < height)
    bins = (batch * (height + 2) + y + 1) * (width + 2) + x + 1
    return tl.where(found, bins, -1), tx, ty


@triton.jit(do_not_specialize=SIZES)
def count(
    offsets, counts, ranks, pairs, height, width, grid, offset_sb, offset_sc, offset_sh, offset_sw,
    NODES: tl.constexpr, BLOCK: tl.constexpr, BINS: tl.constexpr,
):  # fmt: skip
    """Count the pairs of each bin, and write every pair's rank in it, which varies from run to run (BINS: its bin).

    ``counts`` begins with a zero, so that its cumulative sum has the start of each bin.
    """
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pair < pairs
    place, _, _ = locate(pair, mask, offsets, height, width, grid, offset_sb, offset_sc, offset_sh, offset_sw, NODES)
    rank = tl.atomic_add(counts + 1 + place, 1, mask=place >= 0, sem="relaxed")
    if BINS:
        tl.store(ranks + pair, tl.where(place >= 0, place, 9223372036854775807), mask=mask)
    else:
        tl.store(ranks + pair, rank, mask=mask)


@triton.jit
def tile_bin(tile, tiles_y, tiles_x, height, width):
    """Return the first bin of a tile's first run, the top-left position (y, x) of the tile, and its image."""
    x = tile % tiles_x * 2
    y = tile // tiles_x % tiles_y * 2
    batch = (tile // tiles_x // tiles_y).to(tl.int64)
    return (batch * (height + 2) + y) * (width + 2) + x, y, x, batch


@triton.jit
def number_of_extras(counts, tiles, tiles_y, tiles_x, height, width):
    """Return a pointer to the number of extras, which follows the count of the last bin."""
    bins, _, _, _ = tile_bin(tiles, tiles_y, tiles_x, height, width)
    return counts + 1 + bins


@triton.jit
def extras_of(starts, tile, mask, tiles_y, tiles_x, height, width, PIECE: tl.constexpr):
    """Return the number of extras of tiles. A first piece exists even if it is empty, to write its zeros."""
    first, _, _, _ = tile_bin(tile, tiles_y, tiles_x, height, width)
    total = tile * 0
    for run in tl.static_range(3):
        at = starts + first + run * (width + 2)
        total += tl.load(at + 3, mask=mask, other=0) - tl.load(at, mask=mask, other=0)
    return tl.maximum((total + PIECE - 1) // PIECE, 1) - 1


@triton.jit(do_not_specialize=[*SIZES, "tiles", "tiles_y", "tiles_x"])
def fill(
    offsets, starts, order, records, fractions, counts, extras, pairs, height, width, grid, offset_sb, offset_sc,
    offset_sh, offset_sw, tiles, tiles_y, tiles_x, NODES: tl.constexpr, BLOCK: tl.constexpr, ORDERED: tl.constexpr,
    PIECE: tl.constexpr,
):  # fmt: skip
    """Write each pair's record (pair and tx, 32 bits each) and ty to its place: by rank, or if ORDERED by ``order``.

    Write the extras of tiles, of which there are at most as many as pairs.
    """
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < pairs
    if ORDERED:
        pair = tl.load(order + index, mask=mask, other=0).to(tl.int32)
    else:
        pair = index
    place, tx, ty = locate(pair, mask, offsets, height, width, grid, offset_sb, offset_sc, offset_sh, offset_sw, NODES)
    found = place >= 0
    if ORDERED:
        at = index
    else:
        at = tl.load(starts + place, mask=found, other=0) + tl.load(order + index, mask=found, other=0)
    record = (pair.to(tl.int64) << 32) | tx.to(tl.int32, bitcast=True).to(tl.int64)
    tl.store(records + at, record, mask=found)
    tl.store(fractions + at, ty, mask=found)

    if tl.program_id(0) * BLOCK < tiles:
        own = index < tiles
        extra = extras_of(starts, index, own, tiles_y, tiles_x, height, width, PIECE)
        total = number_of_extras(counts, tiles, tiles_y, tiles_x, height, width)
        first = tl.atomic_add(total + index * 0, extra, mask=extra > 0, sem="relaxed")
        tl.store(extras + index, tl.where(extra > 0, first, -1), mask=own)
        for i in range(tl.max(extra, 0)):
            tl.store(extras + tiles + first + i, index, mask=i < extra)


@triton.jit
def coefficient(table, pair, mask, channel, GROUPS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return entries [E, 1, 1, 1] or, with groups, [E, 1, P, C] of a (pairs, G) table."""
    if GROUPS == 1:
        return per_channel(tl.load(table + pair, mask=mask, other=0.0))
    else:
        place = per_channel(pair).to(tl.int64) * GROUPS + channel // CHANNELS
        return tl.load(table + place, mask=per_channel(mask), other=0.0)


@triton.jit
def shares(column, t):
    """Return the weights of a tile's two positions along an axis, for nodes in bin ``column`` with fraction ``t``."""
    near = tl.where(column == 0, t, tl.where(column == 1, 1 - t, 0.0))
    far = tl.where(column == 1, t, tl.where(column == 2, 1 - t, 0.0))
    return per_channel(near), per_channel(far)


@triton.jit(do_not_specialize=["tiles", "tiles_y", "tiles_x", "height", "width", "query_stride", "grad_stride"])
def gather(
    query, grad, pair_logits, pair_weights, records, fractions, starts, counts, extras, grad_key, grad_value,
    partial_key, partial_value, tiles, tiles_y, tiles_x, height, width, query_stride, grad_stride, ALIGN: tl.constexpr,
    NODES: tl.constexpr, GROUPS: tl.constexpr, SHARED: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr,
    C: tl.constexpr, CV: tl.constexpr, PARTS: tl.constexpr, E: tl.constexpr, PIECE: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Sum the pairs of one piece: into the gradients if it is its tile's only piece, else into ``partial``.

    ADD: add to ``grad_key``, which holds the gradient of the query.

    The first programs are the tiles' first pieces, the others are extras. Strides are between positions,
    divided by ALIGN. Channels are padded to PARTS times C or CV.
    """
    tile = tl.program_id(0).to(tl.int64)
    piece = tile * 0
    if tile >= tiles:  # an extra; the grid is an upper bound
        extra = tile - tiles
        exists = extra < tl.load(number_of_extras(counts, tiles, tiles_y, tiles_x, height, width))
        tile = tl.load(extras + tiles + extra, mask=exists, other=tiles).to(tl.int64)
        piece = 1 + extra - tl.load(extras + tile, mask=exists, other=0)
    if tile < tiles:
        first_bin, y, x, batch = tile_bin(tile, tiles_y, tiles_x, height, width)
        top = starts + first_bin
        middle = top + width + 2
        low = middle + width + 2
        top_0, top_1, top_2 = tl.load(top), tl.load(top + 1), tl.load(top + 2)
        middle_0, middle_1, middle_2 = tl.load(middle), tl.load(middle + 1), tl.load(middle + 2)
        low_0, low_1, low_2 = tl.load(low), tl.load(low + 1), tl.load(low + 2)
        top_count = tl.load(top + 3) - top_0
        two_count = top_count + tl.load(middle + 3) - middle_0
        all_count = two_count + tl.load(low + 3) - low_0
        alone = all_count <= PIECE
        first = piece * PIECE
        last = tl.minimum(first + PIECE, all_count)

        channel = channels(PARTS, C)
        channel_v = channels(PARTS, CV)
        k_0, k_1, k_2, k_3 = zeros(E, 1, channel), zeros(E, 1, channel), zeros(E, 1, channel), zeros(E, 1, channel)
        v_0, v_1 = zeros(E, 1, channel_v), zeros(E, 1, channel_v)
        v_2, v_3 = zeros(E, 1, channel_v), zeros(E, 1, channel_v)
        for start in range(first, last, E):
            index = start + tl.arange(0, E)[:, None]
            mask = index < last
            in_top, in_low = index < top_count, index >= two_count
            run = tl.where(in_top, 0, tl.where(in_low, 2, 1))
            at = index + tl.where(in_top, top_0, tl.where(in_low, low_0 - two_count, middle_0 - top_count))
            second = tl.where(in_top, top_1, tl.where(in_low, low_1, middle_1))
            third = tl.where(in_top, top_2, tl.where(in_low, low_2, middle_2))
            column = (at >= second).to(tl.int32) + (at >= third).to(tl.int32)
            record = tl.load(records + at, mask=mask, other=0)
            ty = tl.load(fractions + at, mask=mask, other=0.0)
            pair = (record >> 32).to(tl.int32)
            near_x, far_x = shares(column, record.to(tl.int32).to(tl.float32, bitcast=True))
            near_y, far_y = shares(run, ty)
            asker = (pair // NODES).to(tl.int64)
            d_logit = coefficient(pair_logits, pair, mask, channel, GROUPS, CHANNELS)
            weight = coefficient(pair_weights, pair, mask, channel_v, GROUPS, VALUES)
            place = query + per_channel(asker * query_stride * ALIGN) + channel
            q = tl.load(place, mask=per_channel(mask) & (channel < GROUPS * CHANNELS), other=0.0)
            place = grad + per_channel(asker * grad_stride * ALIGN) + channel_v
            dy = tl.load(place, mask=per_channel(mask) & (channel_v < GROUPS * VALUES), other=0.0)
            dk = d_logit * q.to(tl.float32)
            dv = weight * dy.to(tl.float32)
            if SHARED:
                dk += dv
            k_0 += near_y * near_x * dk
            k_1 += near_y * far_x * dk
            k_2 += far_y * near_x * dk
            k_3 += far_y * far_x * dk
            if not SHARED:
                v_0 += near_y * near_x * dv
                v_1 += near_y * far_x * dv
                v_2 += far_y * near_x * dv
                v_3 += far_y * far_x * dv

        pixel = (batch * height + y) * width + x
        row = partial_row(tl.load(extras + tile).to(tl.int64), piece)
        wide, high = x + 1 < width, y + 1 < height
        total: tl.constexpr = GROUPS * CHANNELS
        store(grad_key, partial_key, k_0, pixel, True, row, alone, channel, total, ADD)
        store(grad_key, partial_key, k_1, pixel + 1, wide, row + 1, alone, channel, total, ADD)
        store(grad_key, partial_key, k_2, pixel + width, high, row + 2, alone, channel, total, ADD)
        store(grad_key, partial_key, k_3, pixel + width + 1, wide & high, row + 3, alone, channel, total, ADD)
        if not SHARED:
            values: tl.constexpr = GROUPS * VALUES
            store(grad_value, partial_value, v_0, pixel, True, row, alone, channel_v, values, False)
            store(grad_value, partial_value, v_1, pixel + 1, wide, row + 1, alone, channel_v, values, False)
            store(grad_value, partial_value, v_2, pixel + width, high, row + 2, alone, channel_v, values, False)
            store(
                grad_value, partial_value, v_3, pixel + width + 1, wide & high, row + 3, alone, channel_v, values, False
            )


@triton.jit
def partial_row(before, piece):
    """Return the first of a piece's four rows among the partial sums, for a tile whose first extra is ``before``."""
    return 4 * (2 * before + piece)  # twice, for first pieces as well; tiles with one piece need none


@triton.jit
def store(whole, partial, total, pixel, exists, row, alone, channel, TOTAL: tl.constexpr, ADD: tl.constexpr):
    """Store one position's sum: to ``whole`` (if the position exists; ADD: add it), or to ``partial``."""
    total = over_units(total)
    mask = channel < TOTAL
    if alone:
        if exists:
            at = whole + pixel * TOTAL + channel
            if ADD:
                total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
            tl.store(at, total.to(whole.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + row * TOTAL + channel, total, mask=mask)


@triton.jit(do_not_specialize=["tiles", "tiles_y", "tiles_x", "height", "width"])
def join(
    partial, whole, starts, extras, tiles, tiles_y, tiles_x, height, width, TOTAL: tl.constexpr, C: tl.constexpr,
    BLOCK: tl.constexpr, PIECE: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Sum the pieces of tiles that have several, which are few."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    last = tl.minimum(start + BLOCK, tiles)
    index = start + tl.arange(0, BLOCK)
    if tl.max(tl.load(extras + index, mask=index < last, other=-1), 0) >= 0:
        channel = tl.arange(0, C)[None, :]
        corner = tl.arange(0, 4)[:, None]
        for tile in range(start, last):
            before = tl.load(extras + tile)
            if before >= 0:
                total = tl.zeros([4, C], tl.float32)
                for piece in range(
                    0, extras_of(starts, tile, tile < tiles, tiles_y, tiles_x, height, width, PIECE) + 1
                ):
                    row = partial_row(before.to(tl.int64), piece) + corner
                    total += tl.load(partial + row * TOTAL + channel, mask=channel < TOTAL, other=0.0)
                _, y, x, batch = tile_bin(tile, tiles_y, tiles_x, height, width)
                y += corner // 2
                x += corner % 2
                at = whole + ((batch * height + y) * width + x) * TOTAL + channel
                mask = (y < height) & (x < width) & (channel < TOTAL)
                if ADD:
                    total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
                tl.store(at, total.to(whole.dtype.element_ty), mask=mask)
