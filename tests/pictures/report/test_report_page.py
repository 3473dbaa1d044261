"""The parts of the page about runs: charts, bars, confusion matrices, recipes."""

import math
import re

import numpy as np
import pytest

from repgraph.pictures import report
from repgraph.pictures.curves import curves, is_cut, spread, style_of, ticks
from repgraph.pictures.report import Contents, Run, Scores, Session, Sheet, Shown, Test
from repgraph.pictures.report.charts import charts
from repgraph.pictures.report.classes import bars
from repgraph.pictures.report.contents import Panel
from repgraph.pictures.report.heat import by_rows, confusions, heat

NASTY = "<script>alert(\"1\")</script> & 'more'"
LINE = [(float(i), 1.0 / i) for i in range(1, 30)]


def run(name="a", **more):
    return Run(name, {"recipe": "x"}, {"loss": LINE}, **more)


def test_text_is_never_markup():
    picture = np.zeros((4, 6, 3), np.uint8)
    sheet = Sheet(NASTY, NASTY, [Shown(NASTY, [Panel(picture, NASTY), Panel(picture, NASTY, photo=True)])])
    counts = np.array([[3, 1], [2, 2]])
    test = Test(
        NASTY, NASTY, NASTY, [NASTY, "b"], [Scores(0, NASTY, [0.5, math.nan], counts, NASTY)],
        colours=[(1, 2, 3), (4, 5, 6)], shares=[0.5, 0.5], sheets=[sheet],
    )  # fmt: skip
    one = Run(
        NASTY, {NASTY: NASTY}, {NASTY: LINE, f"reach_mean/{NASTY}": LINE, f"val_{NASTY}": LINE},
        settings={NASTY: NASTY}, usual={NASTY: "other"}, sessions=[Session(NASTY, 0, NASTY, NASTY)], notes=[NASTY],
    )  # fmt: skip
    for runs in ([one], [one, run()]):
        page = report.write(Contents(NASTY, runs, [test], notes=[NASTY], command=NASTY, links=[(NASTY, "a.html")]))
        assert "<script" not in page and page.count("&lt;script&gt;") > 20
        assert "default-src 'none'" in page.replace("&#x27;", "'") and "prefers-color-scheme: dark" in page


def test_charts_have_the_lines_of_all_runs_that_have_the_column():
    runs = [
        Run("a", {}, {"loss": LINE, "val_miou": [(10.0, 0.5), (20.0, math.nan)], "auxiliary_loss": [(1.0, 0.0)]}),
        Run("b", {}, {"loss": LINE, "reach_mean/x": LINE, "reach_p95/x": LINE, "mine": LINE}),
        Run("c", {}, {}),
    ]
    drawn = charts(runs)
    assert re.findall(r'class="titled">([^<]*)<', drawn) == [
        "Loss in training", "mIoU on the validation images", "Reach of the nodes of x", "Mine",
    ]  # fmt: skip
    lines = [len(re.findall("<polyline", svg)) for svg in drawn.split("<svg")[1:]]
    assert lines == [2, 1, 2, 1]  # the third has a thin companion
    second = drawn.split("<svg")[3]
    assert 'class="second"' in second and 'class="first"' not in second  # as everywhere on the page
    assert "1 more: Mine" in drawn and '<td class="number">50</td>' in drawn
    assert "There is nothing to draw" in charts([Run("c", {}, {"loss": [(1.0, math.nan)]})])


def test_lines_differ_in_colour_and_dashes():
    styles = {style_of(i) for i in range(42)}
    assert len(styles) == 42
    drawn = curves({str(i): [(0, i), (10, i)] for i in range(8)}, "iteration", "loss")
    heights = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)" font-size="12" fill="currentColor"', drawn)]
    assert len(heights) == 8 and min(np.diff(sorted(heights))) >= 13.9


def test_point_at_a_chart_for_values():
    drawn = curves({"a": [(0, 2), (10, 1)], "b": [(10, 3)]}, "iteration", "loss")
    stops = re.findall(r'class="stop">(.*?)</g></g>', drawn)
    said = [re.findall(r">([^<]+)</text>", stop) for stop in stops]
    assert said == [["iteration 0", "a 2"], ["iteration 10", "a 1", "b 3"]]


