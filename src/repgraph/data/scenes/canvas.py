"""What pictures are painted on: shapes are distance fields, so that edges are smooth at any size of picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repgraph.data.scenes.chance import Array

HEIGHT = 96.0  # of a picture in units; a unit is a pixel of a picture with that many rows
Colour = tuple[float, float, float]
Point = tuple[float, float]


@dataclass(frozen=True)
class Canvas:
    """A picture (3, H, W) from 0 to 1 and its labels (H, W), with the positions of its pixels in units."""

    picture: Array
    labels: NDArray[np.uint8]
    x: Array  # (W,), from the left
    y: Array  # (H,), from the top
    scale: float  # pixels in a unit

    @classmethod
    def blank(cls, size: tuple[int, int]) -> "Canvas":
        height, width = size
        scale = height / HEIGHT
        x, y = ((np.arange(n, dtype=np.float32) + np.float32(0.5)) / np.float32(scale) for n in (width, height))
        return cls(np.zeros((3, height, width), np.float32), np.zeros((height, width), np.uint8), x, y, scale)

    @property
    def width(self) -> float:
        """In units."""
        return len(self.x) / self.scale

    def part(self, left: float, top: float, right: float, bottom: float) -> "Canvas":
        """The part between these sides, for things that are small: what is painted there is painted on the whole."""
        columns, rows = (
            slice(max(0, int(low * self.scale) - 1), max(0, int(high * self.scale) + 2))
            for low, high in ((left, right), (top, bottom))
        )
        return Canvas(
            self.picture[:, rows, columns], self.labels[rows, columns], self.x[columns], self.y[rows], self.scale
        )

    def paint(self, cover: Array, colour: Colour | Array, label: int | None = None) -> None:
        """Lay a colour, one or one for each pixel, on what is there; more than half covered pixels get the label."""
        for plane, value in zip(self.picture, colour, strict=True):
            plane += cover * (value - plane)
        if label is not None:
            self.mark(cover > 0.5, label)

    def mark(self, where: NDArray[np.bool_], label: int) -> None:
        self.labels[where] = label

    def light(self, glow: Array, colour: Colour) -> None:
        """Add light of a colour, the less the brighter it is already."""
        for plane, value in zip(self.picture, colour, strict=True):
            plane += glow * value * (1.0 - plane)

    def shade(self, factor: Array) -> None:
        """Make darker (below 1) or brighter."""
        np.multiply(self.picture, factor, out=self.picture)

    def cover(self, distance: Array) -> Array:
        """How much of each pixel a shape covers, from its distance (negative inside) in units."""
        return np.clip(0.5 - distance * np.float32(self.scale), 0.0, 1.0)

    def disc(self, centre: Point, radius: float, stretch: float = 1.0) -> Array:
        """Distance from a disc, or from an ellipse that is ``stretch`` times as wide as high (about)."""
        across = (self.x - np.float32(centre[0]))[None, :] / np.float32(stretch)
        down = (self.y - np.float32(centre[1]))[:, None]
        return np.sqrt(across * across + down * down) - np.float32(radius)

    def glow(self, centre: Point, radius: float, stretch: float = 1.0) -> Array:
        """A soft spot: 1 in its middle and exactly 0 from the radius on."""
        across = (self.x - np.float32(centre[0]))[None, :] / np.float32(radius * stretch)
        down = (self.y - np.float32(centre[1]))[:, None] / np.float32(radius)
        falling = np.maximum(1.0 - across * across - down * down, 0.0)
        return falling * falling

    def polygon(self, points: Sequence[Point]) -> Array:
        """Distance from a convex polygon, its corners given clockwise as one sees it."""
        distance: Array | None = None
        for (x0, y0), (x1, y1) in zip(points, [*points[1:], points[0]], strict=True):
            dx, dy = x1 - x0, y1 - y0
            length = math.sqrt(dx * dx + dy * dy)
            nx, ny = np.float32(dy / length), np.float32(-dx / length)
            edge = ((self.x - np.float32(x0)) * nx)[None, :] + ((self.y - np.float32(y0)) * ny)[:, None]
            distance = edge if distance is None else np.maximum(distance, edge)
        assert distance is not None
        return distance

    def box(self, left: float, top: float, right: float, bottom: float) -> Array:
        """Distance from a rectangle."""
        return self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)])

    def below(self, edge: Array) -> Array:
        """Distance from what lies below a line that has a height for each column."""
        slope = np.empty_like(edge)
        slope[1:-1] = (edge[2:] - edge[:-2]) * np.float32(self.scale / 2)
        slope[0], slope[-1] = (slope[1], slope[-2]) if len(edge) > 2 else (0.0, 0.0)
        return (edge[None, :] - self.y[:, None]) / np.sqrt(1.0 + slope * slope)[None, :]


def blend(first: Colour, second: Colour, share: float) -> Colour:
    """``share`` of the second colour in the first."""
    r, g, b = ((1 - share) * a + share * c for a, c in zip(first, second, strict=True))
    return r, g, b


def rgb(red: int, green: int, blue: int) -> Colour:
    """A colour by its usual numbers, 0 to 255."""
    return red / 255, green / 255, blue / 255
