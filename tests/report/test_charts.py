"""Curves, and the colours that they share with the rest of the page."""

import itertools
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from repgraph.drawing.page import read_asset
from repgraph.report.charts import COLOURS, draw_chart, draw_charts, style_of
from repgraph.report.page import STYLE

LINE = [(float(i), 1.0 / i) for i in range(1, 30)]


def ticks(chart):
    axis = chart["svg"].split('id="matplotlib.axis_2"')[1]
    return [float(text) for text in re.findall(r">([\d.]+)</text>", axis)]


def test_columns():
    runs = [
        {
            "loss": LINE,
            "val_miou": [(10.0, 0.5), (20.0, math.nan)],
            "auxiliary_loss": [(1.0, 0.0)],
            "val_x": [(1, 0.1)],
        },
        {"loss": LINE, "reach_mean/x": LINE, "reach_p95/x": LINE, "mine": LINE},
        {},
    ]
    loss, miou, reach = draw_charts(runs)
    titles = [chart["title"] for chart in (loss, miou, reach)]
    assert titles[:2] == ["Training loss", "mIoU on the validation images"]
    assert titles[2] == "Mean distance of the nodes of x, in positions of its map"
    assert "var(--first)" in loss["svg"] and "var(--second)" in loss["svg"]
    assert (
        "var(--second)" in reach["svg"] and "var(--first)" not in reach["svg"]
    )  # each run has the same colour everywhere
    assert ">45 %<" in miou["svg"]
    assert draw_charts([{"loss": [(1.0, math.nan)]}]) == []


def test_svg_is_an_element_in_the_colours_of_the_page():
    chart = draw_chart([{"loss": LINE}], "loss")
    assert ElementTree.fromstring(chart["svg"]).tag.endswith("svg")
    assert not re.search(r"#[0-9a-f]{6}\b", chart["svg"].replace("#ffffff", ""))
    assert "<style" not in chart["svg"] and "metadata" not in chart["svg"]


def test_a_few_large_values_do_not_determine_the_axis():
    chart = draw_chart([{"loss": [*LINE, (30.0, 5e19)]}], "loss")
    assert max(ticks(chart)) < 10 and "above the axis" in chart["note"]


@pytest.mark.parametrize(
    ("values", "start"), [((1, 3), 0), ((71, 84), 70), ((5, 5), 0), ((0, 0), 0), ((1e20, 2e20), 0)]
)
def test_axis_starts_at_zero_unless_values_are_far_from_it(values, start):
    chart = draw_chart([{"loss": list(enumerate(values))}], "loss")
    assert min(ticks(chart)) == pytest.approx(start, abs=3)


def test_styles_of_runs_differ():
    assert len({style_of(i) for i in range(42)}) == 42


# Colour vision without one of the three kinds of cones: Machado, Oliveira and Fernandes (2009), for linear RGB.
VISION = {
    "full": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(text):
    parts = np.array([int(text[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(colour):
    """CIELAB, in which a distance of 2.3 is just noticeable."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ colour.clip(0, 1)
    x, y, z = np.cbrt((xyz / (0.9505, 1, 1.089)).clip(0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_differ_and_have_contrast(scheme, vision):
    pattern = r"--{}: light-dark\((#[0-9a-f]{{6}}), (#[0-9a-f]{{6}})\)"
    style = read_asset("repgraph.drawing", "base.css") + STYLE
    values = {name: re.findall(pattern.format(name), style)[0][scheme] for name in (*COLOURS, "ground")}
    ground = linear(values.pop("ground")) @ (0.2126, 0.7152, 0.0722) + 0.05
    seen = [lab(np.array(VISION[vision]) @ linear(value)) for value in values.values()]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 14
    light = [linear(value) @ (0.2126, 0.7152, 0.0722) + 0.05 for value in values.values()]
    assert all(max(each, ground) / min(each, ground) > 4.4 for each in light)  # WCAG: 4.5 for small text