def test_a_few_values_far_above_are_cut_off():
    wild = [*LINE, (30.0, 5e19)]
    assert is_cut([wild]) and not is_cut([LINE])
    drawn = curves({"a": wild, "b": LINE}, "iteration", "loss")
    axis = [float(text) for text in re.findall(r'text-anchor="end" fill="var\(--soft\)">([\d.]+)<', drawn)]
    assert max(axis) < 10 and "iteration 30" in drawn and "5e+13M" in drawn  # not on the axis, but in the tip
    assert "Values at the upper rim" in charts([Run("a", {}, {"loss": wild})])


@pytest.mark.parametrize(("low", "high"), [(0, 1e-5), (0, 3), (71, 84), (-2, 5), (0, 1e20), (5, 5)])
def test_ticks_cover_what_is_drawn(low, high):
    found = ticks(low, high)
    assert found[0] <= low and found[-1] >= high and 3 <= len(found) <= 8
    assert np.allclose(np.diff(found), found[1] - found[0])


def test_names_are_spread_inside_the_frame():
    assert spread([5, 5, 5, 5], 10, 0, 20) == pytest.approx([0, 20 / 3, 40 / 3, 20])


@pytest.mark.parametrize("count", [3, 60, 150])
def test_a_confusion_matrix_is_by_rows(count):
    counts = np.eye(count, dtype=int) * 8
    counts[0, 2], counts[1] = 2, 0
    drawn = heat(counts, [f"class {k}" for k in range(count)])
    assert by_rows(counts)[0, 2] == 0.2 and not by_rows(counts)[1].any()
    assert drawn.count('class="cell"') == count  # the diagonal less one, and the confusion
    assert "class 0 seen as class 2: 20.0 %" in drawn and "class 2: 100.0 % right" in drawn
    assert len(re.findall(r">class \d+</text>", drawn)) == 2 * count
    wide = int(re.search(r"width: (\d+)px", drawn).group(1))
    assert wide / count >= 10  # legible, if need be with a scroll bar


def test_the_most_frequent_mistakes_come_first():
    found = confusions(np.array([[5, 1, 0], [0, 5, 3], [0, 0, 9]]), ["a", "b", "c"])
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in found.split("<tr>")[2:]]
    assert cells == [["b", "c", "37.5", "13.04"], ["a", "b", "16.7", "4.35"]]
    assert confusions(np.eye(3), "abc") is None


def test_bars_are_sorted_and_many_are_folded():
    names = [f"class {k}" for k in range(60)]
    values = [k / 60 for k in range(59)] + [math.nan]
    test = Test("", "", "IoU", names, [Scores(0, "", values), Scores(1, "", [0.5] * 59 + [math.nan])])
    shown, folded, _ = bars(test, [run("a"), run("b")])
    assert re.findall(r"class (\d+)</td>", shown)[:2] == ["58", "57"] and shown.count("<tr>") == 1 + 10 + 1 + 10 + 1
    assert re.findall(r"class (\d+)</td>", folded)[-2:] == ["0", "59"] and folded.startswith("<details")
    assert '<td class="number">-</td>' in folded and ">-<" not in shown  # of those that are not there, none is worst
    assert f">{100 * sum(values[:59]) / 59:.1f}<" in shown  # the mean


def test_one_run_is_compared_with_the_recipe_of_its_name():
    one = run(settings={"optim.lr": "0.02", "train.seed": "0"}, usual={"optim.lr": "0.01", "train.seed": "0"})
    page = report.write(Contents("a page", [one]))
    first = page.split("the recipe that it is named after:")[1].split("</table>")[0]
    assert "optim.lr" in first and "train.seed" not in first and ">0.02<" in first and ">0.01<" in first
    assert page.count('class="differs"') == 1 and "all 2 settings" in page
    same = report.write(Contents("a page", [run(settings=one.usual, usual=one.usual)]))
    assert "There is no difference between the run and the recipe" in same
    assert "No recipe could be read" in report.write(Contents("a page", [run()]))


def test_what_is_the_same_for_all_stands_once():
    runs = [Run("a", {"data": "voc", "seed": "0"}, {}), Run("b", {"data": "voc", "seed": "1"}, {})]
    page = report.write(Contents("a page", runs))
    assert '<td colspan="2">voc</td>' in page and "<td>0</td><td>1</td>" in page
