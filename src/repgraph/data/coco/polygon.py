"""Polygons to masks, pixel for pixel as COCO's own tools make them.

The rule: corners are rounded to a grid five times as fine as the pixels. Each edge is a digital line on that grid, with
one point for every step along its longer direction. Where the outline goes from one fine column to the next between the
two that lie at the centre of a pixel column, it crosses that column; the crossing is at the upper of the two points,
and the first pixel whose centre is not above it changes sides. A pixel is inside if the crossings at or above it in its
column are odd in number. Other rasterisers differ from this along the edges, which changes areas and scores.
"""

from collections.abc import Iterable

import numpy as np

SCALE = 5
FAR = 1e6  # pixels; a corner beyond is a mistake in the file, and its outline would not fit into memory


def rasterise(polygons: Iterable[np.ndarray], height: int, width: int) -> np.ndarray:
    """The union of polygons as a mask (H, W), uint8 with 0 and 1.

    Each polygon is x, y, x, y, ... of its corners, in pixels, whose centres are at 0.5.

    >>> rasterise([np.array([1, 0, 3, 0, 3, 2, 1, 2])], 3, 4)
    array([[0, 1, 1, 0],
           [0, 1, 1, 0],
           [0, 0, 0, 0]], dtype=uint8)
    """
    pixels = np.zeros(width * height, dtype=np.uint8)  # column after column
    for polygon in polygons:
        pixels |= _one(np.asarray(polygon, dtype=np.float64), height, width)
    return pixels.reshape(width, height).T


def _one(polygon: np.ndarray, height: int, width: int) -> np.ndarray:
    """The pixels of one polygon, column after column."""
    u, v = _outline(polygon)
    step = np.flatnonzero(u[1:] != u[:-1])
    column = np.minimum(u[step + 1], u[step])
    row = np.minimum(v[step + 1], v[step])
    centre = SCALE // 2
    crossed = (column % SCALE == centre) & (column >= 0) & (column < SCALE * width)
    x = column[crossed] // SCALE
    y = np.clip((row[crossed] + centre) // SCALE, 0, height)
    # A crossing at the very bottom (y = height) is the start of the next column; two at one place undo each other.
    places, counts = np.unique(x * height + y, return_counts=True)
    ends = np.append(places[counts % 2 == 1], height * width)
    return np.repeat((np.arange(len(ends)) % 2).astype(np.uint8), np.diff(ends, prepend=0))


def _outline(polygon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points of the outline on the fine grid, in order; a corner is there once for each of its edges."""
    corners = np.trunc(SCALE * polygon.reshape(-1, 2) + 0.5).astype(np.int64)
    ends = np.roll(corners, -1, axis=0)
    length = np.abs(ends - corners)  # [edges, 2]
    flat = length[:, 0] >= length[:, 1]
    steps = length.max(axis=1)
    along = np.where(flat[:, None], corners, corners[:, ::-1])  # (long direction, other direction)
    until = np.where(flat[:, None], ends, ends[:, ::-1])
    back = along[:, 0] > until[:, 0]  # lines are always computed in the growing direction, for the same points
    low, high = np.where(back[:, None], until, along), np.where(back[:, None], along, until)
    slope = (high[:, 1] - low[:, 1]) / np.maximum(steps, 1)

    each = np.repeat(np.arange(len(steps)), steps + 1)
    place = np.arange(len(each)) - np.repeat(np.cumsum(steps + 1) - (steps + 1), steps + 1)
    place = np.where(back[each], steps[each] - place, place)
    major = low[each, 0] + place
    minor = np.trunc(low[each, 1] + slope[each] * place + 0.5).astype(np.int64)
    return np.where(flat[each], major, minor), np.where(flat[each], minor, major)
