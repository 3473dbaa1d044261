import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from tests.engine.sight.networks import detector, rgnet
from tests.engine.trained import LABELS, save_data, save_picture

from repgraph import cli
from repgraph.engine.explore.page import _labels as labels_of
from repgraph.engine.inference.network import NotFinite
from repgraph.models import RGNet


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run <b>") / "model"
    rgnet(labels=LABELS.to_dict()).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_data(tmp_path_factory.mktemp("data"))


def explore(out, *arguments, model):
    return cli.main(["explore", *map(str, arguments), "--model", str(model), "--out", str(out), "--device", "cpu"])


def page_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_images_and_masks_in_files(network, data, tmp_path, capsys):
    out = tmp_path / "made" / "page.html"
    images = [data / "images/val/0.png", data / "images/val/3.png"]
    masks = [data / "masks/val/0.png", data / "masks/val/3.png"]
    assert explore(out, *images, "--truth", *masks, model=network) == 0
    assert re.search(r"2 images: .*page.html \(0\.\d MB\); it opens in any browser", capsys.readouterr().out)
    page = page_of(out)
    assert page["title"].startswith("run <b>") and page["about"] == "RGNet, resnet10t, context repgraph"
    assert [image["name"] for image in page["images"]] == ["0", "3"]
    first = page["images"][0]
    assert (first["width"], first["height"]) == (40, 24)
    assert [underlay["title"] for underlay in first["underlays"]] == ["prediction", "ground truth"]
    with Image.open(masks[0]) as mask:
        values = np.array(mask)
    for entry in first["underlays"][1]["entries"]:
        number = LABELS.ids[LABELS.names.index(entry["name"])]
        assert entry["share"] == pytest.approx((values == number).mean(), abs=1e-4)
        assert tuple(entry["colour"]) == LABELS.palette[LABELS.names.index(entry["name"])]


def test_images_of_a_split_by_number_and_name(network, data, tmp_path):
    out = tmp_path / "page.html"
    chosen = ("--dataset", "folder", "--data", data, "--split", "val")
    assert explore(out, "3", "1", *chosen, "--title", "mine", model=network) == 0
    page = page_of(out)
    assert [image["name"] for image in page["images"]] == ["3", "1"] and page["title"] == "mine"
    assert page["images"][0]["underlays"][1]["title"] == "ground truth"
    assert explore(out, *chosen, "--limit", "2", "--layers", "context", model=network) == 0
    assert [image["name"] for image in page_of(out)["images"]] == ["0", "1"]


def test_large_images_are_shrunk_if_asked_for(network, data, tmp_path):
    out = tmp_path / "page.html"
    image, mask = data / "images/val/0.png", data / "masks/val/0.png"
    assert explore(out, image, "--truth", mask, "--side", "20", model=network) == 0
    made = page_of(out)["images"][0]
    assert (
        (made["width"], made["height"]) == (20, 12) == tuple(made["underlays"][1][key] for key in ("width", "height"))
    )
    assert explore(out, image, "--side", "41", model=network) == 0
    assert page_of(out)["images"][0]["width"] == 40


@pytest.mark.parametrize("node_view", [1, 3])
def test_of_how_many_positions_a_node_is_the_mean(node_view, data, tmp_path):
    rgnet(context_options={"node_view": node_view}).save_pretrained(tmp_path / "net")
    out = tmp_path / "page.html"
    assert explore(out, data / "images/val/0.png", model=tmp_path / "net") == 0
    assert [layer["node_view"] for layer in page_of(out)["images"][0]["layers"]] == [node_view]


def test_an_image_that_memory_does_not_hold(network, data, tmp_path, capsys, monkeypatch):
    def fail(*arguments, **more):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3 bytes")

    monkeypatch.setattr("repgraph.engine.explore.page.look_and_run", fail)
    assert explore(tmp_path / "page.html", data / "images/val/0.png", model=network) == 2
    assert "0 (40 x 24 pixels): out of memory; shrink it, with --side" in capsys.readouterr().err


