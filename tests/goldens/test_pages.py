"""Goldens of pages and figures: ``repgraph nodes``, ``explore``, ``affinity`` and ``report`` write their files.

``python tests/goldens/regenerate.py`` rewrites the stored values. Wording and layout are not pinned.
"""

import csv
import json
import re
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from tests.goldens.harness import NETWORK, golden, metrics, repgraph

from repgraph.models import RGNet, load

BOATS = ("inbound boat", "outbound boat")


def assert_stands_alone(page):
    """Check that a page makes no requests."""
    assert not re.search(r'(src|href)="(https?:)?//', page)


def test_figure_of_nodes(bays, tmp_path):
    files = tmp_path / "nodes.png", tmp_path / "nodes.svg"
    given = ("--at", "30,40", "100,70", "--width", 5, "--dpi", 80, "--device", "cpu")
    repgraph("nodes", "--model", NETWORK, *bays, *given, "--out", *files)
    with Image.open(files[0]) as picture:
        assert picture.width == pytest.approx(400, abs=2)
        assert picture.height > 150
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")


def test_explorer(bays, tmp_path):
    path = tmp_path / "page.html"
    repgraph("explore", *bays, "--model", NETWORK, "--out", path, "--device", "cpu")
    page = path.read_text(encoding="utf-8")
    assert_stands_alone(page)
    (data,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    images = [(each["name"], each["width"], each["height"]) for each in json.loads(data)["images"]]
    assert images == [("orange", 128, 96), ("blue", 110, 75)]
    assert all(name in page for name in ("sky", "water", "head.context"))


@pytest.fixture
def non_local(tmp_path):
    """The trained network with a non-local layer of fixed weights in the place of its own."""
    trained = load(NETWORK)
    kept = {"output_stride": 4, "channels": 48, "auxiliary": False, "labels": trained.labels}
    model = RGNet(8, "repgraph_small", context="non_local", **kept)
    state = {name: value for name, value in trained.state_dict().items() if not name.startswith("head.context.")}
    missing = sorted(model.load_state_dict(state, strict=False).missing_keys)
    generator = torch.Generator().manual_seed(0)
    for name in missing:
        value = model.state_dict()[name]
        value.copy_(0.5 * torch.randn(value.shape, generator=generator))
    model.save_pretrained(tmp_path / "network")
    return tmp_path / "network"


def test_affinity(non_local, bays, tmp_path):
    out = tmp_path / "affinity"
    repgraph("affinity", non_local, *bays, "--out", out, "--format", "png", "--dpi", 80, "--device", "cpu")
    names = {"affinity.png", "affinity.json", "affinity.csv", "histogram.csv", "images.csv"}
    assert {path.name for path in out.iterdir()} >= names
    for name in ("affinity.csv", "images.csv"):
        with open(out / name, newline="") as file:
            header, *rows = csv.reader(file)
        found = {"header": header, "rows": {row[0]: [float(number) for number in row[1:]] for row in rows}}
        stored = golden("pages.json", name, found)
        assert header == stored["header"]
        assert found["rows"].keys() == stored["rows"].keys()
        for label, numbers in stored["rows"].items():
            assert found["rows"][label] == pytest.approx(numbers, rel=1e-3), label


def test_report(segmentation_run, tmp_path):
    path, limit = tmp_path / "report.html", ("--limit", 4, "--device", "cpu")
    repgraph("report", segmentation_run, "--out", path, *limit)
    page = path.read_text(encoding="utf-8")
    assert_stands_alone(page)
    assert all(text in page for text in ("scenes-rgnet", "repgraph_small", *BOATS))
    assert sorted(set(re.findall(r"val-\d{5}", page))) == [f"val-{number:05}" for number in range(4)]
    in_training = float(metrics(segmentation_run)[-1]["val_miou"])
    of_these_images = json.loads(repgraph("eval", segmentation_run, *limit, "--json"))["miou"]
    for score in (in_training, of_these_images):
        assert f"{100 * score:.2f}" in page
