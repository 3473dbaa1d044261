"""The data of the explorer page, with unusual names and images."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from markupsafe import escape

from repgraph.data.labels import Labels
from repgraph.visualize.collect import LayerAttention
from repgraph.visualize.explorer import packing
from repgraph.visualize.explorer.page import ExplorerImage, make_page, pack_image

SCRIPT = "</script><script>alert('x')</script><b>&amp;{{script}}{% raw %}<!--\u2028"
LABELS = Labels((SCRIPT, "sea"), ((200, 0, 0), (0, 0, 200)), ids=(0, 1))


def layer(size=(512, 512), rows=64, columns=64, nodes=9, groups=1, grid=1, kind="nodes"):
    """A layer whose nodes are anywhere on the image and somewhat outside of it."""
    random = np.random.default_rng(0)
    cells = -(-rows // grid), -(-columns // grid)
    places = random.uniform(-0.3, 1.3, (nodes, 2, *cells)) * np.array(size[::-1])[:, None, None]
    weights = random.dirichlet(np.full(nodes, 0.3), (groups, rows, columns)).transpose(0, 3, 1, 2).astype(np.float32)
    if kind == "affinity":
        weights = -np.sort(-weights, 1) * np.float32(0.8)
    step = size[1] / columns, size[0] / rows
    return LayerAttention("head", "head", kind, places.astype(np.float32), weights, (rows, columns), step, grid)


def unpack(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def fractions(text, *shape):
    return unpack(text, "<u2").reshape(shape) / 65535.0


def nodes_of(packed, shape, size):
    return ((3 * fractions(packed["nodes"], *shape, 9, 2) - 1) * size[::-1]).transpose(2, 3, 0, 1)


@pytest.mark.parametrize("size", [(512, 512), (3000, 4096), (7, 5)])
@pytest.mark.parametrize("grid", [1, 3])
def test_nodes(size, grid):
    given = layer(size, 11, 7, grid=grid)
    packed = packing.pack_layers([given], size)[0]
    assert abs(nodes_of(packed, given.nodes.shape[2:], size) - given.nodes).max() < 0.1
    assert packed["cells"] == given.nodes.shape[3] and packed["grid"] == grid and packed["node_view"] == 1
    far = replace(given, nodes=given.nodes.copy(), node_view=5)
    far.nodes[0, :, 0, 0] = 1e7, -1e7  # is moved to one image outside
    packed = packing.pack_layers([far], size)[0]
    back = nodes_of(packed, given.nodes.shape[2:], size)
    np.testing.assert_allclose(back[0, :, 0, 0], [2 * size[1], -size[0]], atol=0.1)
    assert abs(back[1:] - given.nodes[1:]).max() < 0.1 and packed["node_view"] == 5


def test_weights():
    given = layer(rows=6, columns=8, groups=4)
    packed = packing.pack_layers([given], (512, 512))[0]
    weights = fractions(packed["weights"], 6, 8, 9).transpose(2, 0, 1) ** 2
    np.testing.assert_allclose(weights, given.weights.mean(0), atol=1e-5, rtol=1e-3)


def test_strongest_positions_fit_the_budget():
    two = [layer(rows=128, columns=128, nodes=64, kind="affinity"), layer(rows=16, columns=16, nodes=9)]
    large, plain = packing.pack_layers(two, (512, 512))
    assert large["count"] == 24 and plain["count"] == 9


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (400, 700)])
def test_runs(shape):
    for values in (np.random.default_rng(0).integers(0, 256, shape, np.uint8), np.full(shape, 255, np.uint8)):
        packed = packing.pack_runs(values)
        lengths = unpack(packed["lengths"], "<u4")
        np.testing.assert_array_equal(unpack(packed["values"], "u1").repeat(lengths), values.reshape(-1))
        assert lengths.min() > 0


def test_objects():
    masks = np.zeros((2, 8, 8))
    masks[0, 2:6, 2:6], masks[1, 0:4] = 1, 1
    made = packing.pack_objects("x", (8, 8), [[2, 2, 6, 6], [0, 0, 8, 4]], [2, 1], masks, LABELS, [0.9, 0.75])
    assert [entry["name"] for entry in made["entries"]] == ["sea 0.90", f"{SCRIPT} 0.75"]
    assert made["boxes"][0] == [1.5, 1.5, 5.5, 5.5]  # pixel centres are at integers
    runs = made["runs"]
    values = unpack(runs["values"], "u1").repeat(unpack(runs["lengths"], "<u4")).reshape(8, 8)
    assert values[3, 3] == 0 and values[0, 0] == 1 and values[7, 7] == 255
    none = packing.pack_objects("x", (8, 8), np.zeros((0, 4)), [], np.zeros((0, 8, 8)), LABELS)
    assert unpack(none["runs"]["values"], "u1").tolist() == [255] and none["entries"] == none["boxes"] == []


def page_of(size, *layers, name="x", title=""):
    random = np.random.default_rng(0)
    blocks = random.integers(0, 2, (-(-size[0] // 8), -(-size[1] // 8))).repeat(8, 0).repeat(8, 1)
    overlay = packing.pack_classes("prediction", blocks[: size[0], : size[1]], LABELS)
    pixels = torch.from_numpy(random.integers(0, 256, (3, *size), np.uint8))
    page = make_page([pack_image(ExplorerImage(name, pixels), layers, [overlay])], title=title)
    return page, json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_names_are_data():
    page, data = page_of((40, 60), layer((40, 60), 5, 6), name=SCRIPT, title=SCRIPT)
    assert "alert" in page and "<script>alert" not in page and len(re.findall("<script", page)) == 2
    assert "<!--" not in page and "\u2028" not in page.split("</header>")[1]
    assert data["images"][0]["name"] == SCRIPT and page.count(escape(SCRIPT)) == 2  # the title, and the heading
    assert {entry["name"] for entry in data["images"][0]["overlays"][0]["entries"]} == set(LABELS.names)
    assert not re.search(r"https?://|@import|url\(", page)


@pytest.mark.parametrize("kind", ["nodes", "affinity"])
def test_size_of_a_page(kind):
    layers = [layer(nodes=64 if kind == "affinity" else 9, kind=kind) for _ in range(6)]
    assert len(page_of((512, 512), *layers)[0].encode()) < 5e6


def test_large_photographs_are_shrunk_but_coordinates_are_not():
    image = page_of((1000, 4000), layer((1000, 4000), 4, 16))[1]["images"][0]
    assert (image["width"], image["height"]) == (4000, 1000) and image["layers"][0]["step"] == [250, 250]
    assert (image["overlays"][0]["width"], image["overlays"][0]["height"]) == (2048, 512)
