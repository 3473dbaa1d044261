"""Tiles of maps in and out of scratch, where every position is one row of channels.

Row ``column * rows + row`` of the scratch holds a tile's position (row, column): down the columns first, so
that neighbours in the scratch are neighbours on the map in both directions. Scratch rows are ``pitch`` apart.
"""

from repgraph.ops.cpu.jit import helper, inline
from repgraph.ops.cpu.memory import BLOCK, load, store, transpose_block


@helper
def read_tile(source, base, strides, rows, columns, channels, target, at, pitch):
    """Copy a tile that begins at ``base`` of a map with strides (c, h, w) to the scratch rows from ``at``."""
    sc, sh, sw = strides
    if sc == 1:
        for column in range(columns):
            for row in range(rows):
                start = base + row * sh + column * sw
                end = at + (column * rows + row) * pitch
                for c in range(channels):
                    store(target, end + c, load(source, start + c))
        return
    blocks = sw == 1 and columns >= BLOCK and channels >= BLOCK
    for row in range(rows):
        start = base + row * sh
        end = at + row * pitch
        if blocks:
            for i in range(0, columns, BLOCK):
                column = min(i, columns - BLOCK)  # the last block may overlap the one before it
                for j in range(0, channels, BLOCK):
                    c = min(j, channels - BLOCK)
                    transpose_block(
                        source,
                        start + column + c * sc,
                        sc,
                        target,
                        end + column * rows * pitch + c,
                        rows * pitch,
                    )
        else:
            for c in range(channels):
                for column in range(columns):
                    store(target, end + column * rows * pitch + c, load(source, start + column * sw + c * sc))


@helper
def write_tile(target, base, strides, rows, columns, channels, source, at, pitch):
    """The way back: scratch rows from ``at`` to the tile that begins at ``base`` of a map."""
    sc, sh, sw = strides
    if sc == 1:
        for column in range(columns):
            for row in range(rows):
                end = base + row * sh + column * sw
                start = at + (column * rows + row) * pitch
                for c in range(channels):
                    store(target, end + c, load(source, start + c))
        return
    blocks = sw == 1 and columns >= BLOCK and channels >= BLOCK
    for row in range(rows):
        end = base + row * sh
        start = at + row * pitch
        if blocks:
            for i in range(0, columns, BLOCK):
                column = min(i, columns - BLOCK)
                for j in range(0, channels, BLOCK):
                    c = min(j, channels - BLOCK)
                    transpose_block(
                        source,
                        start + column * rows * pitch + c,
                        rows * pitch,
                        target,
                        end + column + c * sc,
                        sc,
                    )
        else:
            for c in range(channels):
                for column in range(columns):
                    store(target, end + column * sw + c * sc, load(source, start + column * rows * pitch + c))


@inline
def even_columns(width, tile):
    """Columns of a tile such that tiles are about alike and none has more than ``2 * tile``."""
    count = max(1, width // tile)
    return (width + count - 1) // count
