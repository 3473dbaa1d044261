"""Random numbers, textures and a canvas for scenes, bit-identical on every machine.

NumPy does not guarantee this for its distributions, and its sines and exponentials differ between processors. Therefore
numbers come from an integer hash, textures from these numbers and + - * / only, and shapes are distance fields.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEIGHT = 96.0  # of an image in units; a unit is a pixel of an image with 96 rows
Point = tuple[float, float]
Array = NDArray[np.floating[Any]]  # float32
Colour = Array  # (3,), float64, from 0 to 1
_WORD = 2**64 - 1


class Stream:
    """A stream of random numbers, seeded by integers and strings."""

    def __init__(self, *seeds: int | str) -> None:
        self._state = 0
        for seed in seeds:
            number = int.from_bytes(seed.encode(), "little") if isinstance(seed, str) else seed
            for word in (_mix(2), number):
                self._state = _mix(self._state ^ word)

    def bits(self) -> int:
        self._state = (self._state + 1) & _WORD
        return _mix(self._state)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        return low + (high - low) * ((self.bits() >> 11) * 2.0**-53)

    def integer(self, low: int, high: int) -> int:
        return low + self.bits() % (high - low + 1)

    def boolean(self, p: float = 0.5) -> bool:
        return self.uniform() < p

    def choice(self, values: Any) -> Any:
        return values[self.integer(0, len(values) - 1)]


def _mix(word: int) -> int:
    """Hash 64 bits (the finaliser of SplitMix64)."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def white_noise(seed: int, x: NDArray[Any], y: NDArray[Any]) -> Array:
    """Return random numbers from 0 to 1 for integers x and y, which are broadcast."""
    word = x.astype(np.int64).astype(np.uint32) * np.uint32(0x9E3779B1)
    word = word ^ (y.astype(np.int64).astype(np.uint32) * np.uint32(0x85EBCA77) + np.uint32(seed & 0xFFFFFFFF))
    for shift, factor in ((15, 0x2C1B3C6D), (12, 0x297A2D39), (15, 0x85EBCA6B)):
        word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
    return (word >> np.uint32(8)).astype(np.float32) * 2.0**-24


def noise(seed: int, x: Array, y: Array) -> Array:
    """Return smooth noise (H, W) from 0 to 1 at columns x (W,) and rows y (H,), with features of a size of about 1."""
    left, top = np.floor(x), np.floor(y)
    columns = np.arange(left.min(), left.max() + 2)
    rows = np.arange(top.min(), top.max() + 2)
    knots = white_noise(seed, columns[None, :], rows[:, None])
    i, j = (top - rows[0]).astype(np.intp), (left - columns[0]).astype(np.intp)
    v, u = smoothstep(y - top)[:, None], smoothstep(x - left)[None, :]
    across = knots[i] + v * (knots[i + 1] - knots[i])
    return across[:, j] + u * (across[:, j + 1] - across[:, j])


def fractal(seed: int, x: Array, y: Array, octaves: int = 3) -> Array:
    """Return a sum of noise (H, W) from 0 to 1; each octave is twice as fine and half as strong."""
    total = noise(seed, x, y)
    for octave in range(1, octaves):
        total = total + 0.5**octave * noise(seed + octave, x * 2.0**octave, y * 2.0**octave)
    return total * (1 / (2 - 0.5 ** (octaves - 1)))


def smoothstep(t: Array) -> Array:
    return t * t * (3.0 - 2.0 * t)


