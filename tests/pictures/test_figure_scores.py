"""Scores of seeds as a picture: what is drawn is what was given, and all of it is in the picture."""

import io
import math
import statistics
import threading

import matplotlib
import matplotlib.style
import pytest
from PIL import Image

from repgraph.pictures.figure import paper
from repgraph.pictures.figure.scores import draw

LABELS = ["baseline", "one", "two", "three", "nothing"]
SCORES = [[60.0, 61.0, 65.0], [63.5], [64.0, 62.0], [66.0, 66.5, 68.0], []]


def made(*arguments, **options):
    with paper.style():
        chart = draw(*arguments, **options)
        chart.canvas.draw()
    return chart


def points(chart, gid):
    """Of each line of that name, its points."""
    return [
        [tuple(map(float, point)) for point in line.get_xydata()]
        for line in chart.axes[0].lines
        if line.get_gid() == gid
    ]


def small_print(chart):
    return chart.get_supxlabel().replace("\n", " ")


def test_what_is_drawn():
    chart = made("Title", LABELS, SCORES, 0, axis="mIoU on val, %", note="voc, seeds 0 1 2.")
    (axes,) = chart.axes
    assert points(chart, "seeds") == [[(score, row) for row, scores in enumerate(SCORES) for score in scores]]
    assert points(chart, "mean") == [[(62.0, 0), (63.0, 2), (pytest.approx(200.5 / 3), 3)]]  # not of one
    low, high = (statistics.fmean(SCORES[3]) + sign * statistics.stdev(SCORES[3]) for sign in (-1, 1))
    spread = math.sqrt(7)  # (4 + 1 + 9) / 2
    bars = [[(62 - spread, 0), (62 + spread, 0)], [(62, 2), (64, 2)], [(low, 3), (high, 3)]]
    assert [bar for found in points(chart, "bar") for bar in found] == [
        pytest.approx(end) for bar in bars for end in bar
    ]
    assert [x for x, _ in points(chart, "reference")[0]] == [62.0, 62.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == LABELS
    assert axes.get_ylim() == (4.5, -0.5), "the first entry is on top, and the empty one has its row"
    assert (chart.get_suptitle(), axes.get_xlabel()) == ("Title", "mIoU on val, %")
    assert small_print(chart) == (
        "voc, seeds 0 1 2. Hollow: a seed; filled: mean ± sample standard deviation (of two seeds the range); "
        'line: mean of "baseline".'
    )
    left, right = axes.get_xlim()
    assert left < 62 - spread and right > high


def test_seeds_are_hollow_and_the_mean_is_not():
    lines = {line.get_gid(): line for line in made("Title", LABELS, SCORES).axes[0].lines}
    assert lines["seeds"].get_markerfacecolor() == "white" != lines["mean"].get_markerfacecolor()
    assert lines["seeds"].get_markersize() < lines["mean"].get_markersize() and "reference" not in lines


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        ([[60.0], [61.0]], 'Hollow: a seed; line: mean of "a".'),
        ([[60.0, 61.0], [61.0]], 'Hollow: a seed; filled: mean, and the range; line: mean of "a".'),
        ([[], [1.0, 2.0, 4.0]], "Hollow: a seed; filled: mean ± sample standard deviation."),
        ([[], []], "No scores."),
        ([[math.nan], []], "No scores."),
        ([[math.nan], [1.0]], "Hollow: a seed."),
    ],
)
def test_small_print_says_what_there_is(scores, told):
    chart = made("Title", ["a", "b"], scores, 0)
    assert small_print(chart) == told and bool(points(chart, "reference")) is ("line" in told)
    assert [label.get_text() for label in chart.axes[0].get_yticklabels()] == ["a", "b"]


@pytest.mark.parametrize("scores", [[[63.5]], [[63.501, 63.502, 63.503]], [[0.0]], [[100.0, 100.0, 100.0]], [[]]])
def test_ticks_are_plain_numbers(scores):
    axes = made("Title", ["a"], scores, 0).axes[0]
    shown = [label.get_text() for label in axes.get_xticklabels()]
    left, right = axes.get_xlim()
    ticks = [float(text.replace("\N{MINUS SIGN}", "-")) for text in shown]
    assert len(ticks) > 2 and ticks == pytest.approx(list(axes.get_xticks())) and right > left
    assert axes.xaxis.get_offset_text().get_text() == ""


