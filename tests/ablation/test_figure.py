"""The figure of a table: marks are at the scores, and no text is cut off."""

import math
import statistics

import pytest

from repgraph.ablation.figure import draw_scores
from repgraph.visualize.figures import figure_style

LABELS = ["baseline", "one", "two", "three", "nothing"]
SCORES = [[60.0, 61.0, 65.0], [63.5], [64.0, 62.0], [66.0, 66.5, 68.0], []]


def draw(title, labels, scores, note="note"):
    with figure_style():
        figure = draw_scores(title, labels, scores, 0, "mIoU on val, %", note)
        figure.draw_without_rendering()
    return figure


def points(figure, gid):
    lines = [line for line in figure.axes[0].lines if line.get_gid() == gid]
    return [[tuple(map(float, point)) for point in line.get_xydata()] for line in lines]


def footer(figure):
    return figure.get_supxlabel().replace("\n", " ")


def test_marks_and_texts():
    figure = draw("Title", LABELS, SCORES, "voc, seeds 0 1 2.")
    (axes,) = figure.axes
    assert points(figure, "seeds") == [[(score, row) for score in scores] for row, scores in enumerate(SCORES)]
    assert points(figure, "mean") == [[(62.0, 0)], [(63.0, 2)], [(pytest.approx(200.5 / 3), 3)]]  # not of one seed
    low, high = (statistics.fmean(SCORES[3]) + sign * statistics.stdev(SCORES[3]) for sign in (-1, 1))
    spread = math.sqrt(7)  # (4 + 1 + 9) / 2
    bars = [[(62 - spread, 0), (62 + spread, 0)], [(62, 2), (64, 2)], [(low, 3), (high, 3)]]
    assert [[pytest.approx(end) for end in bar] for bar in bars] == points(figure, "bar")
    assert [x for x, _ in points(figure, "reference")[0]] == [62.0, 62.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == LABELS and axes.get_ylim() == (4.5, -0.5)
    assert (figure.get_suptitle(), axes.get_xlabel()) == ("Title", "mIoU on val, %")
    assert footer(figure) == (
        "voc, seeds 0 1 2. Hollow: a seed; filled: mean ± sample standard deviation (two seeds: the range); "
        'line: mean of "baseline".'
    )


@pytest.mark.parametrize(
    ("scores", "left"),
    [([[63.501, 63.502, 63.503]], None), ([[]], 0), ([[0.0], [5.0]], 0), ([[0.0, 0.0, 3.0]], 0)],
)
def test_axis(scores, left):
    axes = draw("Title", [str(row) for row in range(len(scores))], scores).axes[0]
    ticks = [float(label.get_text().replace("\N{MINUS SIGN}", "-")) for label in axes.get_xticklabels()]
    assert len(ticks) > 2 and ticks == pytest.approx(list(axes.get_xticks()))
    assert left is None or axes.get_xlim()[0] == pytest.approx(left)


@pytest.mark.parametrize("label", ["a label of many words " * 12, "longword" * 25, "$x^ 1/C' & <b> _ " * 5])
def test_long_texts_are_not_cut_off(label):
    label = label.strip()
    figure = draw(label, [label, "S = 9", label], [[60.0, 61.0]] * 3, label)
    (axes,) = figure.axes
    ticks = axes.get_yticklabels()
    assert "".join(ticks[0].get_text().split()) == "".join(label.split())
    boxes = [tick.get_window_extent() for tick in ticks]
    title, note = figure._suptitle.get_window_extent(), figure._supxlabel.get_window_extent()
    for box in (*boxes, title, note, axes.xaxis.label.get_window_extent(), axes.get_window_extent()):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height
    assert boxes[0].y0 >= boxes[1].y1 and boxes[1].y0 >= boxes[2].y1
    assert axes.get_window_extent().width > 0.3 * figure.bbox.width
