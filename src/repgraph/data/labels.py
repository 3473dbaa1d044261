"""The classes of a data set: names, colors, and values in label files. It needs only NumPy."""

import colorsys
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from repgraph.constants import IGNORE
from repgraph.errors import UsageError

MAX_VALUE = 65535  # label files have 8 or 16 bits
COLOUR = 2**24  # a pixel of an RGB mask has the value COLOUR + 65536 red + 256 green + blue

Colour = tuple[int, int, int]


class DataError(UsageError):
    """Data that cannot be used; the message names the file and the problem."""


@dataclass(frozen=True)
class Labels:
    """The classes of a data set. Class k is named ``names[k]``, and its value in label files is ``ids[k]``."""

    names: tuple[str, ...]  # all different
    palette: tuple[Colour, ...]  # (red, green, blue) from 0 to 255
    ids: tuple[int, ...]  # values in label files, 0 to 65535, all different
    ignored: tuple[int, ...] = ()  # values of unlabeled pixels in label files; they become IGNORE (255)
    rgb_masks: bool = False  # whether label files may also be RGB images, in the colors of the palette

    def __post_init__(self) -> None:
        set_ = object.__setattr__  # the class is frozen; lists from JSON become tuples
        set_(self, "names", tuple(str(name) for name in self.names))
        set_(self, "palette", tuple(_integers("a color", colour, 0, 255) for colour in self.palette))
        set_(self, "ids", _integers("ids", self.ids, 0, MAX_VALUE))
        set_(self, "ignored", _integers("ignored", self.ignored, -(2**31), 2**31 - 1))
        counts = len(self.names), len(self.palette), len(self.ids)
        if len(set(counts)) != 1 or not 1 <= counts[0] <= IGNORE:
            raise DataError("{} classes, {} colors and {} ids; expected 1 to {} of each".format(*counts, IGNORE))
        if any(len(colour) != 3 for colour in self.palette):
            raise DataError(f"a color in {self.palette} does not have red, green and blue")
        for what, values in (("class name", self.names), ("label value", (*self.ids, *self.ignored))):
            value, count = Counter[Any](values).most_common(1)[0]
            if count > 1:
                raise DataError(f"the {what} {value!r} occurs {count} times; expected it once")

    def __len__(self) -> int:
        return len(self.names)

    def classes_of(self, values: np.ndarray) -> np.ndarray:
        """Return the class of each value, IGNORE for ignored values, and -1 for unknown ones."""
        classes = dict.fromkeys(self.ignored, IGNORE) | {i: k for k, i in enumerate(self.ids)}
        if self.rgb_masks:
            classes |= {colour_value(colour): k for k, colour in enumerate(self.palette)}
        known, numbers = np.array(sorted(classes.items())).T
        index = np.searchsorted(known, values).clip(max=len(known) - 1)
        return np.where(known[index] == values, numbers[index], -1).astype(np.int16)

    def to_train(self, values: np.ndarray, file: object = "mask") -> np.ndarray:
        """Convert the values of a label file, named ``file`` in errors, to classes: uint8, 0 to K - 1 and IGNORE."""
        # For bytes, a table of all values is faster.
        classes = self.classes_of(np.arange(256))[values] if values.dtype == np.uint8 else self.classes_of(values)
        if classes.size and classes.min() < 0:
            unknown = [as_written(value) for value in np.unique(values[classes < 0]).tolist()[:30]]
            ignored = str([*map(as_written, self.ignored), *unknown]).replace(" ", "")
            raise DataError(
                f"{file}: label values {str(unknown)[1:-1]} are neither classes ({str(self.ids[:30])[1:-1]}) nor "
                f"ignored. For your own data, add them to classes.txt or classes.json, or ignore them: --option "
                f"ignored={ignored} (repgraph train: --set data.options.ignored={ignored})"
            )
        return classes.astype(np.uint8)

    def to_file(self, classes: np.ndarray) -> np.ndarray:
        """Convert classes to values of label files, uint8 if all fit, else uint16; IGNORE becomes the first ignored."""
        table = np.full(IGNORE + 1, -1, dtype=np.int64)
        table[: len(self)] = self.ids
        if self.ignored and 0 <= self.ignored[0] <= MAX_VALUE:
            table[IGNORE] = self.ignored[0]
        for k in np.unique(classes):
            if not 0 <= k <= IGNORE or table[k] < 0:
                raise DataError(f"class {k} has no value in label files; expected 0 to {len(self) - 1}")
        return table[classes].astype(np.uint8 if table.max() < 256 else np.uint16)

    def difference(self, other: "Labels") -> str:
        """Describe how the class names differ from another data set; empty if they are equal."""
        pairs = enumerate(zip_longest(self.names, other.names))
        return next((f"class {k} is {one!r} and {two!r}" for k, (one, two) in pairs if one != two), "")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; see :meth:`from_dict`."""
        return {name: getattr(self, name) for name in ("names", "palette", "ids", "ignored")}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Labels":
        """Return the labels that :meth:`to_dict` described."""
        try:
            return cls(**content)
        except TypeError as error:
            raise DataError(f"invalid labels ({error}); expected names, palette, ids and ignored") from error


def colour_value(colour: Iterable[int]) -> int:
    """Return the value of a color in an RGB mask."""
    return COLOUR + int.from_bytes(_integers("a color", colour, 0, 255), "big")


def as_written(value: int) -> int | list[int]:
    """Return a value of a label file as in ``classes.json``: colors are [red, green, blue]."""
    return list((value - COLOUR).to_bytes(3, "big")) if COLOUR <= value < 2 * COLOUR else value


def voc_palette(count: int) -> tuple[Colour, ...]:
    """Return PASCAL VOC's colors: the bits of the class, distributed over red, green and blue, highest bit first."""

    def channel(k: int, first: int) -> int:
        return sum((k >> (3 * bit + first) & 1) << (7 - bit) for bit in range(8))

    return tuple((channel(k, 0), channel(k, 1), channel(k, 2)) for k in range(count))


def hex_palette(text: str) -> tuple[Colour, ...]:
    """Return colors that are written as six hexadecimal digits each."""
    return tuple((red, green, blue) for red, green, blue in map(bytes.fromhex, text.split()))


def spread_palette(count: int) -> tuple[Colour, ...]:
    """Return distinct colors: hues advance by the golden angle, saturation and brightness alternate."""
    colours = (colorsys.hsv_to_rgb(k * 0.618034 % 1, (0.8, 0.6)[k % 2], (0.9, 0.7, 1.0)[k % 3]) for k in range(count))
    return tuple((round(255 * red), round(255 * green), round(255 * blue)) for red, green, blue in colours)


def _integers(name: str, values: Iterable[Any], least: int, most: int) -> tuple[int, ...]:
    """Return Python or NumPy integers as Python integers."""
    found = tuple(map(operator.index, values))
    if any(not least <= value <= most for value in found):
        raise DataError(f"{name}: {found}; expected integers from {least} to {most}")
    return found
