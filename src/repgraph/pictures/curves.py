"""Lines over a number of steps, as SVG that follows the page's colours."""

from collections.abc import Mapping, Sequence

from repgraph.pictures.page import Html, tag

WIDTH, HEIGHT = 640, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 40
KINDS = ("first", "second")


def curves(lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> Html:
    """Lines of (x, y) by their names, from zero up, with what the axes show.

    >>> drawn = curves({"mine": [(0, 2), (10, 1)]}, "iteration", "loss")
    >>> "mine" in drawn, "loss" in drawn
    (True, True)
    """
    points = [point for line in lines.values() for point in line]
    last = max((a for a, _ in points), default=1) or 1
    high = _round_up(max((b for _, b in points), default=1) or 1)

    def place(a: float, b: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * a / last
        return across, TOP + (HEIGHT - TOP - BOTTOM) * (1 - b / high)

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        _, level = place(0, share * high)
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level, stroke="var(--line)"))
        parts.append(_text(LEFT - 6, level + 4, f"{share * high:.3g}", "end"))
        across, _ = place(share * last, 0)
        parts.append(_text(across, HEIGHT - BOTTOM + 16, f"{share * last:.0f}", "end" if share == 1 else "middle"))
    for row, ((name, line), kind) in enumerate(zip(lines.items(), KINDS * len(lines), strict=False)):
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(*point) for point in line))
        style = dict(fill="none", stroke="currentColor", stroke_width=2.2, stroke_linejoin="round")
        words = tag("text", name, x=WIDTH - RIGHT - 6, y=TOP + 18 + 19 * row, text_anchor="end", fill="currentColor")
        parts.append(tag("g", tag("title", name), tag("polyline", points=path, **style), words, class_=kind))
    parts.append(_text(LEFT, HEIGHT - 6, f"{x}; up: {y}", "start"))
    return tag("svg", tag("title", f"{y} by {x}"), *parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="chart")


def _text(x: float, y: float, text: str, anchor: str) -> Html:
    return tag("text", text, x=x, y=y, text_anchor=anchor, fill="var(--soft)", font_size=12)


def _round_up(value: float) -> float:
    """The next number of the kind 1, 2, 4, 6, 8 times a power of ten."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value * 0.999)
