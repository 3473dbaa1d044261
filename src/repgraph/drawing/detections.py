"""Objects drawn over an image: masks, boxes, names and scores.

Objects have different colors: Okabe and Ito's palette and a gray, then lighter and darker shades of these.
"""

import math
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from repgraph.data.coco import masks
from repgraph.drawing.legend import BACKGROUND, TEXT, drawable
from repgraph.drawing.overlay import as_picture

OPACITY = 0.45  # of masks
SCORE = 0.5
MIN_SIDE = 480  # pixels: smaller pictures are enlarged to keep the text legible
FONT_SIZES = (13, 64)  # pixels: smallest and largest
LIGHT = 100  # colors with a higher luma have dark text
COVERED = 0.3  # share of an object that all labels together may cover

Colour = tuple[int, ...]
# Vermillion, sky blue, yellow, bluish green, reddish purple, blue, orange, light gray
_BASE = np.array([
    (213, 94, 0), (86, 180, 233), (240, 228, 66), (0, 158, 115), (204, 121, 167), (0, 114, 178), (230, 159, 0),
    (222, 222, 222),
])  # fmt: skip
COLOURS = [tuple(colour) for colour in np.concatenate([_BASE, (_BASE + 255) // 2, 3 * _BASE // 5]).tolist()]


def draw(image: Any, found: Any, names: Sequence[str], *, score: float = SCORE, side: int | None = None) -> Image.Image:
    """Draw objects over an image: masks, outlines, boxes, names and scores.

    Small images are enlarged by an integer factor to at least 480 pixels on the longer side. Labels do not cover each
    other; without enough room, a label is left out. Objects with high scores are labeled first.

    Args:
        image: A Pillow image, an array (H, W, 3) or a tensor (3, H, W), uint8 RGB.
        found: The objects, such as :class:`repgraph.inference.Detections`: arrays ``boxes`` (N, 4) of left, top,
            right, bottom in pixels, ``labels`` (N,) from 1, ``scores`` (N,), ``masks``: N encodings (RLE) or None.
        names: Names of the classes; label k is ``names[k - 1]``.
        score: Minimum score of objects that are drawn.
        side: Maximum of the picture's longer side; larger images are shrunk.
    """
    picture = as_picture(image)
    original, factor = picture.size, max(1, math.ceil(MIN_SIDE / max(picture.size)))
    picture = picture.resize((factor * picture.width, factor * picture.height), Image.Resampling.BICUBIC)
    if side is not None:
        picture.thumbnail((side, side), Image.Resampling.BOX)
    size, pixels = picture.size, np.array(picture)
    font_size = min(max(round(max(size) / 45), FONT_SIZES[0]), FONT_SIZES[1])
    line, font = max(1, round(font_size / 7)), ImageFont.load_default(font_size)
    shown = [int(k) for k in np.argsort(-found.scores, kind="stable") if found.scores[k] >= score]
    boxes, palette = _picture_boxes(found.boxes[shown], original, size), list(islice(cycle(COLOURS), len(shown)))
    order = np.argsort(-_overlap(boxes, boxes).diagonal(), kind="stable").tolist()  # small objects on top
    # For each row and column of the picture, the nearest one of the image.
    columns, rows = ((2 * np.arange(new) + 1) * old // (2 * new) for new, old in zip(size, original, strict=True))
    for k in order if found.masks is not None else ():
        mask = masks.decode(found.masks[shown[k]])
        y, x = np.flatnonzero(mask.max(1)[rows]), np.flatnonzero(mask.max(0)[columns])
        if len(y) and len(x):
            window = np.s_[y[0] : y[-1] + 1, x[0] : x[-1] + 1]  # eroding the whole picture would take a second
            part, inside = pixels[window], mask[rows[window[0], None], columns[window[1]]] != 0
            part[inside] = (part[inside] * (1 - OPACITY) + np.array(palette[k]) * OPACITY).round()
            part[inside & ~ndimage.binary_erosion(inside, iterations=line)] = palette[k]  # the outline
    drawn = Image.fromarray(pixels)
    pen = ImageDraw.Draw(drawn)
    for k in order:
        left, top, right, bottom = boxes[k].tolist()
        pen.rectangle((left - 1, top - 1, right, bottom), outline=TEXT, width=line + 2)
        pen.rectangle((left, top, right - 1, bottom - 1), outline=palette[k], width=line)
    texts = []
    for k in shown:
        label, percent = int(found.labels[k]), math.floor(100 * float(found.scores[k]))  # 99.6 % is not 100 %
        texts.append(f"{drawable(names[label - 1], font) or f'class {label}'} {percent} %")
    return _with_labels(drawn, texts, boxes, palette, font)


def _with_labels(
    picture: Image.Image, texts: Sequence[str], boxes: np.ndarray, palette: Sequence[Colour], font: Any
) -> Image.Image:
    """Write a label at each box where there is room. Narrow pictures get a margin."""
    pad = max(2, font.size // 5)
    height = math.ceil(1.25 * font.size) + 2 * (pad // 2)
    widths = [math.ceil(font.getlength(text)) + 2 * pad for text in texts]
    room = max([picture.width, *widths]), max(picture.height, 2 * height if texts else 0)
    canvas = Image.new("RGB", room, BACKGROUND)
    canvas.paste(picture)
    pen = ImageDraw.Draw(canvas)
    taken = np.empty((0, 4), int)
    for box, own, text, width in zip(boxes, palette, texts, widths, strict=True):
        place = _free_place(box, (width, height), boxes, taken, room)
        if place is None:
            continue
        taken = np.vstack([taken, place])
        left, top, right, bottom = place.tolist()
        pen.rectangle((left, top, right - 1, bottom - 1), fill=own, outline=TEXT)
        light = 0.299 * own[0] + 0.587 * own[1] + 0.114 * own[2] > LIGHT
        pen.text((left + pad, top + height / 2), text, fill=TEXT if light else BACKGROUND, font=font, anchor="lm")
    return canvas


def _free_place(
    box: np.ndarray, size: tuple[int, int], boxes: np.ndarray, taken: np.ndarray, room: tuple[int, int]
) -> np.ndarray | None:
    """Return the rectangle at a box that covers no other label and leaves objects visible, or None."""
    (left, top, right, bottom), (width, height) = box.tolist(), size
    corners = [(x, y) for y in (top - height, bottom, top, bottom - height) for x in (left, right - width)]
    corners = np.clip([*corners, (right, top), (left - width, top)], 0, np.subtract(room, size))
    places = np.concatenate([corners, corners + size], axis=1)  # [P, 4]
    own = _overlap(places, boxes)  # [P, N]
    pixels = np.where(own > 0, own + _overlap(taken, boxes).sum(0), 0)  # labels do not overlap: a sum is exact
    covered = (pixels / _overlap(boxes, boxes).diagonal()).max(1)
    covered[_overlap(places, taken).any(1)] = math.inf
    best = int(np.floor(10 * covered).argmin())  # the first of about equal ones
    return places[best] if covered[best] <= COVERED else None


def _overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the numbers of pixels (A, B) that rectangles (A, 4) and (B, 4) have in common."""
    sides = np.minimum(a[:, None, 2:], b[:, 2:]) - np.maximum(a[:, None, :2], b[:, :2])
    return sides.clip(0).prod(2)


def _picture_boxes(boxes: np.ndarray, image: tuple[int, int], picture: tuple[int, int]) -> np.ndarray:
    """Return boxes of the image in integer pixels of the picture, clipped to it, at least one pixel wide and high."""
    scaled = (boxes * np.divide(picture, image)[[0, 1, 0, 1]]).round()
    corner = scaled[:, :2].clip(0, np.subtract(picture, 1))
    return np.concatenate([corner, np.maximum(scaled[:, 2:].clip(0, picture), corner + 1)], axis=1).astype(int)
