"""Random numbers and textures that are the same on every machine, to the last bit.

NumPy promises no such thing for its distributions, and its sines and exponentials differ between processors; so
numbers come from a mixing function on whole numbers, and textures from that and from + - * / alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]  # float32
_WORD = 2**64 - 1


def mix(word: int) -> int:
    """A 64-bit number that has nothing to do with ``word`` but is always the same (SplitMix64's last step)."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


class Stream:
    """A stream of random numbers, named by whole numbers and words.

    >>> stream = Stream(0, "train", 7)
    >>> stream.number(10, 20) == Stream(0, "train", 7).number(10, 20)
    True
    """

    def __init__(self, *names: int | str) -> None:
        self._state = 0
        for name in names:
            word = int.from_bytes(name.encode(), "little") if isinstance(name, str) else name
            for part in _words(word):
                self._state = mix(self._state ^ part)

    def word(self) -> int:
        """64 random bits."""
        self._state = (self._state + 1) & _WORD
        return mix(self._state)

    def number(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number from ``low`` to ``high``."""
        return low + (high - low) * ((self.word() >> 11) * 2.0**-53)

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + self.word() % (high - low + 1)

    def coin(self, chance: float = 0.5) -> bool:
        return self.number() < chance

    def seed(self) -> int:
        """A seed for :func:`noise`."""
        return self.word() >> 32

    def one_of(self, things: Any) -> Any:
        return things[self.whole(0, len(things) - 1)]


def _words(number: int) -> list[int]:
    """The 64-bit words of a whole number of any size, with its sign and count: different numbers, different words."""
    size = number.bit_length() // 64 + 1
    return [mix(size * 2 + (number < 0)), *((abs(number) >> (64 * i)) & _WORD for i in range(size))]


def hashed(seed: int, x: NDArray[Any], y: NDArray[Any]) -> Array:
    """Random numbers from 0 to 1 for whole x and y, which are broadcast against each other."""
    word = x.astype(np.int64).astype(np.uint32) * np.uint32(0x9E3779B1)
    word = word ^ (y.astype(np.int64).astype(np.uint32) * np.uint32(0x85EBCA77) + np.uint32(seed & 0xFFFFFFFF))
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 0x85EBCA6B)):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return (word >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def noise(seed: int, x: Array, y: Array) -> Array:
    """Smooth noise from 0 to 1 at all crossings of the columns x (W,) and rows y (H,): (H, W).

    Its grain is 1: divide x and y by the size that spots should have.

    >>> axis = np.arange(5, dtype=np.float32)
    >>> noise(3, axis / 2, axis[:4] / 2).shape
    (4, 5)
    """
    left, top = np.floor(x), np.floor(y)
    columns = np.arange(left.min(), left.max() + 2)
    rows = np.arange(top.min(), top.max() + 2)
    knots = hashed(seed, columns[None, :], rows[:, None])
    i, j = (top - rows[0]).astype(np.intp), (left - columns[0]).astype(np.intp)
    v, u = smooth(y - top)[:, None], smooth(x - left)[None, :]
    across = knots[i] + v * (knots[i + 1] - knots[i])
    return across[:, j] + u * (across[:, j + 1] - across[:, j])


def fractal(seed: int, x: Array, y: Array, octaves: int = 3) -> Array:
    """Noise from 0 to 1 with finer noise on it, each octave half as strong."""
    total = noise(seed, x, y)
    weight, whole = 1.0, 1.0
    for octave in range(1, octaves):
        weight /= 2
        whole += weight
        total = total + weight * noise(seed + octave, x * 2.0**octave, y * 2.0**octave)
    return total * (1 / whole)


def smooth(t: Array) -> Array:
    """From 0 at 0 to 1 at 1, level at both ends."""
    return t * t * (3.0 - 2.0 * t)
