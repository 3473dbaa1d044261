"""What a data set's label files mean: the classes, their colours, and the numbers that stand for them in the files.

Networks count classes from 0 and never see the files' own numbers. :class:`Labels` translates both ways. It needs NumPy
alone, and goes as plain JSON into a model's configuration.
"""

import colorsys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repgraph.errors import UsageError

IGNORE = 255  # in masks as networks see them: not labelled, counts nowhere
LARGEST = 65535  # in label files, which have 8 or 16 bits

Colour = tuple[int, int, int]


class DataError(UsageError):
    """Data that cannot be used; the message names the file and says what is wrong with it."""


class UnknownLabel(DataError):
    """A label file holds a number that stands for no class."""


@dataclass(frozen=True)
class Labels:
    """Class k is ``names[k]``, has the colour ``palette[k]``, and is ``ids[k]`` in the data set's label files.

    The numbers in ``ignored`` mean "not labelled" there: they become :data:`IGNORE`. Names differ, and so do numbers;
    those of classes are 0 to :data:`LARGEST`.

    >>> labels = Labels(names=("road", "car"), palette=((128, 64, 128), (0, 0, 142)), ids=(7, 26), ignored=(0, 1))
    >>> labels.to_train(np.array([[0, 7], [26, 26]], dtype=np.uint8))
    array([[255,   0],
           [  1,   1]], dtype=uint8)
    >>> labels.to_file(np.array([0, 1, 255]))
    array([ 7, 26,  0], dtype=uint8)
    """

    names: tuple[str, ...]
    palette: tuple[Colour, ...]
    ids: tuple[int, ...]
    ignored: tuple[int, ...] = ()
    _small: np.ndarray = field(init=False, repr=False, compare=False)  # for bytes: the class, IGNORE, or -1

    def __post_init__(self) -> None:
        set_ = object.__setattr__  # the class is frozen; lists from JSON become tuples
        set_(self, "names", tuple(str(name) for name in self.names))
        set_(self, "palette", tuple(_colour(colour) for colour in self.palette))
        set_(self, "ids", tuple(_value(i) for i in self.ids))
        set_(self, "ignored", tuple(_value(i) for i in self.ignored))
        counts = len(self.names), len(self.palette), len(self.ids)
        if len(set(counts)) != 1:
            raise DataError("{} names, {} colours and {} ids: give one of each for every class".format(*counts))
        if not 1 <= len(self.names) <= IGNORE:
            raise DataError(f"{len(self.names)} classes: there can be 1 to {IGNORE}")
        name, count = Counter(self.names).most_common(1)[0]
        if count > 1:
            raise DataError(f"{count} classes have the name {name!r}; give each its own")
        beyond = [i for i in self.ids if not 0 <= i <= LARGEST]
        if beyond:
            raise DataError(f"id {beyond[0]}: label files hold 0 to {LARGEST}")
        numbers = [*self.ids, *self.ignored]
        twice = sorted({i for i in numbers if numbers.count(i) > 1})
        if twice:
            raise DataError(
                f"label value {twice[0]} is given two meanings, in ids {self.ids} and ignored {self.ignored}"
            )
        set_(self, "_small", self.classes_of(np.arange(256)))

    def __len__(self) -> int:
        """The number of classes."""
        return len(self.names)

    def classes_of(self, values: np.ndarray) -> np.ndarray:
        """The class of each file value, IGNORE for an ignored one, and -1 for one that means nothing.

        >>> Labels(("sky",), ((0, 0, 255),), ids=(3,), ignored=(0,)).classes_of(np.array([0, 1, 3]))
        array([255,  -1,   0], dtype=int16)
        """
        meanings = dict.fromkeys(self.ignored, IGNORE) | {i: k for k, i in enumerate(self.ids)}
        return np.array([meanings.get(int(value), -1) for value in values], dtype=np.int16)

    def to_train(self, values: np.ndarray, file: object = None) -> np.ndarray:
        """File values to classes: uint8 of the same shape, 0..K-1 and IGNORE.

        ``file`` is the path that the error for a meaningless value names.
        """
        if values.dtype == np.uint8:
            classes = self._small[values]
        else:
            found, where = np.unique(values, return_inverse=True)
            classes = self.classes_of(found)[where].reshape(values.shape)
        if classes.size and classes.min() < 0:
            raise UnknownLabel(self._complaint(np.unique(values[classes < 0]).tolist(), file))
        return classes.astype(np.uint8)

    def to_file(self, classes: np.ndarray) -> np.ndarray:
        """Classes to file values, uint8 where all of them fit, else uint16; IGNORE becomes the first ignored value."""
        table = np.full(256, -1, dtype=np.int64)
        table[: len(self)] = self.ids
        if self.ignored and 0 <= self.ignored[0] <= LARGEST:
            table[IGNORE] = self.ignored[0]
        wrong = [int(k) for k in np.unique(classes) if not 0 <= k <= IGNORE or (table[k] < 0)]
        if wrong:
            raise DataError(f"class {wrong[0]} has no value in label files: there are classes 0 to {len(self) - 1}")
        return table[classes].astype(np.uint8 if table.max() < 256 else np.uint16)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; :meth:`from_dict` takes it back."""
        return {
            "names": list(self.names),
            "palette": [list(colour) for colour in self.palette],
            "ids": list(self.ids),
            "ignored": list(self.ignored),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> "Labels":
        """The labels that :meth:`to_dict` wrote."""
        try:
            return cls(given["names"], given["palette"], given["ids"], given.get("ignored", ()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"labels need names, palette, ids and ignored, one of each per class ({error!r})"
            ) from error

    def _complaint(self, unknown: Sequence[int], file: object) -> str:
        where = f"{file}: " if file is not None else ""
        many = "values" if len(unknown) > 1 else "value"
        shown = ", ".join(map(str, unknown[:8])) + (", ..." if len(unknown) > 8 else "")
        ignored = f", ignored are {spans(self.ignored)}" if self.ignored else ""
        return f"{where}unknown label {many} {shown}; classes are {spans(self.ids)}{ignored}"


def whole(value: object) -> bool:
    """Whether a value is a whole number, of Python or NumPy.

    >>> whole(3), whole(np.uint8(3)), whole(3.0), whole("3"), whole(True)
    (True, True, False, False, False)
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _value(given: Any) -> int:
    if not whole(given):
        raise DataError(f"label value {given!r} is not a whole number")
    return int(given)


