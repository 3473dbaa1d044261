"""The appendix figure: marks are where they should be, can be seen, and stay vectors."""

import io
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from repgraph.errors import UsageError
from repgraph.pictures.figure import paper
from repgraph.pictures.figure.nodes import POSITION, SMALLEST, Cell, draw
from repgraph.pictures.nodes import HERE, NODE, Look

SIZE = (30, 40)
GREY = np.full((*SIZE, 3), 128, np.uint8)
LOOK = Look(10, 20, ((31, 4, 0.7), (2.5, 25, 0.2999), (20, 10, 0.0001), (50, 10, 0.0)))


def made(rows, **options):
    with paper.style():
        return draw(rows, **options)


def rendered(chart, kind, dpi=200):
    buffer = io.BytesIO()
    with paper.style():
        chart.savefig(buffer, format=kind, dpi=dpi)
    return buffer.getvalue()


def saved(rows):
    with paper.style(), tempfile.TemporaryDirectory() as folder:
        return paper.save(draw(rows), Path(folder) / "figure.svg", 100).read_text()


def marks(axis):
    """Place, radius in points, and colour of the fill of each mark."""
    found = []
    for one in axis.collections:
        (place,) = one.get_offsets().tolist()
        face = one.get_facecolor()
        found.append((tuple(place), one.get_sizes()[0] ** 0.5 / 2, tuple(face[0][:3]) if len(face) else None))
    return found


def rgb(colour):
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))


def test_marks_are_where_the_look_says():
    axis = made([[Cell(GREY, SIZE, LOOK)]]).axes[0]
    *nodes, here = marks(axis)
    assert here == ((10, 20), pytest.approx(POSITION), pytest.approx(rgb(HERE)))
    places = {place: (radius, colour) for place, radius, colour in nodes}
    assert set(places) == {(31, 4), (2.5, 25), (20, 10), (39.5, 10)}
    assert places[31, 4][0] > places[2.5, 25][0] > places[20, 10][0] >= SMALLEST
    assert places[31, 4][1] == pytest.approx(rgb(NODE))
    assert places[39.5, 10][1] is None, "a node outside of the image is a ring at its rim"


def test_the_smallest_nodes_can_be_seen_in_narrow_columns():
    row = [Cell(GREY, SIZE, LOOK)] * 8
    for axis in made([row], width=4).axes[:8]:
        assert min(radius for _, radius, _ in marks(axis)) >= SMALLEST


def test_pixels_of_the_picture_have_the_marks_where_they_belong():
    """Pixel centres are at integers: pixel (10, 20) of 40 x 30 is 10.5 / 40 across, and 20.5 / 30 down."""
    chart = made([[Cell(GREY, SIZE, LOOK)]], width=4, legend=False)
    picture = np.asarray(Image.open(io.BytesIO(rendered(chart, "png"))).convert("RGB")).astype(int)
    box = chart.axes[0].get_position()
    left, top = box.x0 * picture.shape[1], (1 - box.y1) * picture.shape[0]
    for (x, y), colour in (((10, 20), HERE), ((31, 4), NODE)):
        column = left + (x + 0.5) / 40 * box.width * picture.shape[1]
        row = top + (y + 0.5) / 30 * box.height * picture.shape[0]
        pixel = picture[int(row), int(column)]
        wanted = np.array(rgb(colour)) * 255
        assert np.abs(pixel - wanted).max() < 60 and pixel.argmax() == wanted.argmax()


def test_vectors_stay_vectors_and_names_stay_text():
    cells = [Cell(GREY, SIZE, None, "a $x_1^$ <script>.png"), Cell(GREY, SIZE, LOOK, "猫")]
    text = saved([cells])
    assert text.count("<image") == 2 and "<script>" not in text
    assert len(re.findall(r'id="PathCollection_\d+"', text)) == 5  # four nodes and the position


def test_the_same_figure_is_the_same_file():
    assert saved([[Cell(GREY, SIZE, LOOK, "one")]]) == saved([[Cell(GREY, SIZE, LOOK, "one")]])


def test_rows_have_the_height_of_their_highest_picture_and_widths_are_exact():
    wide = Cell(np.zeros((10, 40, 3), np.uint8), (10, 40))
    chart = made([[wide, Cell(GREY, SIZE)], [wide]], width=3.5, captions=False, legend=False)
    assert chart.get_figwidth() == 3.5
    boxes = [axis.get_position() for axis in chart.axes]
    assert len({round(box.width, 9) for box in boxes}) == 1
    assert boxes[2].y1 < boxes[1].y0 <= boxes[0].y0, "the second row lies below both pictures of the first"
    height = chart.get_figheight()
    assert boxes[1].height * height / (boxes[1].width * 3.5) == pytest.approx(30 / 40)


def test_squares_are_around_what_nodes_are_the_mean_of():
    windows = ((25.5, -0.5, 36.5, 9.5), (-0.5, 19.5, 8, 29.5), (14.5, 4.5, 25.5, 15.5), None)
    chart = made([[Cell(GREY, SIZE, replace(LOOK, windows=windows))]])
    squares = {tuple(one.get_bbox().extents.tolist()): one.get_alpha() for one in chart.axes[0].patches}
    assert set(squares) == set(windows[:3])
    assert squares[windows[0]] > squares[windows[1]] > squares[windows[2]] > 0.2, "the clearer the more weight"
    legend = [text.get_text() for text in chart.axes[1].get_legend().get_texts()]
    assert len(legend) == 4 and "what a node is the mean of" in legend
    plain = made([[Cell(GREY, SIZE, LOOK)]])
    assert not plain.axes[0].patches and len(plain.axes[1].get_legend().get_texts()) == 3


def test_links_are_lines_to_the_nodes():
    axis = made([[Cell(GREY, SIZE, LOOK)]], links=True).axes[0]
    ends = {tuple(float(v) for v in (line.get_xdata()[1], line.get_ydata()[1])) for line in axis.lines}
    assert ends == {(31, 4), (2.5, 25), (20, 10), (39.5, 10)}
    assert not made([[Cell(GREY, SIZE, LOOK)]]).axes[0].lines


def test_too_many_columns():
    with pytest.raises(UsageError, match="30 columns do not fit into 4 inches; give a larger width"):
        made([[Cell(GREY, SIZE)] * 30], width=4)
