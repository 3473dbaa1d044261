"""Figures: marks and bars match the data, texts are escaped, and files are reproducible."""

import re
from dataclasses import replace

import matplotlib.style
import numpy as np
import pytest
from PIL import Image

from repgraph.errors import UsageError
from repgraph.visualize import figures
from repgraph.visualize.affinity import AffinityStatistics, Histogram, PositionAffinity, Summary, uniform
from repgraph.visualize.collect import PositionNodes, paint_objects
from repgraph.visualize.nodes_figure import MIN_POINTS, POSITION_POINTS, Cell, choose_positions, draw_nodes

SIZE = (30, 40)
PICTURE = Image.new("RGB", SIZE[::-1], (128, 128, 128))
NODES = PositionNodes(10, 20, ((31, 4, 0.7), (2.5, 25, 0.2999), (20, 10, 0.0001), (50, 10, 0.0)))


def draw(*rows, **options):
    with figures.figure_style():
        return draw_nodes(rows, **options)


def marks(axis):
    """Return position, radius in points, and fill colour of each mark."""
    found = []
    for mark in axis.collections:
        face = mark.get_facecolor()
        radius = mark.get_sizes()[0] ** 0.5 / 2
        found.append((tuple(mark.get_offsets().tolist()[0]), radius, tuple(face[0][:3]) if len(face) else None))
    return found


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def test_nodes_marks():
    axis = draw([Cell(PICTURE, SIZE, NODES)]).axes[0]
    assert axis.images[0].get_extent() == [-0.5, 39.5, 29.5, -0.5]  # pixel centres are at integers
    *nodes, position = marks(axis)
    blue, red = rgb(figures.POSITION_COLOUR), rgb(figures.NODE_COLOUR)
    assert position == ((10, 20), pytest.approx(POSITION_POINTS), pytest.approx(blue))
    places = {place: (radius, colour) for place, radius, colour in nodes}
    assert set(places) == {(31, 4), (2.5, 25), (20, 10), (39.5, 10)}
    assert places[31, 4][0] > places[2.5, 25][0] > places[20, 10][0] >= MIN_POINTS
    assert places[31, 4][1] == pytest.approx(red)
    assert places[39.5, 10][1] is None, "a node outside of the image is a ring at its border"
    for axis in draw([Cell(PICTURE, SIZE, NODES)] * 8, width=4).axes[:8]:
        assert min(radius for _, radius, _ in marks(axis)) >= MIN_POINTS


def test_files_do_not_depend_on_the_users_style(tmp_path):
    row = [Cell(PICTURE, SIZE, None, "a $x_1^$ <script>.png"), Cell(PICTURE, SIZE, NODES, "猫")]

    def write(name):
        with figures.figure_style():
            return figures.save(draw_nodes([row]), tmp_path / name, 100).read_bytes()

    text = write("a.svg").decode()
    assert text.count("<image") == 2 and "<script>" not in text
    assert len(re.findall(r'id="PathCollection_\d+"', text)) == 5  # four nodes and the position, as vectors
    style = {"text.usetex": True, "axes.grid": True, "savefig.bbox": "tight", "savefig.facecolor": "black"}
    with matplotlib.style.context(["dark_background", style]):
        assert write("b.svg").decode() == text


def test_rows():
    wide = Cell(Image.new("RGB", (40, 10)), (10, 40))
    figure = draw([wide, Cell(PICTURE, SIZE)], [wide], width=3.5)
    boxes = [axis.get_position() for axis in figure.axes[:3]]
    assert figure.get_figwidth() == 3.5 and len({round(box.width, 9) for box in boxes}) == 1
    assert boxes[2].y1 < boxes[1].y0 <= boxes[0].y0, "the second row is below both pictures of the first"
    figure = draw([Cell(PICTURE, SIZE, replace(NODES, window=(12, 6)))], windows=True)
    squares = {tuple(patch.get_bbox().extents.tolist()): patch.get_alpha() for patch in figure.axes[0].patches}
    (first, second, third) = sorted(squares, key=lambda square: -squares[square])  # not of the node outside
    assert [first, second, third] == [(25, 1, 37, 7), (-3.5, 22, 8.5, 28), (14, 7, 26, 13)] and squares[third] > 0.2
    with pytest.raises(UsageError, match="30 columns do not fit into 4 inches"):
        draw([wide] * 30, width=4)


BOXES = ((10, 20, 60, 80), (12, 21, 62, 81), (100, 40, 130, 70))
EDGES = tuple(10.0 ** (k / 2) for k in range(-8, 7))


def test_chosen_positions_differ():
    classes = np.zeros((100, 150), int)
    classes[30:60, 20:50], classes[5, 140] = 1, 2  # an object, and a speck
    chosen = choose_positions(classes, 4)
    assert [classes[int(y), int(x)] for x, y in chosen] == [0, 1, 0, 0]
    apart = [np.hypot(a[0] - b[0], a[1] - b[1]) for i, a in enumerate(chosen) for b in chosen[:i]]
    assert min(apart) > 30 and choose_positions(classes, 4) == chosen
    painted = np.zeros((3, 100, 150))
    for mask, (left, top, right, bottom) in zip(painted, BOXES, strict=True):
        mask[top:bottom, left:right] = 1  # the second covers the first
    chosen = choose_positions(paint_objects(classes.shape, painted), 3)
    assert [painted[:, int(y), int(x)].tolist() for x, y in chosen] == [[1, 1, 0], [0, 0, 1], [0, 0, 0]]


def histogram(weights, mass):
    return Histogram(EDGES, *(tuple(given.get(k, 0.0) for k in range(14)) for given in (weights, mass)))


def draw_affinity(first, second, shape=(4, 6)):
    summaries = dict.fromkeys(("top", "percent", "effective", "effective_share"), Summary(0.5, 0.1, {0.5: 0.4}))
    statistics = AffinityStatistics("head", 1, 9, ({},), 24, histogram=first, **summaries)
    weights = np.full((1, *shape), 1 / np.prod(shape))
    position = PositionAffinity(0, 1, (12.0, 7.0), (8.0, 8.0), weights, uniform(24), uniform(24), second)
    with figures.figure_style(5):
        figure = figures.draw_affinity(statistics, position, np.asarray(PICTURE), width=5)
        figure.draw_without_rendering()
    return figure


def test_affinity_bars_and_map():
    first = histogram({0: 0.0004, 3: 0.6, 9: 0.3996}, {3: 0.1, 9: 0.9})
    left, middle, place = draw_affinity(first, histogram({6: 0.5, 12: 0.5}, {6: 0.2, 12: 0.8})).axes
    weights, mass = (patch.get_data() for patch in left.patches)
    assert left.get_xlim() == pytest.approx((EDGES[3], EDGES[13]))
    assert weights.values.sum() == pytest.approx(1) and weights.values[3] == pytest.approx(0.6)
    assert mass.values[3] == pytest.approx(0.1) and mass.values[9] == pytest.approx(0.9)
    assert left.get_xlim() == middle.get_xlim() and left.get_ylim() == middle.get_ylim()
    assert place.images[1].get_extent() == [-0.5, 47.5, 31.5, -0.5], "a detector's map reaches into the padding"
    assert place.get_xlim() == (-0.5, 39.5) and place.get_ylim() == (29.5, -0.5)
    assert tuple(place.lines[0].get_xydata()[0]) == (12, 7)
