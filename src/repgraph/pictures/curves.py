"""Lines over a number of steps, as SVG that follows the page's colours.

Lines differ in colour and dashes, and have their names at their ends. Point at a place for the values there: that is
done by the style sheet, as a page runs no program.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from repgraph.pictures.legend import plain
from repgraph.pictures.page import COLOURS, Html, tag

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT = 460, 258
LEFT, TOP, BOTTOM = 48, 28, 36
DASHES = (None, "7 4", "2 3", "11 4 2 4", "5 2", "1 4", "13 5")
MOST = 160  # points of a line; of more, means are drawn
STOPS = 48  # places to point at
LETTER = 6.4  # width of one, about
GAP = 14  # between lines of text


def style_of(index: int) -> tuple[str, str | None]:
    """The class (a colour) and the dashes of line ``index``; the first 42 differ.

    >>> style_of(0), style_of(1), style_of(6)[0]
    (('first', None), ('second', '7 4'), 'first')
    """
    return COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]


def thinned(points: Points, most: int = MOST) -> list[tuple[float, float]]:
    """At most so many points; each is the mean of as many neighbours. Values that are not finite are left out.

    >>> thinned([(1, 2), (2, 4), (3, math.nan), (4, 8), (5, 10)], 2)
    [(1.5, 3.0), (4.5, 9.0)]
    """
    good = [(float(a), float(b)) for a, b in points if math.isfinite(a) and math.isfinite(b)]
    size = math.ceil(len(good) / most) if good else 1
    parts = [good[i : i + size] for i in range(0, len(good), size)]
    return [good_mean(part) for part in parts] if size > 1 else good


def good_mean(points: Points) -> tuple[float, float]:
    return math.fsum(a for a, _ in points) / len(points), math.fsum(b for _, b in points) / len(points)


def curves(
    lines: Mapping[str, Points],
    x: str,
    y: str,
    *,
    faint: Mapping[str, Points] | None = None,
    styles: Sequence[int] | None = None,
) -> Html:
    """Lines of (x, y) by their names, with what the axes show.

    ``faint`` are thin companions of lines, by the same names. ``styles`` are the lines' numbers for
    :func:`style_of`; 0, 1, ... by default. The y axis begins at zero unless all values lie far from it; a few values
    far above all others are cut off.

    >>> drawn = curves({"mine": [(0, 2), (10, 1)]}, "iteration", "loss")
    >>> "mine" in drawn, "loss" in drawn
    (True, True)
    """
    drawn = {name: thinned(line) for name, line in lines.items()}
    thin = {name: thinned(line) for name, line in (faint or {}).items()}
    numbers = dict(zip(drawn, styles if styles is not None else range(len(drawn)), strict=True))
    frame = _Frame([*drawn.values(), *thin.values()], _room(drawn))
    parts = [frame.axes(x, y)]
    for name, line in thin.items():
        parts.append(_line(frame, line, name, numbers.get(name, 0), width=1, opacity=0.75))
    for name, line in drawn.items():
        parts.append(_line(frame, line, name, numbers[name]))
    parts += _labels(frame, drawn, numbers)
    parts.append(_stops(frame, drawn, numbers, x))
    return tag("svg", tag("title", f"{y} by {x}"), *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="chart")


class _Frame:
    """The box that lines are drawn in, and what its sides stand for."""

    def __init__(self, lines: Sequence[Points], room: float) -> None:
        self.right = WIDTH - room
        across, up = ([point[axis] for line in lines for point in line] for axis in (0, 1))
        self.steps = [0.0, max(across, default=1.0) or 1.0]
        self.cut = _ceiling(up)
        shown = [min(value, self.cut) for value in up]
        low, high = min(shown, default=0.0), max(shown, default=1.0)
        low = 0.0 if 0 <= low < 0.6 * high or 0 < low == high else low
        self.ticks = ticks(low, high if high > low else low + (abs(low) or 1.0))

    def place(self, a: float, b: float) -> tuple[float, float]:
        low, high = self.ticks[0], self.ticks[-1]
        share = (min(max(b, low), high) - low) / (high - low)
        return LEFT + (self.right - LEFT) * a / self.steps[1], TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    def axes(self, x: str, y: str) -> Html:
        parts = []
        for value in self.ticks:
            level = self.place(0, value)[1]
            parts.append(tag("line", x1=LEFT, x2=_n(self.right), y1=_n(level), y2=_n(level), stroke="var(--line)"))
            parts.append(_text(LEFT - 6, level + 4, number(value), "end"))
        for value in ticks(0, self.steps[1], 4):
            if value <= self.steps[1]:
                parts.append(_text(self.place(value, 0)[0], HEIGHT - BOTTOM + 16, number(value), "middle"))
        parts += [_text(4, 14, y, "start"), _text(self.right, HEIGHT - 5, x, "end")]
        return tag("g", *parts, font_size=12)


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``.

    >>> ticks(0, 0.83), ticks(71, 84), ticks(0, 0)
    ([0.0, 0.25, 0.5, 0.75, 1.0], [70.0, 75.0, 80.0, 85.0], [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    if not high > low:
        high = low + 1
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    return [round(k * step, 12) for k in range(first, last + 1)]


def number(value: float) -> str:
    """A number of an axis or a tip in few letters.

    >>> number(12000), number(0.25), number(83.7142), number(1e-5), number(-0.0)
    ('12k', '0.25', '83.71', '1e-05', '0')
    """
    if value == 0:
        return "0"
    if abs(value) >= 10_000 and math.isfinite(value):
        size, unit = (1e6, "M") if abs(value) >= 1e6 else (1e3, "k")
        return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def is_cut(lines: Sequence[Points]) -> bool:
    """Whether some values are drawn at the upper rim, as they lie far above the others."""
    return math.isfinite(_ceiling([b for line in lines for _, b in thinned(line)]))


def _ceiling(values: Sequence[float]) -> float:
    """The largest value that is not above five times what 95 % stay below, if any is; what is higher is cut off."""
    ordered = sorted(values)
    limit = 5 * ordered[int(0.95 * (len(ordered) - 1))] if ordered else math.inf
    if len(ordered) < 10 or not 0 < limit < ordered[-1]:
        return math.inf
    return max(value for value in ordered if value <= limit)


def _room(lines: Mapping[str, Points]) -> float:
    """What the names at the ends of lines need."""
    longest = max((len(_short(name)) for name in lines), default=0) if len(lines) > 1 else 0
    return 12 + LETTER * longest


def _short(name: str) -> str:
    name = plain(name)
    return name if len(name) <= 16 else name[:15] + "…"


def _line(frame: _Frame, line: Points, name: str, index: int, width: float = 2, opacity: float | None = None) -> Html:
    kind, dash = style_of(index)
    path = " ".join(f"{_n(a)},{_n(b)}" for a, b in (frame.place(*point) for point in line))
    style = dict(fill="none", stroke="currentColor", stroke_width=width, stroke_linejoin="round", opacity=opacity)
    made = [tag("title", name), tag("polyline", points=path, stroke_dasharray=dash, **style)]
    if len(line) == 1:
        a, b = frame.place(*line[0])
        made.append(tag("circle", cx=_n(a), cy=_n(b), r=3, fill="currentColor"))
    return tag("g", *made, class_=kind)


def _labels(frame: _Frame, lines: Mapping[str, Points], numbers: Mapping[str, int]) -> list[Html]:
    """Names at the ends of lines, moved apart; a line alone needs none."""
    if len(lines) < 2:
        return []
    ends = sorted((frame.place(*line[-1])[1], name) for name, line in lines.items() if line)
    heights = spread([height for height, _ in ends], GAP, TOP + 2, HEIGHT - BOTTOM + 4)
    return [
        tag(
            "text", tag("title", name), _short(name), x=_n(frame.right + 6), y=_n(height + 4), font_size=12,
            fill="currentColor", class_=style_of(numbers[name])[0],
        )
        for height, (_, name) in zip(heights, ends, strict=True)
    ]  # fmt: skip


def spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Sorted heights, moved so that they are ``gap`` apart where there is room for that.

    >>> spread([10, 11, 50], 10, 0, 100)
    [10, 20, 50]
    >>> spread([99, 99], 10, 0, 100)
    [90, 100]
    """
    gap = min(gap, (high - low) / max(len(heights) - 1, 1))
    found: list[float] = []
    for height in heights:
        found.append(max(height, found[-1] + gap) if found else max(height, low))
    limit = high
    for i in range(len(found) - 1, -1, -1):
        found[i] = min(found[i], limit)
        limit = found[i] - gap
    return found


