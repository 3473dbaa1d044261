"""Where nodes are drawn: at the pixels that the network says, the larger the more attention they get."""

import re

import numpy as np
import pytest
import torch

from repgraph.models import RGNet
from repgraph.pictures.nodes import LARGEST, LEAST, Look, draw, drawing, look


def network(**options: object) -> RGNet:
    torch.manual_seed(0)
    made = RGNet(3, "repgraph_small", output_stride=4, channels=16, auxiliary=False, context_options=options)
    return made.eval()


@pytest.mark.parametrize("at", [(0, 0), (5, 2), (46, 31), (47, 31), (23, 16)])
def test_the_look_is_that_of_the_nearest_position(at):
    model, x = network(radius=3), torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        nodes, weights = model.nodes(x)
    found = look(nodes[0], weights[0], at, (32, 48))
    column, row = at[0] // 4, at[1] // 4
    assert (found.x, found.y) == (4 * column + 1.5, 4 * row + 1.5)
    assert len(found.nodes) == 9
    for n, (x_, y_, weight) in enumerate(found.nodes):
        assert (x_, y_) == pytest.approx(tuple(nodes[0, n, :, row, column].tolist()))
        assert weight == pytest.approx(float(weights[0, 0, n, row, column]))
    assert sum(node[2] for node in found.nodes) == pytest.approx(1, abs=1e-5)


def test_cells_and_groups():
    model, x = network(grid=3, groups=2), torch.randn(1, 3, 32, 48)
    with torch.no_grad():
        nodes, weights = model.nodes(x)
    assert nodes.shape[3:] == (3, 4) and weights.shape[1:] == (2, 9, 8, 12)
    found = look(nodes[0], weights[0], (30, 20), (32, 48))  # position (5, 7), in cell (1, 2)
    assert found.nodes[4][:2] == pytest.approx(tuple(nodes[0, 4, :, 1, 2].tolist()))
    assert found.nodes[4][2] == pytest.approx(float(weights[0, :, 4, 5, 7].mean()))


def test_the_farthest_is_the_most_attended():
    assert Look(1, 1, ((50, 50, 0.1), (4, 5, 0.9))).farthest == 5


def test_nodes_are_circles_whose_size_is_their_weight():
    marks = draw([Look(8, 9, ((2, 3, 0.0), (20.5, 30.25, 1.0)))], width=100)
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)" fill="(#\w+)"', marks)
    numbers = [tuple(map(float, circle[:3])) for circle in circles]
    assert numbers[:2] == [(2, 3, pytest.approx(100 * LEAST)), (20.5, 30.25, pytest.approx(100 * LARGEST))]
    assert numbers[2][:2] == (8, 9) and circles[2][3] != circles[0][3]
    assert marks.count("<line") == 2 and 'x1="8" y1="9" x2="20.5" y2="30.25"' in marks
    assert "weight 1.00, 25 pixels away" in marks


def test_a_drawing_has_the_picture_under_its_marks():
    made = drawing(np.zeros((64, 128, 3), np.uint8), (32, 64), draw([], 64), alt="a < b")
    assert 'viewBox="-0.5 -0.5 64 32"' in made and 'width="64" height="32"' in made
    assert made.index("<image") < made.index("<g>") and "a &lt; b" in made
