"""A legend below a picture: on a ground of its own, so that it can be read whatever the picture is."""

import math
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont

GROUND, INK, FAINT = (250, 250, 248), (33, 33, 33), (112, 112, 112)
SIZES = (12, 64)  # of letters, in pixels
LETTERS = 28  # of a name, at most


@dataclass(frozen=True)
class Entry:
    """One line of the legend; without a colour its sign is empty. ``instead`` is for a name that cannot be drawn."""

    name: str
    colour: tuple[int, int, int] | None
    share: float  # of the picture's pixels
    instead: str = ""


def with_legend(picture: Image.Image, entries: list[Entry]) -> Image.Image:
    """The picture with its legend below, in as many columns as fit; a narrow picture gets a margin."""
    size = min(max(round(picture.width / 56), SIZES[0]), SIZES[1])
    font = font_of(size)
    texts = [(drawable(plain(entry.name), font) or entry.instead, share(entry.share)) for entry in entries]
    gap, sign = round(0.6 * size), size
    names = max((font.getlength(name) for name, _ in texts), default=0)
    shares = max((font.getlength(text) for _, text in texts), default=0)
    cell = math.ceil(sign + gap + names + 2 * gap + shares)
    between, margin, line = 2 * size, size, round(1.55 * size)
    columns = max(1, min((picture.width - 2 * margin + between) // (cell + between), len(entries)))
    rows = math.ceil(len(entries) / columns)
    columns = math.ceil(len(entries) / rows) if rows else 0  # no column stays empty
    width = max(picture.width, columns * (cell + between) - between + 2 * margin)
    canvas = Image.new("RGB", (width, picture.height + 2 * margin + rows * line), GROUND)
    canvas.paste(picture, ((width - picture.width) // 2, 0))
    draw = ImageDraw.Draw(canvas)
    for i, (entry, (name, text)) in enumerate(zip(entries, texts, strict=True)):
        left = margin + (i // rows) * (cell + between)
        top = picture.height + margin + (i % rows) * line
        middle = top + line / 2
        corner = round(middle - sign / 2)
        box = (left, corner, left + sign - 1, corner + sign - 1)
        draw.rounded_rectangle(box, radius=sign // 5, fill=entry.colour or GROUND, outline=_outline(entry.colour))
        draw.text((left + sign + gap, middle), name, fill=INK, font=font, anchor="lm")
        draw.text((left + cell, middle), text, fill=FAINT, font=font, anchor="rm")
    return canvas


def plain(name: str) -> str:
    """A name as one line of text of a sensible length, whatever characters are in it.

    >>> plain("a\\tname\\nin lines"), plain("x" * 40)
    ('a name in lines', 'xxxxxxxxxxxxxxxxxxxxxxxxxxx…')
    """
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())
    return text if len(text) <= LETTERS else text[: LETTERS - 1].rstrip() + "…"


def drawable(name: str, font: Any) -> str:
    """The name in letters that the font has: without accents, or "?" in their place; empty if it has none of them."""
    letters = []
    for letter in name:
        base = unicodedata.normalize("NFKD", letter)[0]
        letters.append(letter if _has(font, letter) else base if _has(font, base) else "?")
    found = "".join(letters)
    return found if found.strip("? ") or not name.strip("? ") else ""


def _has(font: Any, letter: str) -> bool:
    """Whether the font draws a letter otherwise than one that it does not have."""
    return letter == " " or bytes(font.getmask(letter)) != bytes(font.getmask("\U0010ffff"))


def share(value: float) -> str:
    """A share in per cent, of which nothing that is there becomes 0, and nothing that is not all becomes 100.

    >>> share(0.2504), share(0.00004), share(0.9999), share(1.0)
    ('25.0 %', '< 0.1 %', '> 99.9 %', '100 %')
    """
    if value >= 1:
        return "100 %"
    if value < 0.0005:
        return "< 0.1 %"
    return "> 99.9 %" if value >= 0.9995 else f"{100 * value:.1f} %"


def _outline(colour: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """A line that keeps light colours apart from the ground."""
    return FAINT if colour is None else (colour[0] * 7 // 10, colour[1] * 7 // 10, colour[2] * 7 // 10)


@lru_cache(maxsize=8)
def font_of(size: int) -> Any:
    return ImageFont.load_default(size)
