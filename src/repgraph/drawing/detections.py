"""Objects drawn over an image: masks, boxes, names and scores.

A class has the same colour in every picture: one of Okabe and Ito's, a grey, or a darker or lighter shade of them.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from repgraph.data.coco import masks
from repgraph.drawing.legend import BACKGROUND, TEXT, drawable, plain
from repgraph.drawing.overlay import as_picture

OPACITY = 0.45  # of masks
SCORE = 0.5
MIN_SIDE = 480  # pixels: smaller pictures are enlarged, so that the text is legible
FONT_SIZES = (13, 64)  # pixels: smallest and largest
WHITE = (255, 255, 255)
LIGHT = 115  # colours with a higher luma have dark text

Colour = tuple[int, int, int]
Rectangle = tuple[int, int, int, int]  # left, top, right, bottom
# Vermillion, sky blue, yellow, bluish green, reddish purple, blue, orange, light grey
BASE: tuple[Colour, ...] = (
    (213, 94, 0), (86, 180, 233), (240, 228, 66), (0, 158, 115), (204, 121, 167), (0, 114, 178), (230, 159, 0),
    (222, 222, 222),
)  # fmt: skip


def colours(count: int) -> list[Colour]:
    """Return a colour for each class."""

    def shade(k: int) -> Colour:
        target, share = ((0, 0.0), (0, 0.4), (255, 0.5))[k // len(BASE) % 3]
        red, green, blue = (round(part + share * (target - part)) for part in BASE[k % len(BASE)])
        return red, green, blue

    return [shade(k) for k in range(count)]


def draw(
    image: Any,
    found: Any,
    names: Sequence[str],
    *,
    score: float = SCORE,
    opacity: float = OPACITY,
    side: int | None = None,
) -> Image.Image:
    """Draw objects over an image: masks, outlines, boxes, names and scores.

    Small images are enlarged by an integer factor to at least 480 pixels on the longer side.

    Args:
        image: A Pillow image, an array (H, W, 3) or a tensor (3, H, W), uint8 RGB.
        found: The objects, such as :class:`repgraph.inference.Detections`, with arrays ``boxes`` (N, 4) of left, top,
            right, bottom in pixels, ``labels`` (N,) from 1, and ``scores`` (N,); and ``masks``, N run-length encodings
            (:mod:`repgraph.data.coco.masks`) or None.
        names: Names of the classes; that of label k is ``names[k - 1]``.
        score: Minimum score of objects that are drawn.
        opacity: Of the masks, 0 to 1.
        side: Maximum of the picture's longer side; larger images are shrunk.

    """
    picture = as_picture(image)
    size = _picture_size(picture.width, picture.height, side)
    font_size = min(max(round(max(size) / 45), FONT_SIZES[0]), FONT_SIZES[1])
    line = max(1, round(font_size / 7))
    shown = [int(k) for k in np.argsort(-found.scores, kind="stable") if found.scores[k] >= score]
    palette = colours(len(names))
    shrunk = size[0] < picture.width
    pixels = np.array(picture.resize(size, Image.Resampling.BOX if shrunk else Image.Resampling.BICUBIC))
    font, pad = ImageFont.load_default(font_size), max(2, font_size // 5)
    marks = []  # text, its width, colour and corners of each object
    for k in shown:
        label = int(found.labels[k])
        percent = math.floor(100 * float(found.scores[k]))  # 99.6 % is not shown as 100 %
        text = f"{drawable(plain(names[label - 1]), font) or f'class {label}'} {percent} %"
        corners = _corners(found.boxes[k], picture.size, size)
        marks.append((text, math.ceil(font.getlength(text)) + 2 * pad, palette[label - 1], corners))
    height = math.ceil(1.25 * font_size) + 2 * (pad // 2)
    for k in reversed(shown):  # the best scores on top
        if found.masks is not None:
            mask = np.asarray(Image.fromarray(masks.decode(found.masks[k])).resize(size, Image.Resampling.NEAREST)) != 0
            own = palette[int(found.labels[k]) - 1]
            pixels[mask] = (pixels[mask] * (1 - opacity) + np.array(own) * opacity).round().astype(np.uint8)
            pixels[mask & ~ndimage.binary_erosion(mask, iterations=line, border_value=1)] = own  # the outline
    room = max([size[0], *(width for _, width, _, _ in marks)]), max(size[1], height if marks else 0)
    canvas = Image.new("RGB", room, BACKGROUND)
    canvas.paste(Image.fromarray(pixels))
    pen = ImageDraw.Draw(canvas)
    for _, _, own, (left, top, right, bottom) in reversed(marks):
        pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=TEXT, width=line + 2)
        pen.rectangle((left, top, right, bottom), outline=own, width=line)
    for text, width, own, (left, top, _, _) in reversed(marks):  # above the boxes
        left, top = min(max(left - line, 0), canvas.width - width), min(max(top - height, 0), canvas.height - height)
        pen.rectangle((left, top, left + width - 1, top + height - 1), fill=own, outline=TEXT)
        light = 0.299 * own[0] + 0.587 * own[1] + 0.114 * own[2] > LIGHT
        pen.text((left + pad, top + height / 2), text, fill=TEXT if light else WHITE, font=font, anchor="lm")
    return canvas


def _picture_size(width: int, height: int, side: int | None) -> tuple[int, int]:
    longer = max(width, height)
    if side is not None and longer > side:
        return max(1, round(width * side / longer)), max(1, round(height * side / longer))
    factor = max(1, math.ceil(MIN_SIDE / longer))
    factor = factor if side is None else max(1, min(factor, side // longer))
    return width * factor, height * factor


def _corners(box: np.ndarray, image: tuple[int, int], picture: tuple[int, int]) -> Rectangle:
    """Return the first and last pixels of a box in the picture, clipped to it."""
    (width, height), (across, down) = picture, np.divide(picture, image)
    left, top, right, bottom = (float(side) for side in box)
    x, y = min(max(round(left * across), 0), width - 1), min(max(round(top * down), 0), height - 1)
    return x, y, min(max(round(right * across) - 1, x), width - 1), min(max(round(bottom * down) - 1, y), height - 1)