def _stops(frame: _Frame, lines: Mapping[str, Points], numbers: Mapping[str, int], x: str) -> Html:
    """Strips to point at, each with the values of all lines there."""
    places = sorted({a for line in lines.values() for a, _ in line})
    chosen = places[:: max(1, math.ceil(len(places) / STOPS))]
    edges = [(a + b) / 2 for a, b in itertools.pairwise(chosen)]
    bounds = list(zip([0.0, *edges], [*edges, frame.steps[1]], strict=True)) if chosen else []
    return tag("g", *(_stop(frame, lines, numbers, x, *stop) for stop in zip(chosen, bounds, strict=True)))


def _stop(
    frame: _Frame, lines: Mapping[str, Points], numbers: Mapping[str, int], x: str, at: float,
    bounds: tuple[float, float],
) -> Html:  # fmt: skip
    left, right = (frame.place(bound, 0)[0] for bound in bounds)
    here, height = frame.place(at, 0)[0], HEIGHT - TOP - BOTTOM
    marks = [tag("line", x1=_n(here), x2=_n(here), y1=TOP, y2=HEIGHT - BOTTOM, stroke="var(--soft)")]
    said = [("", f"{x} {number(at)}")]
    for name, line in lines.items():
        near = [point for point in line if bounds[0] <= point[0] <= bounds[1]]
        if near:
            point = min(near, key=lambda each: abs(each[0] - at))
            kind = style_of(numbers[name])[0]
            a, b = frame.place(*point)
            marks.append(tag("circle", cx=_n(a), cy=_n(b), r=3.5, fill="currentColor", class_=kind))
            said.append((kind, f"{_short(name)} {number(point[1])}" if len(lines) > 1 else number(point[1])))
    wide = LETTER * max(len(text) for _, text in said) + 14
    start = here + 8 if here + 8 + wide < frame.right else here - 8 - wide
    box = tag("rect", x=_n(start), y=TOP, width=_n(wide), height=GAP * len(said) + 8, rx=4, class_="tip")
    words = [
        tag("text", text, x=_n(start + 7), y=TOP + 2 + GAP * (i + 1), fill="currentColor", class_=kind or None)
        for i, (kind, text) in enumerate(said)
    ]
    area = tag("rect", x=_n(left), y=TOP, width=_n(max(right - left, 1)), height=height, fill="transparent")
    return tag("g", area, tag("g", *marks, box, *words, font_size=12), class_="stop")


def _text(x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, x=_n(x), y=_n(y), text_anchor=anchor, fill="var(--soft)")


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