@pytest.mark.parametrize("label", ["a label of many words " * 12, "longword" * 25, "$x^ 1/C' & <b> _ " * 5, "one line"])
@pytest.mark.parametrize("width", [6.9, 4.0])
def test_long_texts_are_not_cut_off(label, width):
    label = label.strip()
    chart = made(label, [label, "S = 9", label], [[60.0, 61.0]] * 3, 0, note=label, width=width)
    (axes,) = chart.axes
    ticks = axes.get_yticklabels()
    assert "".join(ticks[0].get_text().split()) == "".join(label.split())
    assert "".join(label.split()) in "".join(small_print(chart).split())
    frame, boxes = chart.bbox, [tick.get_window_extent() for tick in ticks]
    title, small = chart._suptitle.get_window_extent(), chart._supxlabel.get_window_extent()
    for box in (*boxes, title, small, axes.xaxis.label.get_window_extent(), axes.get_window_extent()):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= frame.width and box.y1 <= frame.height
    assert boxes[0].y0 >= boxes[1].y1 and boxes[1].y0 >= boxes[2].y1, "labels do not run into each other"
    assert title.y0 >= boxes[0].y1 - 2 and small.y1 <= axes.xaxis.label.get_window_extent().y0
    assert axes.get_window_extent().width > 0.3 * frame.width


def test_the_same_scores_are_the_same_file(tmp_path):
    def write(name):
        with paper.style():
            return paper.save(draw("Title", LABELS, SCORES, 0), tmp_path / name, 150).read_bytes()

    data = write("a.png")
    assert data == write("b.png") and len(data) < 100_000
    with Image.open(io.BytesIO(data)) as image:
        assert image.width == round(6.9 * 150) and image.getpixel((2, 2))[:3] == (255, 255, 255)


def test_a_persons_style_spoils_nothing(tmp_path):
    """Letters that LaTeX sets, in white, on a dark page that is cut to fit."""

    def write(name):
        with paper.style():
            return paper.save(draw("Title", LABELS, SCORES, 0), tmp_path / name, 150).read_bytes()

    plain = write("plain.png")
    strange = {
        "text.usetex": True,
        "axes.grid": True,
        "axes.titlecolor": "white",
        "xtick.labelcolor": "white",
        "ytick.labelcolor": "white",
        "savefig.facecolor": "black",
        "savefig.bbox": "tight",
        "savefig.transparent": True,
    }
    with matplotlib.style.context(["dark_background", strange]):
        assert write("strange.png") == plain


@pytest.mark.parametrize(
    ("scores", "left"),
    [
        ([[0.0, 0.0, 0.0], [0.0]], 0),
        ([[0.0], [5.0]], 0),
        ([[0.1, 0.2], [5.0]], 0),
        ([[0.0, 0.0, 3.0]], 1 - math.sqrt(3)),  # where its bar begins
        ([[-2.0], [5.0]], -2),
    ],
)
def test_the_axis_goes_no_lower_than_what_is_drawn(scores, left):
    chart = made("Title", [str(row) for row in range(len(scores))], scores, 0)
    low, high = chart.axes[0].get_xlim()
    assert low == pytest.approx(left) and high > max(map(max, scores))
    assert all(not line.get_clip_on() for line in chart.axes[0].lines if line.get_gid() in ("seeds", "mean"))


def test_mistakes():
    with pytest.raises(ValueError, match="2 labels for the scores of 1 rows"):
        draw("Title", ["a", "b"], [[1.0]])
    with pytest.raises(ValueError, match="0 labels"):
        draw("Title", [], [])


def test_threads_leave_the_style_as_it_was():
    """It is matplotlib's for the whole process: one at a time has it."""
    before, inside, go = dict(matplotlib.rcParams), threading.Event(), threading.Event()

    def hold():
        with paper.style():
            inside.set()
            go.wait(10)

    def follow():
        with paper.style(0.5):
            pass

    first, second = threading.Thread(target=hold), threading.Thread(target=follow)
    first.start()
    inside.wait(10)
    second.start()
    second.join(0.2)
    waits = second.is_alive()
    go.set()
    first.join()
    second.join()
    assert waits and dict(matplotlib.rcParams) == before
