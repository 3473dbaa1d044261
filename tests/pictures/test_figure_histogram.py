"""The paper's first figure: histograms whose bars have what they were given."""

import numpy as np
import pytest

from repgraph.pictures.figure import paper
from repgraph.pictures.figure.histogram import Map, Panel, draw

EDGES = tuple(10.0 ** (k / 2) for k in range(-8, 7))


def panel(title="all", **shares):
    weights, mass = np.zeros(14), np.zeros(14)
    for name, values in (("weights", weights), ("mass", mass)):
        for place, share in shares[name].items():
            values[place] = share
    return Panel(title, EDGES, weights.tolist(), mass.tolist(), ["top 9: 70 %"])


def made(*arguments, **options):
    with paper.style():
        chart = draw(*arguments, **options)
        chart.canvas.draw()
    return chart


def test_bars_and_what_is_too_small_for_its_own():
    given = panel(weights={0: 0.0004, 3: 0.6, 9: 0.3996}, mass={3: 0.1, 9: 0.9})
    chart = made([given])
    weights, mass = (patch.get_data() for patch in chart.axes[0].patches)
    assert weights.edges[0] == pytest.approx(EDGES[3]) and weights.edges[-1] == pytest.approx(EDGES[10])
    assert weights.values.sum() == pytest.approx(1), "the smallest weights are in the first bar"
    assert weights.values[0] == pytest.approx(0.6004)
    assert mass.values[0] == pytest.approx(0.1) and mass.values[-1] == pytest.approx(0.9)


def test_panels_share_their_axes():
    one, two = panel(weights={2: 1}, mass={2: 1}), panel("one", weights={6: 0.5, 12: 0.5}, mass={6: 0.2, 12: 0.8})
    axes = made([one, two], width=5).axes
    assert axes[0].get_xlim() == axes[1].get_xlim() and axes[0].get_ylim() == axes[1].get_ylim()


def test_the_map_lies_on_the_image_as_its_step_says():
    """A detector's map may reach beyond the image, into padding."""
    place = Map("its weights", np.zeros((30, 40, 3), np.uint8), (12.0, 7.0), np.full((4, 6), 1 / 24), (8.0, 8.0))
    axis = made([panel(weights={5: 1}, mass={5: 1})], place).axes[1]
    assert axis.images[1].get_extent() == [-0.5, 47.5, 31.5, -0.5]
    assert axis.get_xlim() == (-0.5, 39.5) and axis.get_ylim() == (29.5, -0.5)
    assert tuple(axis.lines[0].get_xydata()[0]) == (12, 7)


def test_names_are_not_formulas():
    chart = made([panel("a $x^ b", weights={5: 1}, mass={5: 1})])
    assert chart.axes[0].get_title() == "a $x^ b"
