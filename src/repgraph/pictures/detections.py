"""Objects in a picture: their masks, boxes, names and scores drawn over the image.

A class has the same colour in every picture. The first eight are those of Okabe and Ito, and a grey, which people who
see red and green alike can tell apart; the next are the same eight darker, then lighter, and after 24 they begin again.
Names stand beside the objects, so that nothing depends on colours alone; outlines tell objects of one class apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageDraw

from repgraph.data.coco import rle
from repgraph.pictures.legend import GROUND, INK, drawable, font_of, plain
from repgraph.pictures.overlay import as_picture

OPACITY = 0.45  # of masks
SCORE = 0.5
LEAST = 480  # pixels: pictures whose longer side is less are enlarged, so that one can read what is written in them
LETTERS = (13, 64)  # pixels of letters, from the smallest to the largest
PALE = (255, 255, 255)

Colour = tuple[int, int, int]
# Vermillion, sky blue, yellow, bluish green, reddish purple, blue, orange, light grey
BASE: tuple[Colour, ...] = (
    (213, 94, 0), (86, 180, 233), (240, 228, 66), (0, 158, 115), (204, 121, 167), (0, 114, 178), (230, 159, 0),
    (222, 222, 222),
)  # fmt: skip


class Objects(Protocol):
    """What is in an image, such as a :class:`repgraph.engine.detection.Found`.

    ``boxes`` (N, 4) are left, top, right, bottom in pixels; ``labels`` (N,) from 1; ``scores`` (N,); ``masks`` N run
    lengths (:mod:`repgraph.data.coco.rle`) of the image's size, or None.
    """

    @property
    def boxes(self) -> np.ndarray: ...
    @property
    def labels(self) -> np.ndarray: ...
    @property
    def scores(self) -> np.ndarray: ...
    @property
    def masks(self) -> Sequence[np.ndarray] | None: ...


@dataclass(frozen=True)
class _Canvas:
    """Where pixels of the image are in the picture: ``scale`` times as far from its corner."""

    size: tuple[int, int]  # (width, height) of the image in the picture
    scale: tuple[float, float]

    @classmethod
    def of(cls, width: int, height: int, side: int | None) -> "_Canvas":
        long = max(width, height)
        if side is not None and long > side:
            ratio = side / long
            size = max(1, round(width * ratio)), max(1, round(height * ratio))
        else:
            times = math.ceil(LEAST / long) if long < LEAST else 1
            times = times if side is None else max(1, min(times, side // long))
            size = width * times, height * times
        return cls(size, (size[0] / width, size[1] / height))


def colours(count: int) -> list[Colour]:
    """A colour for each class.

    >>> colours(2)
    [(213, 94, 0), (86, 180, 233)]
    """

    def shade(k: int) -> Colour:
        towards, share = ((0, 0.0), (0, 0.4), (255, 0.5))[k // len(BASE) % 3]
        red, green, blue = (round(part + share * (towards - part)) for part in BASE[k % len(BASE)])
        return red, green, blue

    return [shade(k) for k in range(count)]


def draw(
    image: Any,
    found: Objects,
    names: Sequence[str],
    *,
    score: float = SCORE,
    opacity: float = OPACITY,
    side: int | None = None,
) -> Image.Image:
    """The image with its objects: masks, outlines, boxes, names and scores.

    Small images are enlarged by a whole number until the longer side has 480 pixels, so that names can be read; images
    whose longer side exceeds ``side`` are shrunk to it.

    Args:
        image: a Pillow image, an array (H, W, 3) or a tensor (3, H, W), in uint8 RGB.
        found: what is in it.
        names: of the classes; that of label k is ``names[k - 1]``.
        score: objects below it are left out.
        opacity: of the masks, 0 to 1.
        side: of the picture, at most, in pixels.

    Example:
        >>> from types import SimpleNamespace
        >>> one = SimpleNamespace(boxes=np.ones((1, 4)), labels=np.ones(1, int), scores=np.ones(1), masks=None)
        >>> draw(np.zeros((40, 60, 3), np.uint8), one, ["cat"]).size
        (480, 320)
    """
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity is {opacity!r}; give a number from 0 (outlines alone) to 1 (the colours alone)")
    picture = as_picture(image)
    height, width = picture.height, picture.width
    canvas = _Canvas.of(width, height, side)
    shown = [int(k) for k in np.argsort(-found.scores, kind="stable") if found.scores[k] >= score]
    palette = colours(len(names))
    size = min(max(round(max(canvas.size) / 45), LETTERS[0]), LETTERS[1])
    line = max(1, round(size / 7))
    resample = Image.Resampling.BOX if canvas.size[0] < width else Image.Resampling.BICUBIC
    pixels = np.array(picture.resize(canvas.size, resample) if canvas.size != picture.size else picture)
    for k in reversed(shown):  # the best lie on top
        if found.masks is not None:
            mask = rle.decode(found.masks[k], height, width)
            _paint(pixels, mask, canvas, palette[int(found.labels[k]) - 1], opacity, line)
    drawn = Image.fromarray(pixels)
    pen = ImageDraw.Draw(drawn)
    for k in reversed(shown):
        _box(pen, _corners(found.boxes[k], canvas), palette[int(found.labels[k]) - 1], line)
    return _labelled(drawn, [_Label.of(found, k, names, palette, canvas) for k in shown], size, line)


def _paint(pixels: np.ndarray, mask: np.ndarray, canvas: _Canvas, colour: Colour, opacity: float, line: int) -> None:
    """A mask (H, W) over the picture, in place; its rim has the full colour."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not rows.size:
        return
    if canvas.size != mask.shape[::-1]:
        mask = np.asarray(Image.fromarray(mask).resize(canvas.size, Image.Resampling.NEAREST))
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if not rows.size:
            return
    # One pixel more on each side, for the dark line around.
    window = np.s_[max(rows[0] - 1, 0) : rows[-1] + 2, max(columns[0] - 1, 0) : columns[-1] + 2]
    inside = mask[window] != 0
    part = pixels[window]
    ink = np.array(colour, dtype=np.float32)
    part[inside] = (part[inside] * (1 - opacity) + ink * opacity).round().astype(np.uint8)
    part[inside & ~_inner(inside, line)] = colour
    part[~inside & ~_inner(~inside, 1)] = INK