def test_a_detector_with_its_objects(tmp_path):
    names = [{"id": 7, "name": "dog"}, {"id": 8, "name": "cat"}, {"id": 9, "name": "<i>bird"}]
    things = [
        {"id": 1, "image_id": 5, "category_id": 8, "bbox": [2, 3, 10, 12], "area": 120, "iscrowd": 0,
         "segmentation": [[2, 3, 12, 3, 12, 15, 2, 15]]},
        {"id": 2, "image_id": 5, "category_id": 9, "bbox": [4, 5, 4, 4], "area": 16, "iscrowd": 0,
         "segmentation": [[4, 5, 8, 5, 8, 9, 4, 9]]},
    ]  # fmt: skip
    content = {"images": [{"id": 5, "file_name": "a.png", "width": 40, "height": 32}], "categories": names}
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations/instances_val2017.json").write_text(json.dumps(content | {"annotations": things}))
    save_picture(tmp_path / "val2017/a.png", 32, 40)
    detector().save_pretrained(tmp_path / "net")
    out = tmp_path / "page.html"
    assert explore(out, "a", "--data", tmp_path, "--split", "val", model=tmp_path / "net") == 0
    image = page_of(out)["images"][0]
    truth = image["underlays"][1]
    assert [entry["name"] for entry in truth["entries"]] == ["<i>bird", "cat"]  # the smaller one lies on top
    assert truth["boxes"][1]["corners"] == [1.5, 2.5, 11.5, 14.5]
    assert explore(out, tmp_path / "val2017/a.png", "--truth", out, model=tmp_path / "net") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give images"),
        (["{image}", "--data", "x"], "--data, --dataset and --option go with --split"),
        (["0", "--split", "val", "--truth", "x.png"], "--truth is for images in files"),
        (["0", "--split", "val", "--side", "9"], "--side is for images in files"),
        (["missing.png"], "missing.png is not there"),
        (["{text}"], r"text.png: cannot read this image"),
        (["{image}", "--truth", "{mask}", "{mask}"], "there are 1 images and 2 masks in --truth"),
        (["{image}", "--truth", "{small}"], r"small.png: the mask has 3 x 2 pixels, its image .* 40 x 24"),
        (["{image}", "--truth", "{image}"], "a mask holds one class number per pixel"),
        (["{image}", "--layers", "layer7"], "there is no layer 'layer7' to look at; the network has head.context"),
        (["{image}", "--model", "nowhere"], "nowhere is not there; the folder of a run"),
        (["{image}", "--out", "{image}"], "is one of the images and would be written over"),
        (["{image}", "--out", "{folder}"], "cannot write .*: Is a directory"),
        (["{image}", "--out", "{image}/page.html"], "cannot write .*: Not a directory"),
        (
            ["9", "--dataset", "folder", "--data", "{data}", "--split", "val"],
            "there is no image '9' in folder val",
        ),
        (["--dataset", "scenes", "--split", "val"], "the network has 3 classes, scenes 8"),
        (["{image}", "--device", "tpu"], "'tpu' is not a device"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, network, data, tmp_path, capsys):
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(np.zeros((2, 3), np.uint8)).save(tmp_path / "small.png")
    places = dict(
        image=data / "images/val/0.png",
        mask=data / "masks/val/0.png",
        text=tmp_path / "text.png",
        small=tmp_path / "small.png",
        folder=tmp_path,
        data=data,
    )
    before = (data / "images/val/0.png").read_bytes()
    given = [argument.format(**places) for argument in arguments]
    assert cli.main(["explore", "--model", str(network), "--out", str(tmp_path / "page.html"), *given]) == 2
    told = capsys.readouterr().err.strip()
    assert re.search(message, told) and "\n" not in told.replace("\r", "").split("repgraph explore:")[-1]
    assert not (tmp_path / "page.html").exists() and (data / "images/val/0.png").read_bytes() == before


def test_a_network_without_such_layers_says_what_it_has(data, tmp_path, capsys):
    RGNet(3, "resnet10t", context="control", channels=8).save_pretrained(tmp_path / "net")
    assert explore(tmp_path / "page.html", data / "images/val/0.png", model=tmp_path / "net") == 2
    assert "the network's context is 'control', and it has no layer that looks" in capsys.readouterr().err


def test_weights_that_are_not_finite(data, tmp_path, capsys):
    model = rgnet()
    model.head.classifier.bias.data[0] = torch.nan
    model.save_pretrained(tmp_path / "net")
    assert explore(tmp_path / "page.html", data / "images/val/0.png", model=tmp_path / "net") == 2
    assert "0: the network's logits are not finite" in capsys.readouterr().err


def test_large_logits_of_half_precision_are_finite():
    logits = torch.full((1, 3, 200, 200), 3.0, dtype=torch.float16)  # whose sum is not
    assert labels_of(logits, None, "a").values.shape == (200, 200)
    logits[0, 1, 5, 5] = float("inf")
    with pytest.raises(NotFinite, match="a: the network's logits are not finite"):
        labels_of(logits, None, "a")
