"""The page about runs in a real browser: values where one points, no horizontal scrolling on a phone, no errors."""

import numpy as np
import pytest
from tests.browser import browser

from repgraph.pictures import report
from repgraph.pictures.report import Contents, Panel, Run, Scores, Session, Sheet, Shown, Test

NAME = "a-run-with-a-very-long-name-of-many-letters"
TIPS = """
[...document.querySelectorAll('.stop > g')].filter(each => getComputedStyle(each).visibility == 'visible')
    .map(each => [...each.querySelectorAll('text')].map(text => text.textContent))
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of two runs, opened."""
    runs = [
        Run(name, {"recipe": NAME * 2, "versions": "torch 2.15, " * 12}, {"loss": [(0, top), (50, 2), (100, 1)]},
            settings={"optim.lr": str(top)}, sessions=[Session("2026", 0, f"repgraph train {NAME} " * 4, "finished")])
        for name, top in ((NAME, 3), ("other", 4))
    ]  # fmt: skip
    counts = np.array([[8, 2], [0, 5]])
    names = ["wall", "a class whose name has many letters"]
    shown = Shown("image", [Panel(np.zeros((60, 90, 3), np.uint8), "a caption") for _ in range(4)])
    scores = [Scores(i, "mIoU 50 %", [0.8, 0.5], counts) for i in range(2)]
    colours, sheets = [(255, 0, 0), (0, 0, 255)], [Sheet("Best images", "", [shown])]
    test = Test("Scores", "all images", "IoU", names, scores, colours, [0.5, 0.5], sheets)
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report.write(Contents("Two runs", runs, [test])), encoding="utf-8")
    with browser() as opened:
        yield opened.size(1200, 900).open(path)


def place_of(page, selector, across=0.5):
    """The middle of an element, or another part of it, in pixels of the window."""
    page.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    box = page.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
    return box["left"] + across * box["width"], box["top"] + box["height"] / 2


def test_a_chart_says_its_values_where_one_points(page):
    page.size(1200, 900)
    page.move(*place_of(page, ".stop:nth-child(2) > rect"))
    assert page.evaluate(TIPS) == [["iteration 50", f"{NAME[:15]}… 2", "other 2"]]
    page.move(*place_of(page, ".stop:nth-child(1) > rect", 0.1))
    assert page.evaluate(TIPS) == [["iteration 0", f"{NAME[:15]}… 3", "other 4"]]


def test_a_confusion_matrix_says_its_values_where_one_points(page):
    page.size(1200, 900)
    page.move(*place_of(page, ".heat .cell:last-of-type rect"))
    seen = "[...document.querySelectorAll('.heat .cell text')].filter(t => getComputedStyle(t).visibility == 'visible')"
    said = page.evaluate(f"{seen}.map(text => text.textContent)")
    assert "a class whose name has many letters: 100.0 % right" in said and "wall: 80.0 % right" not in said


@pytest.mark.parametrize(("width", "phone"), [(360, True), (1200, False), (2000, False)])
def test_the_page_fits_the_screen(page, width, phone):
    page.size(width, 800, phone=phone)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('svg.chart')].map(each => each.getBoundingClientRect().width)"
    assert min(page.evaluate(wide)) > 300


def test_light_and_dark(page):
    found = []
    for dark in (False, True):
        colours = page.dark(dark).evaluate(
            "['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name].match(/\\d+/g).map(Number))"
        )
        found.append([sum(colour[:3]) for colour in colours])
    (light, dark_ink), (dark, light_ink) = found
    assert light > 600 > 150 > dark_ink and dark < 150 < 600 < light_ink


def test_nothing_goes_wrong_and_nothing_is_fetched(page):
    assert page.errors == [] and all(request.startswith(("file:", "data:")) for request in page.requests)