def _inner(mask: np.ndarray, by: int) -> np.ndarray:
    """The pixels of a mask that are further than that from its rim; beyond the edges of the array it goes on."""
    for _ in range(by):
        inner = mask.copy()
        inner[1:] &= mask[:-1]
        inner[:-1] &= mask[1:]
        inner[:, 1:] &= mask[:, :-1]
        inner[:, :-1] &= mask[:, 1:]
        mask = inner
    return mask


def _corners(box: np.ndarray, canvas: _Canvas) -> tuple[int, int, int, int]:
    """The first and the last pixels of a box in the picture: left, top, right, bottom, each in it."""
    (width, height), (across, down) = canvas.size, canvas.scale
    left, top, right, bottom = (float(side) for side in box)
    x, y = min(max(round(left * across), 0), width - 1), min(max(round(top * down), 0), height - 1)
    return x, y, min(max(round(right * across) - 1, x), width - 1), min(max(round(bottom * down) - 1, y), height - 1)


def _box(pen: ImageDraw.ImageDraw, corners: tuple[int, int, int, int], colour: Colour, line: int) -> None:
    """A box, with a dark line around it that keeps it apart from any image."""
    x, y, right, bottom = corners
    pen.rectangle((x - 1, y - 1, right + 1, bottom + 1), outline=INK, width=line + 2)
    pen.rectangle(corners, outline=colour, width=line)


@dataclass(frozen=True)
class _Label:
    name: str
    score: str
    instead: str
    colour: Colour
    corners: tuple[int, int, int, int]

    @classmethod
    def of(cls, found: Objects, k: int, names: Sequence[str], palette: Sequence[Colour], canvas: _Canvas) -> "_Label":
        label = int(found.labels[k])
        percent = math.floor(100 * float(found.scores[k]))  # 99.6 % is not certain
        corners = _corners(found.boxes[k], canvas)
        return cls(names[label - 1], f"{percent} %", f"class {label}", palette[label - 1], corners)


def _labelled(picture: Image.Image, labels: Sequence[_Label], size: int, line: int) -> Image.Image:
    """Names and scores beside the boxes, as far as there is room not over each other; the best come first."""
    font, pad = font_of(size), max(2, size // 5)
    texts = [f"{drawable(plain(label.name), font) or label.instead} {label.score}" for label in labels]
    widths = [math.ceil(font.getlength(text)) + 2 * pad for text in texts]
    high = math.ceil(1.25 * size) + 2 * (pad // 2)
    picture = _with_room(picture, max(widths, default=0), high if labels else 0)
    pen = ImageDraw.Draw(picture)
    taken: list[tuple[int, int, int, int]] = []
    for label, wide in zip(labels, widths, strict=True):
        taken.append(_place(label.corners, (wide, high), picture.size, line, taken))
    for label, text, (x, y, right, bottom) in reversed(list(zip(labels, texts, taken, strict=True))):
        pen.rectangle((x, y, right - 1, bottom - 1), fill=label.colour, outline=INK)
        pen.text((x + pad, (y + bottom) / 2), text, fill=_ink(label.colour), font=font, anchor="lm")
    return picture


def _with_room(picture: Image.Image, width: int, height: int) -> Image.Image:
    """The picture with a margin on the right and below, if it is too small for what is to be written in it."""
    size = max(picture.width, width), max(picture.height, height)
    if size == picture.size:
        return picture
    larger = Image.new("RGB", size, GROUND)
    larger.paste(picture)
    return larger


def _place(
    corners: tuple[int, int, int, int],
    size: tuple[int, int],
    within: tuple[int, int],
    line: int,
    taken: Sequence[tuple[int, int, int, int]],
) -> tuple[int, int, int, int]:
    """Where a label goes: above its box, in its upper or lower corners, or below; where least is in the way."""
    (x, y, right, bottom), (wide, high) = corners, size
    places = [
        (x - line, y - high), (x, y), (right - wide + 1, y - high), (right - wide + 1, y), (x - line, bottom + 1),
        (x, bottom - high + 1), (right - wide + 1, bottom - high + 1), (right - wide + 1, bottom + 1),
    ]  # fmt: skip
    best, least = (0, 0, wide, high), math.inf
    for left, top in places:
        left, top = min(max(left, 0), within[0] - wide), min(max(top, 0), within[1] - high)
        here = left, top, left + wide, top + high
        covered = sum(_common(here, other) for other in taken)
        if covered < least:
            best, least = here, covered
    return best


def _common(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> int:
    """The pixels that two rectangles have in common."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return wide * high if wide > 0 and high > 0 else 0


def _ink(ground: Colour) -> Colour:
    """Dark or white letters, whichever can be read better on the ground: by the contrast that WCAG defines."""

    def light(colour: Colour) -> float:
        parts = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, pale = ((light(ground) + 0.05) / (light(INK) + 0.05), 1.05 / (light(ground) + 0.05))
    return INK if dark >= pale else PALE
