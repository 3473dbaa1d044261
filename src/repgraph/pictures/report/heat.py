"""A confusion matrix as a map: what became of each class, in per cent of its pixels."""

from collections.abc import Sequence

import numpy as np

from repgraph.pictures.legend import plain
from repgraph.pictures.page import Html, table, tag

LEAST = 0.005  # share of a row below which a cell stays empty
VALUES = 24  # classes up to which values stand in the cells
LETTERS = 20
TOP_CONFUSIONS = 8


def heat(confusion: np.ndarray, names: Sequence[str]) -> Html:
    """Counts (K, K) by rows as SVG: row t, column p is the share of class t's pixels that were predicted as p.

    >>> drawn = heat(np.array([[3, 1], [0, 0]]), ("sky", "sea"))
    >>> "sky seen as sea: 25.0 %" in drawn, drawn.count("<rect")
    (True, 3)
    """
    shares, count = by_rows(confusion), len(names)
    cell = 30 if count <= 12 else 26 if count <= VALUES else 14 if count <= 80 else 11
    size = min(12, cell - 1)
    short = [name if len(name) <= LETTERS else name[: LETTERS - 1] + "…" for name in map(plain, names)]
    margin = 14 + round(0.56 * size * max(map(len, short), default=0))
    top = max(margin, 30)
    parts = [tag("rect", x=margin, y=top, width=cell * count, height=cell * count, fill="none", stroke="var(--line)")]
    for k, (name, whole) in enumerate(zip(short, names, strict=True)):
        middle = cell * (k + 0.5)
        parts.append(tag("text", tag("title", whole), name, x=margin - 6, y=top + middle + size / 3, text_anchor="end"))
        turned = f"translate({margin + middle + size / 3:.1f} {top - 6}) rotate(-90)"
        parts.append(tag("text", tag("title", whole), name, transform=turned))
    for t, p in zip(*np.nonzero(shares >= LEAST), strict=True):
        parts.append(_cell(shares[t, p], names[t], names[p], margin + cell * p, top + cell * t, cell, count))
    width, height = margin + cell * count + 4, top + cell * count + 4
    titled = tag("title", "Rows: true classes. Columns: what the network said. In per cent of each row.")
    return tag(
        "svg", titled, *parts, viewBox=f"0 0 {width} {height}", width=width, height=height, font_size=size,
        class_="heat", role="img", style=f"width: {width}px",
    )  # fmt: skip


def _cell(share: float, true: str, predicted: str, x: float, y: float, side: int, count: int) -> Html:
    words = f"{true}: {100 * share:.1f} % right" if true == predicted else f"{true} seen as {predicted}"
    words = words if true == predicted else f"{words}: {100 * share:.1f} %"
    box = tag("rect", x=x, y=y, width=side, height=side, fill_opacity=f"{0.08 + 0.92 * share**0.6:.2f}")
    if count > VALUES:  # the corner may be out of sight
        return tag("g", tag("title", words), box, class_="cell")
    kind = "value light" if share > 0.4 else "value"
    place = dict(x=x + side / 2, y=y + side / 2 + 4, text_anchor="middle", class_=kind)
    return tag("g", box, tag("text", words), tag("text", f"{100 * share:.0f}", **place), class_="cell")


def by_rows(confusion: np.ndarray) -> np.ndarray:
    """Shares of each row's sum; zeros where there is nothing."""
    counts = np.asarray(confusion, dtype=float)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


def confusions(confusion: np.ndarray, names: Sequence[str]) -> Html | None:
    """The most frequent mistakes, by pixels, as a table; None if there is none."""
    counts, shares = np.asarray(confusion), by_rows(confusion)
    wrong = np.where(np.eye(len(names), dtype=bool), 0, counts)
    order = np.argsort(-wrong, axis=None, kind="stable")[:TOP_CONFUSIONS]
    found = [divmod(int(at), len(names)) for at in order if wrong.flat[at]]
    if not found:
        return None
    total = max(int(counts.sum()), 1)
    rows = [
        [
            tag("td", names[t]),
            tag("td", names[p]),
            tag("td", f"{100 * shares[t, p]:.1f}", class_="number"),
            tag("td", f"{100 * wrong[t, p] / total:.2f}", class_="number"),
        ]
        for t, p in found
    ]
    heads = [tag("th", text, scope="col") for text in ("is", "was called", "% of the class", "% of all pixels")]
    return table(heads, rows)
