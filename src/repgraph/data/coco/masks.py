"""Polygons and run-length encodings (RLE), with pycocotools, which can crash the process if they are malformed.

An RLE is a dict ``{"size": [H, W], "counts": str}``: lengths of runs of zeros and ones, column by column, compressed.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

RLE = dict[str, Any]
MAX_OUTLINE = 1e7  # pixels; pycocotools allocates 40 bytes for each


def tools() -> Any:
    from pycocotools import mask  # not needed for segmentation

    return mask


def encode(mask: np.ndarray) -> RLE:
    """Encode a mask (H, W); all values except 0 count."""
    rle = tools().encode(np.asfortranarray(mask != 0, dtype=np.uint8))
    return {"size": list(mask.shape), "counts": rle["counts"].decode()}


def decode(rle: RLE) -> np.ndarray:
    """Decode a mask to uint8 (H, W) with 0 and 1."""
    return tools().decode(rle)


def draw_polygons(polygons: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
    """Return the mask of the union of polygons, each x, y, x, y, ... of its corners; see :func:`check_polygons`."""
    return decode(tools().merge(tools().frPyObjects(list(polygons), height, width)))


def check_polygons(polygons: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """Return the polygons with three or more corners; raise a ValueError if one cannot be drawn."""
    valid = []
    for polygon in polygons:
        corners = np.array(polygon, dtype=np.float64)
        if len(corners) % 2:
            raise ValueError("a polygon is not a list of numbers x, y, x, y, ...")
        path = np.concatenate([(0, 0), corners, corners[:2]]).reshape(-1, 2)  # from the origin, to limit x and y too
        with np.errstate(over="ignore"):
            length = np.abs(np.diff(path, axis=0)).max(axis=1).sum()
        if length > MAX_OUTLINE:
            raise ValueError(f"the outline of a polygon is longer than {MAX_OUTLINE:g} pixels")
        if len(corners) >= 6:
            valid.append(corners)
    if not valid:
        raise ValueError("no polygon has three corners")
    return valid


def check_counts(counts: str | list[int], height: int, width: int) -> str:
    """Return counts, a string or a list, as a string; raise a ValueError if they do not fit a mask of this size."""
    runs = _decompress(counts) if isinstance(counts, str) else counts
    if min(runs, default=0) < 0 or sum(runs) != height * width:
        raise ValueError(f"its counts are not runs of {width} x {height} pixels")
    return tools().frPyObjects({"size": [height, width], "counts": runs}, height, width)["counts"].decode()


def _decompress(text: str) -> list[int]:
    # A character stores 6 bits, offset by "0": 5 bits of a number, lowest first, and a bit that is set if more follow.
    # The highest of the last 5 bits is the sign. From the fourth on, numbers are differences from the run two before.
    if not re.fullmatch("([P-o]{0,6}[0-O])*", text):  # up to 7 characters for a number
        raise ValueError("its counts are malformed or truncated")
    runs: list[int] = []
    number = shift = 0
    for character in text:
        bits = ord(character) - ord("0")
        number |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:
                number -= 1 << shift
            runs.append(number + (runs[-2] if len(runs) > 2 else 0))
            number = shift = 0
    return runs
