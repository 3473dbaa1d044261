"""One object of an image, as an annotation file describes it, and its mask."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repgraph.data.coco import polygon, rle

# What can be wrong with an annotation, for which its object is left out.
NO_MASK, BAD_MASK = "objects without a mask", "objects whose mask cannot be read"
SIZE, OUTSIDE = "objects whose mask has another size than the image", "objects whose mask has no pixel in the image"
BAD_BOX, NO_BOX = "objects whose box cannot be read", "objects whose box has no area in the image"
BAD_CROWD = "objects whose iscrowd cannot be read"

LEAST = 1e-3  # pixels of a box's side: what is less may be nothing after it is flipped or scaled in float32

Outline = tuple[np.ndarray, ...] | np.ndarray | str  # polygons; runs; packed runs


class Unusable(Exception):
    """An object that cannot be used: the kind of problem, and what exactly."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail


@dataclass(frozen=True, slots=True)
class Object:
    """An object: ``label`` from 1 to K; ``box`` is x, y, width and height as in the file; ``outline`` its mask."""

    id: int
    label: int
    box: tuple[float, float, float, float]
    area: float
    crowd: bool
    outline: Outline

    def mask(self, height: int, width: int) -> np.ndarray:
        """The mask (H, W) in an image of that size, uint8 with 0 and 1."""
        if isinstance(self.outline, tuple):
            return polygon.rasterise(self.outline, height, width)
        return rle.decode(_runs(self.outline), height, width)

    def clipped(self, height: int, width: int) -> tuple[float, float, float, float]:
        """The part of the box that is in the image: left, top, right, bottom."""
        x, y, w, h = self.box
        return max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))

    def segmentation(self, height: int, width: int) -> Any:
        """The mask as annotation files have it."""
        if isinstance(self.outline, tuple):
            return [part.tolist() for part in self.outline]
        counts = self.outline if isinstance(self.outline, str) else rle.pack(self.outline)
        return {"size": [height, width], "counts": counts}


def parse(entry: Mapping[str, Any], label: int, height: int, width: int) -> Object:
    """The object of an annotation in an image of that size; :class:`Unusable` if it is not one."""
    outline = _outline(entry.get("segmentation"), height, width)
    box = _box(entry.get("bbox"), outline, height)
    area = _area(entry.get("area"), outline, height, width)
    crowd = entry.get("iscrowd")
    if crowd not in (0, 1, None):
        raise Unusable(BAD_CROWD, f"it is {str(crowd)[:60]!r}; 0 or 1 is needed")
    found = Object(int(entry["id"]), label, box, area, bool(crowd), outline)
    left, top, right, bottom = (float(np.float32(side)) for side in found.clipped(height, width))  # as networks see it
    if right - left < LEAST or bottom - top < LEAST:
        x, y, w, h = box
        raise Unusable(NO_BOX, f"x {x:g}, y {y:g}, width {w:g}, height {h:g} in {width} x {height} pixels")
    return found


def _outline(given: Any, height: int, width: int) -> Outline:
    if given is None or given == []:
        raise Unusable(NO_MASK, "its segmentation is empty" if given == [] else "it has no segmentation")
    if isinstance(given, list):
        return _polygons(given, height, width)
    if not isinstance(given, Mapping) or "counts" not in given or "size" not in given:
        raise Unusable(BAD_MASK, "its segmentation is neither a list of polygons nor a dict of size and counts")
    if given["size"] != [height, width]:
        raise Unusable(SIZE, f"{given['size']} instead of {[height, width]} (height, width)")
    counts = given["counts"]
    try:
        outline = counts if isinstance(counts, str) else _whole(counts)
        runs = _runs(outline)
        rle.check(runs, height, width)
    except (ValueError, OverflowError) as error:
        raise Unusable(BAD_MASK, str(error)) from error
    if not rle.area(runs):
        raise Unusable(OUTSIDE, "it is empty")
    return outline


def _runs(outline: np.ndarray | str) -> np.ndarray:
    return rle.unpack(outline) if isinstance(outline, str) else outline


def _whole(counts: Any) -> np.ndarray:
    if not isinstance(counts, list) or not all(isinstance(run, int) for run in counts):
        raise ValueError("its counts are neither a text nor a list of whole numbers")
    return np.array(counts, dtype=np.int64)


def _polygons(given: Sequence[Any], height: int, width: int) -> tuple[np.ndarray, ...]:
    parts = []
    for each in given:
        try:
            corners = np.array(each, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            corners = np.array(np.nan)
        if corners.ndim != 1 or len(corners) % 2 or not np.isfinite(corners).all():
            raise Unusable(BAD_MASK, "a polygon is x, y of one corner after the other, as finite numbers")
        if len(corners) >= 6:
            parts.append(corners)
    if not parts:
        raise Unusable(BAD_MASK, "no polygon of it has three corners")
    x, y = np.concatenate([part[0::2] for part in parts]), np.concatenate([part[1::2] for part in parts])
    if max(np.abs(x).max(), np.abs(y).max()) > polygon.FAR:
        raise Unusable(BAD_MASK, f"a corner of a polygon is more than {polygon.FAR:g} pixels away")
    if x.max() <= 0 or y.max() <= 0 or x.min() >= width or y.min() >= height:
        spans = f"x {x.min():g} to {x.max():g}, y {y.min():g} to {y.max():g}"
        raise Unusable(OUTSIDE, f"{spans}, in {width} x {height} pixels")
    return tuple(parts)


def _box(given: Any, outline: Outline, height: int) -> tuple[float, float, float, float]:
    """The box as given; where none is given, the one around the mask."""
    if given is None:
        if not isinstance(outline, tuple):
            x, y, w, h = rle.box(_runs(outline), height)
            return float(x), float(y), float(w), float(h)
        corners = np.concatenate(outline).reshape(-1, 2)
        (left, top), (right, bottom) = corners.min(0).tolist(), corners.max(0).tolist()
        return left, top, right - left, bottom - top
    if not isinstance(given, list) or len(given) != 4 or not all(map(_number, given)):
        raise Unusable(BAD_BOX, f"its bbox is {str(given)[:60]}; x, y, width and height are needed")
    return float(given[0]), float(given[1]), float(given[2]), float(given[3])


def _area(given: Any, outline: Outline, height: int, width: int) -> float:
    """The area as given; where none is given, the pixels of the mask."""
    if _number(given):
        return float(given)
    if isinstance(outline, tuple):
        return float(polygon.rasterise(outline, height, width).sum())
    return float(rle.area(_runs(outline)))


def _number(value: Any) -> bool:
    """Whether it is one that float64 can hold."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # JSON sets no bounds to whole numbers
        return False