@dataclass(frozen=True)
class Canvas:
    """An image (3, H, W) from 0 to 1 and its labels (H, W), with the positions of the pixels in units."""

    image: Array
    labels: NDArray[np.uint8]
    x: Array  # (W,), from the left
    y: Array  # (H,), from the top
    scale: float  # pixels per unit

    @classmethod
    def blank(cls, size: tuple[int, int]) -> "Canvas":
        height, width = size
        scale = height / HEIGHT
        x, y = ((np.arange(n, dtype=np.float32) + 0.5) / scale for n in (width, height))
        return cls(np.zeros((3, height, width), np.float32), np.zeros((height, width), np.uint8), x, y, scale)

    def to_bytes(self, seed: int) -> NDArray[np.uint8]:
        """Return the image as uint8 (H, W, 3), with the grain of a photograph."""
        height, width = self.labels.shape
        grain = white_noise(seed, np.arange(width)[None, :], np.arange(height)[:, None]) - 0.5
        image = np.clip(self.image + 0.028 * grain, 0.0, 1.0)
        return np.ascontiguousarray((image * 255.0 + 0.5).astype(np.uint8).transpose(1, 2, 0))

    @property
    def width(self) -> float:
        return len(self.x) / self.scale

    def part(self, left: float, top: float, right: float, bottom: float) -> "Canvas":
        """Return a view of a rectangle, for small shapes: drawing on it draws on the whole."""
        left, top = (max(0, int(low * self.scale) - 1) for low in (left, top))
        right, bottom = (max(0, int(high * self.scale) + 2) for high in (right, bottom))
        rows, columns = slice(top, bottom), slice(left, right)
        image, labels = self.image[:, rows, columns], self.labels[rows, columns]
        return Canvas(image, labels, self.x[columns], self.y[rows], self.scale)

    def paint(self, cover: Array, colour: Array, label: int | None = None) -> None:
        """Blend in a color, or one color per pixel; pixels that are more than half covered get the label."""
        self.image[:] += cover * (planes(colour) - self.image)
        if label is not None:
            self.labels[cover > 0.5] = label

    def light(self, glow: Array, colour: Colour) -> None:
        """Add light of a color, less where the image is bright."""
        self.image[:] += glow * planes(colour) * (1.0 - self.image)

    def cover(self, distance: Array) -> Array:
        """Return the covered fraction of each pixel from the distance to a shape in units, negative inside."""
        return np.clip(0.5 - distance * self.scale, 0.0, 1.0)

    def disc(self, center: Point, radius: float, stretch: float = 1.0) -> Array:
        """Return the distance to a disc, or roughly the distance to an ellipse ``stretch`` times as wide as high."""
        across = (self.x - center[0])[None, :] / stretch
        down = (self.y - center[1])[:, None]
        return np.sqrt(across * across + down * down) - radius

    def glow(self, center: Point, radius: float, stretch: float = 1.0) -> Array:
        """Return a soft spot: 1 at its center, and exactly 0 from the radius on."""
        across = (self.x - center[0])[None, :] / (radius * stretch)
        down = (self.y - center[1])[:, None] / radius
        falling = np.maximum(1.0 - across * across - down * down, 0.0)
        return falling * falling

    def polygon(self, points: Sequence[Point]) -> Array:
        """Return the distance to a convex polygon with clockwise corners."""
        edges = []
        for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
            dx, dy = x1 - x0, y1 - y0
            length = math.sqrt(dx * dx + dy * dy)
            edges.append(((self.x - x0) * (dy / length))[None, :] + ((self.y - y0) * (-dx / length))[:, None])
        return np.maximum.reduce(edges)

    def box(self, left: float, top: float, right: float, bottom: float) -> Array:
        return self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)])

    def below(self, edge: Array) -> Array:
        """Return the distance to the area below a line, given by its height in each column."""
        slope = np.pad((edge[2:] - edge[:-2]) * (self.scale / 2), 1, "edge") if len(edge) > 2 else np.zeros_like(edge)
        return (edge[None, :] - self.y[:, None]) / np.sqrt(1.0 + slope * slope)[None, :]


def planes(colour: Array) -> Array:
    """Return a color as (3, 1, 1), float32; a color for each pixel, (3, H, W), stays as it is."""
    values = np.asarray(colour, np.float32)
    return values[:, None, None] if values.ndim == 1 else values
