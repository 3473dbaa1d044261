"""The image in parts whose probabilities fit in a given memory.

Each part is computed from every window that it depends on, so it comes out as it would in one piece; windows that lie
over an edge are computed for each part that they touch. Parts are chosen such that there are few of those.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from repgraph.engine.inference.resample import Span
from repgraph.engine.inference.views import Side, View


@dataclass(frozen=True)
class Tile:
    """A part of the image in its own pixels."""

    rows: Span
    columns: Span

    @property
    def shape(self) -> tuple[int, int]:
        return _length(self.rows), _length(self.columns)


def tiles(views: Sequence[View], height: int, width: int, pixels: int) -> list[Tile]:
    """Parts whose maps have ``pixels`` at most, or are those of one window.

    The maps of a part are one of its own size and, at other scales than 1, one of that scale at a time.
    """
    rows = [Cut(height, count, [v.rows for v in views]) for count in _counts(height, [v.rows for v in views])]
    columns = [Cut(width, count, [v.columns for v in views]) for count in _counts(width, [v.columns for v in views])]
    best: tuple[int, Cut, Cut] | None = None
    for down in rows:
        across = next((found for found in columns if weight(down, found) <= pixels), None)
        if across is None and down is rows[-1]:  # nothing fits: parts of a window at most
            across = columns[-1]
        if across is not None:
            work = sum(a * b for a, b in zip(down.windows, across.windows, strict=True))
            if best is None or work < best[0]:
                best = work, down, across
            if across is columns[0]:  # one column: more rows would only be more work
                break
    assert best is not None
    return [Tile(down, across) for down in best[1].spans for across in best[2].spans]


class Cut:
    """One side of the image in so many parts, and what they need at each scale."""

    def __init__(self, size: int, parts: int, sides: Sequence[Side]) -> None:
        self.size, self.parts, self.sides = size, parts, sides

    @cached_property
    def spans(self) -> list[Span]:
        return cut(self.size, self.parts)

    @cached_property
    def longest(self) -> int:
        return max(map(_length, self.spans))

    @cached_property
    def scaled(self) -> list[int]:
        """The most pixels that a part needs at each scale; 0 where that is the image's own."""
        return [
            0 if side.back.identity else max(_length(side.back.needs(span)) for span in self.spans)
            for side in self.sides
        ]

    @cached_property
    def windows(self) -> list[int]:
        """How many windows the parts need at each scale, together."""
        return [sum(len(side.windows(span)) for span in self.spans) for side in self.sides]


def weight(down: Cut, across: Cut) -> int:
    """Pixels of the maps that the largest part needs at once."""
    scaled = [
        (a or down.longest) * (b or across.longest)  # one side may keep its size where the other does not
        for a, b in zip(down.scaled, across.scaled, strict=True)
        if a or b
    ]
    return down.longest * across.longest + max(scaled, default=0)


def cut(size: int, parts: int) -> list[Span]:
    """A side in parts of one length, or as near as whole pixels come.

    >>> cut(7, 3)
    [(0, 2), (2, 4), (4, 7)]
    """
    edges = [size * part // parts for part in range(parts + 1)]
    return list(pairwise(edges))


def windows(views: Sequence[View], parts: Iterable[Tile]) -> int:
    """How many windows the parts need together."""
    return sum(len(v.rows.windows(tile.rows)) * len(v.columns.windows(tile.columns)) for tile in parts for v in views)


def _counts(size: int, sides: Sequence[Side]) -> list[int]:
    """Numbers of parts to try, all of the small ones and some of the larger ones, down to parts of a window at most.

    That is, in the image's own pixels, a window of the largest scale.
    """
    most = math.ceil(size / min(math.ceil(side.axis.window * size / side.axis.size) for side in sides))
    found = [1]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, round(found[-1] * 1.1))))
    return found


def _length(span: Span) -> int:
    return span[1] - span[0]
