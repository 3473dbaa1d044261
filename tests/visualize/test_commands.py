"""``repgraph explore``, ``nodes`` and ``affinity``: files, output and errors."""

import csv
import io
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from markupsafe import escape
from PIL import Image
from tests import trained
from tests.data.coco import files as coco
from tests.visualize.networks import detector as make_detector
from tests.visualize.networks import rgnet

from repgraph import cli, models
from repgraph.data.files import read_image
from repgraph.visualize.affinity import STATISTICS, affinity_statistics, position_affinity

SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def command(name, *arguments):
    coarse = ["--dpi", "30"] if name != "explore" and "--dpi" not in arguments else []
    return cli.main([name, *(str(argument) for argument in arguments), *coarse])


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Folders of a non-local network, an RGNet and a detector."""
    folder, labels = tmp_path_factory.mktemp("networks"), trained.LABELS.to_dict()
    rgnet(context="non_local", labels=labels).save_pretrained(folder / "nl")
    broken = rgnet()
    broken.head.classifier.bias.data[0] = torch.nan
    broken.save_pretrained(folder / "broken")
    options = {"groups": 2, "nodes": 4}
    rgnet(context_options=options, inserted={"layer2": 1}, labels=labels).save_pretrained(folder / "rgnet")
    make_detector(context="non_local", detections=2).save_pretrained(folder / "detector")
    return folder


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    return trained.save_picture(tmp_path_factory.mktemp("photos") / "a $x_^ photo.png", 72, 104)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_affinity_of_an_image(networks, photo, tmp_path, capsys):
    out = tmp_path / "a"
    assert command("affinity", networks / "nl", photo, "--at", "60,20", "--out", out, "--top", 5, "--dpi", 50) == 0
    shown, record = capsys.readouterr().out, json.loads((out / "affinity.json").read_text())
    model, image = models.load(networks / "nl"), read_image(photo)
    found, position = affinity_statistics(model, [image], top=5), position_affinity(model, image, (60, 20), top=5)
    assert f"{found.effective.mean:.1f}" in shown and "mean: top 5: " in shown
    assert "1 image, layer head.context, 117 queries, N = 117" in shown
    assert "a $x_^ photo at 59.5,19.5: top 5: " in shown
    for name in STATISTICS:
        assert record[name]["mean"] == pytest.approx(getattr(found, name).mean, rel=1e-5)
        assert record[name]["quantiles"]["0.5"] == pytest.approx(getattr(found, name).median, rel=2e-3)
        assert record["one_position"]["statistics"][name] == pytest.approx(position.statistics[name], rel=1e-5)
    assert np.shape(record["one_position"]["weights"]) == (1, 9, 13) and record["top_count"] == 5
    table = {row["statistic"]: row for row in rows_of(out / "affinity.csv")}
    assert float(table["top 5"]["mean"]) == record["top"]["mean"] and float(table["effective"]["uniform"]) == 117
    assert sum(float(row["mass"]) for row in rows_of(out / "histogram.csv")) == pytest.approx(1)
    for suffix, signature in SIGNATURES.items():
        assert (out / f"affinity.{suffix}").read_bytes().startswith(signature)
    with Image.open(out / "affinity.png") as picture:
        assert picture.width == round(6.9 * 50)


def test_affinity_of_a_split(networks, data, tmp_path):
    split = ["--dataset", "folder", "--data", data, "--split", "val", "--limit", 3]
    options = ["--format", "svg", "--out", tmp_path, "--width", 4.8]
    assert command("affinity", networks / "nl", *split, *options) == 0
    record = json.loads((tmp_path / "affinity.json").read_text())
    assert len(record["images"]) == 3 and record["data"] == "folder val, 3 images"
    rows = rows_of(tmp_path / "images.csv")
    assert [row["image"] for row in rows] == ["0", "1", "2"] and not (tmp_path / "affinity.png").exists()


def test_nodes_as_files(networks, photo, tmp_path, capsys):
    out = [tmp_path / "deep" / f"figure.{suffix}" for suffix in SIGNATURES]
    options = ["--at", "60,20", "5,71", "--dpi", 80, "--width", 4.8]
    assert command("nodes", "--model", networks / "rgnet", photo, *options, "--out", *out) == 0
    shown = capsys.readouterr().out
    for path, signature in zip(out, SIGNATURES.values(), strict=True):
        assert path.read_bytes().startswith(signature)
    with Image.open(out[0]) as picture:
        assert picture.width == round(4.8 * 80)
    text = out[1].read_text()
    assert text.count("<image") == 3 and text.count('id="PathCollection_') == 2 * (4 + 1)
    assert "at 59.5,19.5 (" in shown and "at 3.5,67.5 (" in shown and "4 nodes" in shown and "head.context" in shown
    assert command("nodes", "--model", networks / "rgnet", photo, *options, "--windows", "--out", out[1]) == 0
    assert (
        "window over which a node is averaged" not in text
        and "window over which a node is averaged" in out[1].read_text()
    )


def test_nodes_of_a_split(networks, data, tmp_path, capsys):
    split = ["--dataset", "folder", "--data", data, "--split", "val", "--limit", 2, "--positions", 3]
    assert command("nodes", "--model", networks / "rgnet", *split, "--out", tmp_path / "figure.svg") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 3 + 1 and (tmp_path / "figure.svg").read_text().count("<image") == 2 * 4
    assert all(any(name in line for name in trained.NAMES) for line in lines[:-1])


def test_positions_for_each_image(networks, photo, tmp_path, capsys):
    small, out = trained.save_picture(tmp_path / "small.png", 16, 16), tmp_path / "figure.svg"
    arguments = ["nodes", "--model", networks / "nl", photo, small, "--out", out]
    assert command(*arguments, "--at", "100,70", "--at", "4,4", "12,12") == 0
    shown = capsys.readouterr().out
    assert "photo at 99.5,67.5" in shown and "small at 3.5,3.5" in shown and "small at 11.5,11.5" in shown
    assert "the 64 strongest positions with " in shown and out.read_text().count('id="PathCollection_') == 65 + 2 * 5
    assert command(*arguments, "--at", "100,70") == 2
    assert "position 100,70 is outside of small, which has 16 x 16 pixels" in capsys.readouterr().err


def test_detector(networks, photo, tmp_path, capsys):
    assert (
        command("nodes", "--model", networks / "detector", photo, "--positions", 2, "--out", tmp_path / "figure.svg")
        == 0
    )
    assert (tmp_path / "figure.svg").read_text().count("<image") == 3
    root = coco.write(tmp_path / "coco", coco.content(coco.annotation(1)), split="val")
    options = ["--data", root, "--split", "val", "--limit", 1]
    assert command("affinity", networks / "detector", *options, "--format", "svg", "--out", tmp_path / "split") == 0
    assert "coco val, 1 image, layer detector.backbone" in capsys.readouterr().out


def explore(out, *arguments):
    code = command("explore", *arguments, "--out", out, "--device", "cpu")
    page = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL) if code == 0 else None
    return json.loads(page[1]) | {"header": re.search(r"<h1.*?</header>", page.string)[0]} if page else None


def test_explore_files(data, tmp_path, capsys):
    run = tmp_path / "{{script}}{% raw %}<b>"
    rgnet(labels=trained.LABELS.to_dict()).save_pretrained(run / "model")
    images = [data / "images" / "val" / f"{i}.png" for i in (0, 3)]
    model = ["--model", run / "model"]
    page = explore(tmp_path / "deep" / "page.html", *images, *model)
    assert re.search(r"2 images: .*page.html \(0\.\d MB\)", capsys.readouterr().out)
    assert escape(run.name) in page["header"] and "RGNet, resnet10t, context repgraph" in page["header"]
    assert [image["name"] for image in page["images"]] == ["0", "3"]
    first = page["images"][0]
    assert (first["width"], first["height"]) == (40, 24)
    assert [overlay["title"] for overlay in first["overlays"]] == ["prediction"]
    small = explore(tmp_path / "small.html", images[0], "--side", 20, *model)["images"][0]
    assert (small["width"], small["height"]) == (20, 12) and small["overlays"][0]["width"] == 20


def test_explore_a_split(networks, data, tmp_path):
    split = ("--dataset", "folder", "--data", data, "--split", "val", "--model", networks / "rgnet")
    page = explore(tmp_path / "page.html", "3", "1", *split, "--title", "mine")
    assert [image["name"] for image in page["images"]] == ["3", "1"] and ">mine<" in page["header"]
    truth, values = page["images"][0]["overlays"][1], np.array(Image.open(data / "masks" / "val" / "3.png"))
    assert truth["title"] == "ground truth"
    for entry in truth["entries"]:
        index = trained.NAMES.index(entry["name"])
        assert entry["share"] == pytest.approx((values == trained.LABELS.ids[index]).mean(), abs=1e-4)
        assert tuple(entry["colour"]) == trained.LABELS.palette[index]
    page = explore(tmp_path / "page.html", *split, "--limit", 2, "--layers", "context")
    assert [image["name"] for image in page["images"]] == ["0", "1"]
    assert [layer["name"] for layer in page["images"][0]["layers"]] == ["head.context"]


def test_explore_objects(tmp_path):
    small = coco.annotation(2, bbox=[4, 5, 4, 4], area=16.0, segmentation=[[4, 5, 8, 5, 8, 9, 4, 9]])
    root = coco.write(tmp_path / "coco", coco.content(coco.annotation(1), small), split="val")
    make_detector().save_pretrained(tmp_path / "net")
    page = explore(tmp_path / "page.html", "--data", root, "--split", "val", "--model", tmp_path / "net")
    truth = page["images"][0]["overlays"][1]
    assert truth["boxes"] == [[3.5, 4.5, 7.5, 8.5], [1.5, 2.5, 7.5, 8.5]]  # the small one is on top


SPLIT = ["--dataset", "folder", "--data", "{data}", "--split", "val"]
ERRORS = {
    "image": ("all", ["{nl}", "nothing.png"], "nothing.png: no such file or folder"),
    "no images": ("all", ["{nl}"], "pass images (files, folders, patterns), or --split"),
    "layer": ("all", ["{nl}", "{photo}", "--layers", "contxt"], "layer 'contxt' does not exist; choose from head"),
    "folder": ("nodes affinity", ["{nl}", "{photo}", "--out", "{photo}/x/x.svg"], "cannot write"),
    "suffix": ("explore", ["{nl}", "{photo}", "--out", "{nl}/config.json"], "expected a file name that ends in .html"),
    "overwrite": ("nodes", ["{nl}", "{photo}", "--out", "{photo}"], "would be overwritten"),
    "mask": ("nodes", ["{nl}", "0", *SPLIT, "--out", "{data}/masks/val/1.png"], "would be overwritten"),
    "outside": ("nodes affinity", ["{nl}", "{photo}", "--at", "104,3"], "position 104,3 is outside of a $x_^ photo"),
    "format": ("nodes", ["{nl}", "{photo}", "--out", "x.gif"], "x.gif: unknown figure format; use the suffix"),
    "at": ("nodes", ["{nl}", "{photo}", "--at", "1,1", "--at", "2,2"], "--at is given 2 times for 1 images"),
    "size": ("nodes", ["{nl}", "{photo}", "--width", "50", "--dpi", "2400"], "use a smaller --width or --dpi"),
    "side": ("explore", ["{nl}", "0", *SPLIT, "--side", "9"], "--side is for images in files"),
    "not finite": ("explore nodes", ["{broken}", "{photo}"], "a $x_^ photo: the network's outputs are not finite"),
    "number": ("explore", ["{nl}", "9", *SPLIT], "no image '9'"),
    "classes": ("explore", ["{nl}", "--dataset", "scenes", "--split", "val"], "has 3 classes, but the data set has 8"),
}
CASES = [
    (name, *ERRORS[error][1:])
    for error in ERRORS
    for name in (ERRORS[error][0] if ERRORS[error][0] != "all" else "explore nodes affinity").split()
]


@pytest.mark.parametrize(("name", "arguments", "message"), CASES)
def test_errors(name, arguments, message, networks, photo, data, tmp_path, capsys):
    known = {name: networks / name for name in ("nl", "rgnet", "detector", "broken")} | {"photo": photo, "data": data}
    words = [word.format(**known) for word in arguments]
    if name != "affinity":
        words.insert(0, "--model")
    if name != "explore":
        words = ["--layer" if word == "--layers" else word for word in words]
    if "--out" not in words:
        words += ["--out", str(tmp_path / {"explore": "x.html", "nodes": "x.svg", "affinity": "x"}[name])]
    before, files = photo.read_bytes(), set(tmp_path.rglob("*"))
    assert command(name, *words) == 2
    shown = capsys.readouterr().err
    assert f"repgraph {name}: " in shown and message in shown and "Traceback" not in shown
    assert photo.read_bytes() == before and set(tmp_path.rglob("*")) == files


def test_names_that_are_not_text(networks, tmp_path, monkeypatch):
    photo = trained.save_picture(tmp_path / os.fsdecode(b"a\xff.png"), 24, 32)
    out, shown = tmp_path / os.fsdecode(b"\xfe"), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="utf-8"))  # it is strict
    assert command("nodes", "--model", networks / "rgnet", photo, "--at", "1,1", "--out", out / "nodes.png") == 0
    assert command("affinity", networks / "nl", photo, "--format", "png", "--out", out) == 0
    assert b"a\\udcff at" in shown.getvalue() and b"\\udcfe/nodes.png" in shown.getvalue()
    assert (out / "images.csv").read_text().splitlines()[1].startswith("a\\udcff,")
