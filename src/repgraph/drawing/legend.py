"""A legend below a picture, and text in pictures."""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

BACKGROUND, TEXT, GREY = (250, 250, 248), (33, 33, 33), (112, 112, 112)
FONT_SIZES = (12, 64)  # pixels: smallest and largest
MAX_LENGTH = 28  # characters of a name


@dataclass(frozen=True)
class Entry:
    """An entry of the legend: a class, its colour (None for an empty square), and its share of the pixels.

    ``fallback`` is used if the font has no glyphs for the name.
    """

    name: str
    colour: tuple[int, int, int] | None
    share: float
    fallback: str = ""


def with_legend(picture: Image.Image, entries: Sequence[Entry]) -> Image.Image:
    """Return the picture with a legend below, in as many columns as fit; a narrow picture gets a margin."""
    size = min(max(round(picture.width / 56), FONT_SIZES[0]), FONT_SIZES[1])
    font = ImageFont.load_default(size)
    texts = [(drawable(plain(entry.name), font) or entry.fallback, share(entry.share)) for entry in entries]
    gap = round(0.6 * size)
    name_width = max((font.getlength(name) for name, _ in texts), default=0)
    share_width = max((font.getlength(text) for _, text in texts), default=0)
    cell = math.ceil(size + gap + name_width + 2 * gap + share_width)
    between, margin, line = 2 * size, size, round(1.55 * size)
    columns = max(1, min((picture.width - 2 * margin + between) // (cell + between), len(entries)))
    rows = math.ceil(len(entries) / columns)
    columns = math.ceil(len(entries) / rows) if rows else 0  # no column stays empty
    width = max(picture.width, columns * (cell + between) - between + 2 * margin)
    canvas = Image.new("RGB", (width, picture.height + 2 * margin + rows * line), BACKGROUND)
    canvas.paste(picture, ((width - picture.width) // 2, 0))
    draw = ImageDraw.Draw(canvas)
    for index, (entry, (name, text)) in enumerate(zip(entries, texts, strict=True)):
        left = margin + (index // rows) * (cell + between)
        middle = picture.height + margin + (index % rows) * line + line / 2
        top = round(middle - size / 2)
        outline = tuple(part * 7 // 10 for part in entry.colour) if entry.colour else GREY
        box = (left, top, left + size - 1, top + size - 1)
        draw.rounded_rectangle(box, radius=size // 5, fill=entry.colour or BACKGROUND, outline=outline)
        draw.text((left + size + gap, middle), name, fill=TEXT, font=font, anchor="lm")
        draw.text((left + cell, middle), text, fill=GREY, font=font, anchor="rm")
    return canvas


def plain(name: str, most: int = MAX_LENGTH) -> str:
    """Return a name as one line of printable text of at most ``most`` characters."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def drawable(name: str, font: Any) -> str:
    """Return a name without accents, and with "?" for characters that the font lacks; empty if it lacks all."""
    letters = []
    for letter in name:
        base = unicodedata.normalize("NFKD", letter)[0]
        letters.append(next((one for one in (letter, base) if _has_glyph(font, one)), "?"))
    found = "".join(letters)
    return found if found.strip("? ") or not name.strip("? ") else ""


def _has_glyph(font: Any, letter: str) -> bool:
    return letter == " " or bytes(font.getmask(letter)) != bytes(font.getmask("\U0010ffff"))


def share(value: float) -> str:
    """Format a share in percent; only 1 is "100 %", and no positive value is rounded to 0."""
    if value >= 1:
        return "100 %"
    if value < 0.0005:
        return "< 0.1 %"
    return "> 99.9 %" if value >= 0.9995 else f"{100 * value:.1f} %"