def _colour(given: Iterable[Any]) -> Colour:
    colour = tuple(given)
    if len(colour) != 3 or not all(whole(part) and 0 <= part <= 255 for part in colour):
        raise DataError(f"{colour} is no colour: give red, green and blue from 0 to 255")
    return int(colour[0]), int(colour[1]), int(colour[2])


def spans(numbers: Iterable[int]) -> str:
    """Numbers in few words.

    >>> spans([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def bit_palette(count: int) -> tuple[Colour, ...]:
    """The colours of PASCAL VOC: a class number's bits dealt to red, green and blue in turn, highest bit first.

    >>> bit_palette(4)
    ((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0))
    """

    def channel(k: int, which: int) -> int:
        return sum((k >> (3 * bit + which) & 1) << (7 - bit) for bit in range(8))

    return tuple((channel(k, 0), channel(k, 1), channel(k, 2)) for k in range(count))


def hex_palette(text: str) -> tuple[Colour, ...]:
    """Colours from a text of six hexadecimal digits each.

    >>> hex_palette("800000 00ff80")
    ((128, 0, 0), (0, 255, 128))
    """
    return tuple((int(word[:2], 16), int(word[2:4], 16), int(word[4:], 16)) for word in text.split())


def differing(ones: Labels, others: Labels) -> str:
    """Where the names of two sets' classes begin to differ; empty if they are the same.

    >>> black = (0, 0, 0)
    >>> differing(Labels(("sky",), (black,), ids=(1,)), Labels(("sky", "sea"), (black, black), ids=(1, 2)))
    'there are 1 and 2'
    """
    for k, (one, other) in enumerate(zip(ones.names, others.names, strict=False)):
        if one != other:
            return f"class {k} is {one!r} and {other!r}"
    return "" if len(ones) == len(others) else f"there are {len(ones)} and {len(others)}"


def spread_palette(count: int) -> tuple[Colour, ...]:
    """Colours that are easy to tell apart, for classes that have none of their own.

    Hues go round by the golden angle, so that any few in a row differ; lightness and strength alternate.

    >>> spread_palette(2)
    ((230, 46, 46), (71, 103, 178))
    """
    colours = []
    for k in range(count):
        parts = colorsys.hsv_to_rgb(k * 0.618034 % 1, (0.8, 0.6)[k % 2], (0.9, 0.7, 1.0)[k % 3])
        colours.append(tuple(round(255 * part) for part in parts))
    return tuple((r, g, b) for r, g, b in colours)
