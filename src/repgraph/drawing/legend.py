"""A legend below a picture, and text in pictures."""

import math
import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

BACKGROUND, TEXT, GREY = (250, 250, 248), (33, 33, 33), (112, 112, 112)
FONT_SIZES = (12, 64)  # pixels: smallest and largest
MAX_LENGTH = 28  # characters of a name


class Entry(NamedTuple):
    """A class in the legend."""

    name: str
    colour: tuple[int, int, int] | None  # None for an empty square
    share: float  # of the pixels
    fallback: str = ""  # if the font has no glyphs for the name


def with_legend(picture: Image.Image, entries: Sequence[Entry]) -> Image.Image:
    """Return the picture with a legend below, in as many columns as fit; a narrow picture gets a margin."""
    size = min(max(round(picture.width / 56), FONT_SIZES[0]), FONT_SIZES[1])
    font = ImageFont.load_default(size)
    texts = [(drawable(entry.name, font) or entry.fallback, f"{100 * entry.share:.1f} %") for entry in entries]
    gap, between, margin, line = round(0.6 * size), 2 * size, size, round(1.55 * size)
    name_width, share_width = (max(map(font.getlength, column)) for column in zip(*texts, strict=True))
    cell = math.ceil(size + gap + name_width + 2 * gap + share_width)
    columns = max(1, min((picture.width - 2 * margin + between) // (cell + between), len(entries)))
    rows = math.ceil(len(entries) / columns)
    width = max(picture.width, columns * (cell + between) - between + 2 * margin)
    canvas = Image.new("RGB", (width, picture.height + 2 * margin + rows * line), BACKGROUND)
    canvas.paste(picture, ((width - picture.width) // 2, 0))
    draw = ImageDraw.Draw(canvas)
    for index, (entry, (name, text)) in enumerate(zip(entries, texts, strict=True)):
        left = margin + (index // rows) * (cell + between)
        middle = picture.height + margin + (index % rows) * line + line / 2
        top = round(middle - size / 2)
        box = (left, top, left + size - 1, top + size - 1)
        draw.rounded_rectangle(box, radius=size // 5, fill=entry.colour or BACKGROUND, outline=GREY)
        draw.text((left + size + gap, middle), name, fill=TEXT, font=font, anchor="lm")
        draw.text((left + cell, middle), text, fill=GREY, font=font, anchor="rm")
    return canvas


def plain(name: str, most: int = MAX_LENGTH) -> str:
    """Return a name as one line of printable text of at most ``most`` characters."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def drawable(name: str, font: Any) -> str:
    """Return a plain name without accents, and with "?" for characters that the font lacks; empty if it lacks all."""
    missing, text, found = bytes(font.getmask("\U0010ffff")), plain(name), ""
    for letter in text:
        letters = (letter, unicodedata.normalize("NFKD", letter)[0])
        found += next((each for each in letters if each == " " or bytes(font.getmask(each)) != missing), "?")
    return found if found.strip("? ") or not text.strip("? ") else ""
