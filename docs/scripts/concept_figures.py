"""Draw the figures of the concept pages into docs/images: ``python docs/scripts/concept_figures.py``.

Backgrounds are white; the site inverts the lightness of ``concept-*.svg`` in dark mode (docs/stylesheets/extra.css).
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Polygon, Rectangle

IMAGES = Path(__file__).resolve().parents[1] / "images"
BLUE, RED, ORANGE, GREEN = "#1f5fbf", "#cc2f3d", "#d9822b", "#1f8a5b"
INK, GRAY, LINE, FILL = "#222222", "#6b6b6b", "#c9ced6", "#f3f5f8"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "svg.fonttype": "path",
    "svg.hashsalt": "repgraph",
    "text.color": INK,
}


def panel(axes: Axes, columns: int, rows: int, title: str = "", margin: float = 0.7) -> None:
    """Draw a map of positions: pixel centres at integers, the first row at the top."""
    axes.set_aspect("equal")
    axes.axis("off")
    axes.set_xlim(-margin, columns - 1 + margin)
    axes.set_ylim(rows - 1 + margin, -margin)
    axes.add_patch(Rectangle((-0.5, -0.5), columns, rows, facecolor=FILL, edgecolor=LINE, linewidth=1))
    for x in range(1, columns):
        axes.plot([x - 0.5, x - 0.5], [-0.5, rows - 0.5], color=LINE, linewidth=0.6, zorder=1)
    for y in range(1, rows):
        axes.plot([-0.5, columns - 0.5], [y - 0.5, y - 0.5], color=LINE, linewidth=0.6, zorder=1)
    axes.set_title(title, fontsize=10.5, color=INK, pad=8)


def arrow(
    axes: Axes, start, end, colour: str = GRAY, width: float = 1.1, bend: float = 0.0, alpha: float = 1.0
) -> None:
    style = FancyArrowPatch(
        *(start, end),
        arrowstyle="-|>",
        mutation_scale=8,
        shrinkA=3,
        shrinkB=3,
        color=colour,
        linewidth=width,
        connectionstyle=f"arc3,rad={bend}",
        alpha=alpha,
        zorder=3,
    )
    axes.add_patch(style)


def position(axes: Axes, x: float, y: float, size: float = 90, colour: str = BLUE) -> None:
    axes.scatter([x], [y], s=size, color=colour, zorder=5, marker="s")


def node(axes: Axes, x: float, y: float, weight: float = 0.3, colour: str = RED) -> None:
    axes.scatter([x], [y], s=30 + 300 * weight, color=colour, zorder=4, edgecolor="white", linewidth=0.8)


def ring(radius: float, nodes: int = 9) -> list[tuple[float, float]]:
    angles = 2 * np.pi * np.arange(nodes - 1) / (nodes - 1)
    return [(0.0, 0.0), *((radius * np.cos(a), radius * np.sin(a)) for a in angles)]


def operator() -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.7), width_ratios=[1.75, 1])
    panel(left, 14, 9, "A position attends to S = 4 nodes")
    x, y = 5, 5
    nodes = [(11.35, 1.6, 0.55), (1.7, 1.3, 0.25), (9.4, 7.3, 0.15), (2.3, 7.4, 0.05)]
    for column, row, weight in nodes:
        arrow(left, (x, y), (column, row))
        node(left, column, row, weight)
        shift = (9, 6) if row < y else (9, -11)
        left.annotate(f"{weight:.2f}", (column, row), shift, textcoords="offset points", fontsize=8.5, color=RED)
    position(left, x, y)
    left.annotate("p", (x, y), (-3, -16), textcoords="offset points", fontsize=11, color=BLUE)
    left.annotate("offset", (8.2, 3.3), (-4, 8), textcoords="offset points", fontsize=9, color=GRAY, ha="right")
    left.add_patch(Rectangle((10.5, 0.5), 2, 2, fill=False, edgecolor=INK, linewidth=1.2, linestyle="--", zorder=6))

    panel(right, 2, 2, "A node between four pixels", margin=0.85)
    tx, ty = 0.35, 0.6
    for column in (0, 1):
        for row in (0, 1):
            share = (tx if column else 1 - tx) * (ty if row else 1 - ty)
            right.plot([column, tx], [row, ty], color=GRAY, linewidth=1 + 5 * share, alpha=0.45, zorder=2)
            right.scatter([column], [row], s=45, color=INK, zorder=4)
            side = "right" if column == 0 else "left"
            shift = (-7 if column == 0 else 7, 10 if row == 0 else -14)
            right.annotate(f"{share:.2f}", (column, row), shift, textcoords="offset points", fontsize=9.5, ha=side)
    node(right, tx, ty, 0.7)
    right.text(
        0.5, 1.72, "feature = mean of the four pixels,\nwith these weights", ha="center", va="center", fontsize=9
    )
    right.set_ylim(2.0, -0.85)
    return figure


def spread() -> plt.Figure:
    figure, axes = plt.subplots(1, 4, figsize=(9.6, 2.75))
    columns, rows, x, y = 21, 21, 10, 10
    titles = ('spread="ring", radius=4', 'spread="grid"', 'spread="default"', "radius=8, node_view=5")
    grid = [(dx, dy) for dy in (-5.25, 0, 5.25) for dx in (-5.25, 0, 5.25)]
    chance = np.random.default_rng(3).uniform(-0.6, 0.6, (9, 2))
    for each, title, offsets in zip(axes, titles, (ring(4), grid, chance, ring(8)), strict=True):
        panel(each, columns, rows, title)
        for dx, dy in offsets:
            if title.endswith("view=5"):
                low = (x + dx - 2.5, y + dy - 2.5)
                each.add_patch(Rectangle(low, 5, 5, facecolor=RED, alpha=0.16, edgecolor=RED, linewidth=0.8))
            each.scatter([x + dx], [y + dy], s=20, color=RED, zorder=4, edgecolor="white", linewidth=0.5)
        each.scatter([x], [y], s=46, facecolor="none", edgecolor=BLUE, zorder=5, marker="s", linewidth=1.6)
    return figure


def sharing() -> plt.Figure:
    figure, axes = plt.subplots(1, 3, figsize=(9.4, 3.1), width_ratios=[1, 1, 1.05])
    panel(axes[0], 12, 12, "grid=1: own nodes")
    pairs = (
        ((2, 3), [(5.2, 1.1), (1.1, 7.6), (7.2, 4.3)], BLUE),
        ((8, 8), [(10.3, 5.1), (4.4, 9.6), (10.2, 10.4)], GREEN),
    )
    for (x, y), nodes, colour in pairs:
        for column, row in nodes:
            arrow(axes[0], (x, y), (column, row))
            node(axes[0], column, row, 0.15)
        position(axes[0], x, y, 60, colour)

    panel(axes[1], 12, 12, "grid=4: a cell shares nodes")
    for line in (3.5, 7.5):
        axes[1].plot([line, line], [-0.5, 11.5], color=GRAY, linewidth=1.4)
        axes[1].plot([-0.5, 11.5], [line, line], color=GRAY, linewidth=1.4)
    axes[1].add_patch(Rectangle((3.5, 3.5), 4, 4, facecolor=BLUE, alpha=0.15, edgecolor=BLUE, linewidth=1.6))
    nodes = [(1.2, 1.6), (10.3, 2.4), (9.4, 9.7)]
    for x, y in ((4, 4), (6, 5), (5, 7)):
        for column, row in nodes:
            arrow(axes[1], (x, y), (column, row), width=0.7, alpha=0.6)
        position(axes[1], x, y, 40)
    for column, row in nodes:
        node(axes[1], column, row, 0.15)

    last = axes[2]
    last.axis("off")
    last.set_title("groups=2: own weights for each\nhalf of the channels", fontsize=10.5, pad=2)
    last.set_xlim(0, 10)
    last.set_ylim(10, 0)
    for index, (low, colour) in enumerate(((0.6, BLUE), (5.4, ORANGE))):
        for row in range(5):
            place = (1.0, low + 0.78 * row)
            last.add_patch(Rectangle(place, 2.3, 0.7, facecolor=colour, alpha=0.25, edgecolor=colour, linewidth=0.8))
        weights = ((0.7, 0.2, 0.1), (0.1, 0.25, 0.65))[index]
        for place, weight in enumerate(weights):
            row = low + 0.6 + 1.35 * place
            arrow(last, (3.4, low + 1.95), (6.4, row), width=0.5 + 3 * weight, colour=colour)
            node(last, 6.9, row, 0.12)
            last.text(7.5, row, f"{weight:.2f}", va="center", fontsize=9)
    return figure


def rounds() -> plt.Figure:
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.9))
    for each, title in zip(axes, ("rounds=1, radius=4", "rounds=3, radius=4"), strict=True):
        panel(each, 19, 19, title)
    x, y = 9, 9
    cue = (x - 7 * np.sqrt(0.5), y + 7 * np.sqrt(0.5))
    for dx, dy in ring(4):
        arrow(axes[0], (x, y), (x + dx, y + dy), width=0.8)
        node(axes[0], x + dx, y + dy, 0.05)
    axes[0].add_patch(Circle((x, y), 4, fill=False, edgecolor=RED, linestyle="--", linewidth=1))

    axes[1].add_patch(Circle((x, y), 7, fill=False, edgecolor=GRAY, linestyle="--", linewidth=1))
    last = (x, y)
    for radius, colour in zip((1, 2, 4), (GREEN, ORANGE, RED), strict=True):
        for dx, dy in ring(radius):
            place = (last[0] + dx, last[1] + dy)
            axes[1].scatter(*place, s=14, color=colour, zorder=4, alpha=0.55, edgecolor="none")
        step = (last[0] - radius * np.sqrt(0.5), last[1] + radius * np.sqrt(0.5))
        arrow(axes[1], last, step, colour, 1.8)
        node(axes[1], *step, 0.1, colour)
        last = step
    for each in axes:
        each.scatter(*cue, s=230, marker="*", color=BLUE, zorder=6, edgecolor="white", linewidth=0.7)
        position(each, x, y, 70)
    axes[0].annotate("cue, out of reach", cue, (10, -11), textcoords="offset points", fontsize=9, color=BLUE)
    axes[1].text(15.6, 3.2, "4 + 2 + 1 = 7", fontsize=9, color=GRAY, ha="center")
    labels = (("round 3, radius 1", GREEN), ("round 2, radius 2", ORANGE), ("round 1, radius 4", RED))
    for row, (text, colour) in enumerate(labels):
        axes[1].scatter([11.4], [14.7 + 1.25 * row], s=24, color=colour, zorder=5)
        axes[1].text(12.0, 14.7 + 1.25 * row, text, fontsize=8.5, va="center")
    return figure


def pyramid() -> plt.Figure:
    figure, axes = plt.subplots(figsize=(9.2, 4.5))
    axes.axis("off")
    axes.set_aspect("equal")
    axes.set_xlim(-1.2, 23)
    axes.set_ylim(0, 11.2)

    def plane(left: float, bottom: float, cells: int, width: float, height: float, colour: str):
        """Draw a map in perspective; return the function from cells to the page."""

        def place(column: float, row: float) -> tuple[float, float]:
            u, v = (column + 0.5) / cells, (row + 0.5) / cells
            return left + width * u + 0.42 * height * v * 2, bottom + height * v

        corners = [
            place(c, r) for c, r in ((-0.5, -0.5), (cells - 0.5, -0.5), (cells - 0.5, cells - 0.5), (-0.5, cells - 0.5))
        ]
        axes.add_patch(Polygon(corners, facecolor=colour, alpha=0.13, edgecolor=colour, linewidth=1.2))
        for line in range(1, cells):
            axes.plot(
                *zip(place(line - 0.5, -0.5), place(line - 0.5, cells - 0.5), strict=True),
                color=colour,
                lw=0.5,
                alpha=0.55,
            )
            axes.plot(
                *zip(place(-0.5, line - 0.5), place(cells - 0.5, line - 0.5), strict=True),
                color=colour,
                lw=0.5,
                alpha=0.55,
            )
        return place

    for row, (stride, height) in enumerate(((4, 2.2), (8, 1.8), (16, 1.4), (32, 1.0))):
        bottom = 0.5 + 2.7 * row
        axes.add_patch(Rectangle((1.2, bottom), height, height * 0.75, facecolor=LINE, edgecolor=GRAY, linewidth=1))
        axes.text(1.0, bottom + height * 0.375, f"stride {stride}", ha="right", va="center", fontsize=8)
    for row in range(3):
        arrow(axes, (2.0, 2.2 + 2.7 * row), (1.9, 3.1 + 2.7 * row), width=1.0)
    axes.text(2.2, 10.85, "backbone", ha="center", fontsize=10)

    maps = [
        plane(6.6, 3.1, 12, 6.2, 1.7, BLUE),
        plane(6.9, 5.85, 6, 6.2, 1.7, ORANGE),
        plane(7.2, 8.55, 3, 6.2, 1.7, GREEN),
    ]
    for bottom, start in ((3.95, 3.1), (6.7, 2.7), (9.4, 2.35)):
        arrow(axes, (start, bottom), (6.7 + 0.12 * bottom - 0.1, bottom))
    axes.text(4.9, 4.15, "1 x 1", fontsize=8, color=GRAY, ha="center")
    arrow(axes, (14.4, 9.2), (14.1, 7.0), width=1.0)
    arrow(axes, (14.1, 6.5), (13.8, 4.3), width=1.0)
    axes.text(14.5, 8.0, "upsample, add", fontsize=8, color=GRAY)
    axes.text(9.9, 10.85, "RepGraph at strides 32 and 16: nodes on own and coarser maps", ha="center", fontsize=10)

    query = maps[1](2, 2)
    nodes = ((0.4, 4.1), (4.3, 0.9), (3.4, 4.6), (4.8, 3.4)), ((1.7, 1.2), (0.4, 1.6), (2.1, 0.2))
    for place, points in zip(maps[1:], nodes, strict=True):
        for point in points:
            spot = place(*point)
            axes.plot(*zip(query, spot, strict=True), color=GRAY, linewidth=0.9, zorder=3)
            axes.scatter(*spot, s=42, color=RED, zorder=5, edgecolor="white", linewidth=0.7)
    axes.scatter(*query, s=60, color=BLUE, marker="s", zorder=6)

    arrow(axes, (14.2, 3.6), (16.6, 2.3))
    arrow(axes, (3.5, 1.3), (16.6, 1.3))
    axes.text(8.5, 1.5, "1 x 1, 128 channels", fontsize=8, color=GRAY)
    axes.text(15.6, 3.15, "1 x 1, upsample", fontsize=8, color=GRAY)
    axes.add_patch(Rectangle((16.7, 0.5), 2.2, 2.2, facecolor=LINE, edgecolor=GRAY))
    axes.text(17.8, 1.6, "stride 4\nadd, 3 x 3", ha="center", va="center", fontsize=8)
    arrow(axes, (18.9, 1.6), (20.2, 1.6))
    axes.add_patch(Rectangle((20.3, 0.5), 2.2, 2.2, facecolor="white", edgecolor=GRAY))
    axes.text(21.4, 1.6, "classes,\nfull size", ha="center", va="center", fontsize=8)
    return figure


def main() -> None:
    """Write all figures."""
    plt.rcParams.update(STYLE)
    for draw in (operator, spread, sharing, rounds, pyramid):
        figure = draw()
        figure.tight_layout()
        path = IMAGES / f"concept-{draw.__name__}.svg"
        figure.savefig(path, facecolor="white", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.12)
        plt.close(figure)


if __name__ == "__main__":
    main()
