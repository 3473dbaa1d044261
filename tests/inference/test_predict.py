"""``repgraph predict``: files for labels and for objects, and failures."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tests import objects, trained

from repgraph import cli
from repgraph.data import coco
from repgraph.data import load as load_data
from repgraph.data.files import read_image
from repgraph.data.labels import Labels, spread_palette
from repgraph.inference import detect, files, predict
from repgraph.models import load

CPU = ["--device", "cpu"]


def command(*arguments) -> int:
    return cli.main(["predict", "--model", *map(str, arguments)])


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def values(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.array(image)


@pytest.fixture
def detector(model, monkeypatch) -> str:
    objects.use(monkeypatch, model)
    return "detector"


@pytest.fixture
def photos(tmp_path):
    for i, name in enumerate(("a.jpg", "b.png", "sub/a.jpg")):
        trained.save_picture(tmp_path / "photos" / name, 30 + i, 41, seed=i)
    return tmp_path / "photos"


def test_labels_have_ids_and_a_palette_and_overlays_a_legend(network, photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, "--recursive", *CPU) == 0
    names = {"a.png", "b.png", "sub/a.png"}
    assert tree(out) == {f"{kind}/{name}" for kind in ("labels", "overlays") for name in names}
    assert "3 of 3 images predicted, 6 files in" in capsys.readouterr().out
    expected = trained.LABELS.to_file(predict(load(network), read_image(photos / "b.png")).numpy())
    found = values(out / "labels" / "b.png")
    assert np.array_equal(found, expected) and set(np.unique(found)) <= set(trained.LABELS.ids)
    with Image.open(out / "labels" / "b.png") as picture:
        assert picture.mode == "P"
        colour = picture.convert("RGB").getpixel((0, 0))
    assert colour == trained.LABELS.palette[trained.LABELS.ids.index(found[0, 0])]
    with Image.open(out / "overlays" / "b.png") as picture:
        assert picture.mode == "RGB" and picture.height > 31


def test_inputs_with_the_same_name_and_a_network_without_labels(photos, tmp_path):
    network = trained.save_network(tmp_path / "network", labels=None)
    trained.save_picture(photos / "a.png", 12, 3)
    out = tmp_path / "out"
    assert command(network, photos, photos / "sub", "--out", out, *CPU) == 0
    assert tree(out / "labels") == tree(out / "overlays") == {"a.png", "a-2.png", "a-3.png", "b.png"}
    assert values(out / "labels" / "a-2.png").shape == (12, 3)
    assert set(np.unique(values(out / "labels" / "b.png"))) <= {0, 1, 2}


def test_large_ids_need_16_bits():
    labels = Labels(("a", "b"), spread_palette(2), ids=(7, 1000))
    content = io.BytesIO()
    files.label_image(torch.tensor([[0, 1]], dtype=torch.uint8), labels).save(content, "PNG")
    with Image.open(content) as again:
        assert again.mode.startswith("I") and np.array(again).tolist() == [[7, 1000]]


def test_objects_as_overlays_and_json(detector, model, photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert command(detector, photos, "--out", out, "--recursive", "--score", "0", *CPU) == 0
    assert tree(out) == {"detections.json", "overlays/a.png", "overlays/b.png", "overlays/sub/a.png"}
    assert "3 of 3 images predicted, 12 objects, 4 files in" in capsys.readouterr().out
    content = json.loads((out / "detections.json").read_text())
    names = [photos / name for name in ("a.jpg", "b.png", "sub/a.jpg")]
    assert [Path(image["file_name"]) for image in content["images"]] == names
    assert content["categories"] == objects.CATEGORIES
    expected = detect(model, read_image(photos / "b.png")).coco_results(2, objects.LABELS.ids)
    found = [each for each in content["annotations"] if each["image_id"] == 2]
    assert [{key: each[key] for key in result} for each, result in zip(found, expected, strict=True)] == expected
    assert [each["id"] for each in content["annotations"]] == list(range(1, 13))
    again = coco.load(out, "all", annotations="detections.json", images=".")
    assert len(again) == 3 and not again.problems
    with Image.open(out / "overlays" / "b.png") as picture:
        assert picture.size == (41 * 12, 31 * 12)  # enlarged to make names legible
    drawn = values(out / "overlays" / "b.png")
    assert command(detector, photos / "b.png", "--out", out, "--score", "1", *CPU) == 0  # no object has such a score
    assert not np.array_equal(drawn, values(out / "overlays" / "b.png"))


@pytest.mark.parametrize("kind", ["labels", "objects"])
def test_images_that_fail_are_reported_and_the_others_predicted(
    kind, network, model, photos, tmp_path, monkeypatch, capsys
):
    if kind == "objects":
        objects.use(monkeypatch, model)
    function = {"labels": "predict", "objects": "detect"}[kind]
    original = getattr(files, function)

    def scarce(model, image, *arguments, **options):
        if image.shape[1] == 31:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return original(model, image, *arguments, **options)

    monkeypatch.setattr(files, function, scarce)
    (photos / "c.jpg").write_text("no image")
    assert command(network, photos, "--out", tmp_path / "out", *CPU) == 1
    captured = capsys.readouterr()
    assert "1 of 3 images predicted" in captured.out and "2 of 3 images could not be predicted" in captured.err
    hint = {"labels": "--mode slide", "objects": "smaller images"}[kind]
    assert f"{photos / 'b.png'} (41 x 31 pixels): out of memory; try {hint}" in captured.err
    assert f"{photos / 'c.jpg'}: cannot read this image" in captured.err and "Traceback" not in captured.err
    assert tree(tmp_path / "out") == {"overlays/a.png", {"labels": "labels/a.png", "objects": "detections.json"}[kind]}


@pytest.mark.parametrize("workers", ["0", "2"])
def test_failed_writes_do_not_stop_other_files(network, tmp_path, capsys, workers):
    photos, out = tmp_path / "photos", tmp_path / "out"
    for name in ("a.jpg", "blocked.jpg", "z.jpg"):
        trained.save_picture(photos / name)
    os.mkfifo(photos / "pipe.png")
    (photos / "loop.png").symlink_to(photos / "loop.png")
    (photos / "cut.png").write_bytes(trained.save_picture(tmp_path / "whole.png").read_bytes()[:300])
    exif = PngInfo()
    exif.add_text("Raw profile type exif", "\n\n\nno number")
    Image.fromarray(trained.picture()).save(photos / "exif.png", pnginfo=exif)
    (out / "labels" / "blocked.png").mkdir(parents=True)  # where a file has to be
    trained.save_picture(photos / "long.png").rename(photos / ("x" * 255))  # no room for ".png"
    bad = ["blocked.jpg", "cut.png", "exif.png", "loop.png", "pipe.png", "x" * 255]
    given = [photos / name for name in ("a.jpg", *bad, "z.jpg")]
    assert command(network, *given, "--out", out, "--no-overlays", "--workers", workers, *CPU) == 1
    captured = capsys.readouterr()
    assert tree(out) == {"labels/a.png", "labels/z.png"} and "2 of 8 images predicted, 2 files" in captured.out
    assert all(f"{photos / name}: " in captured.err for name in bad)
    assert "Traceback" not in captured.err


def test_weights_that_are_not_finite_name_the_image(network, photos, tmp_path, capsys):
    model = load(network)
    torch.nn.init.constant_(model.head.classifier.bias, torch.nan)
    model.save_pretrained(tmp_path / "broken")
    assert command(tmp_path / "broken", photos, "--out", tmp_path / "out", *CPU) == 2
    assert f"{photos / 'a.jpg'}: the network's logits are not finite" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_full_disk_leaves_only_complete_files(network, photos, tmp_path, monkeypatch, capsys, workers):
    original, replaced = os.replace, []

    def replace(source, target):
        if len(replaced) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replaced.append(target)
        return original(source, target)

    monkeypatch.setattr(os, "replace", replace)
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, "--no-overlays", "--workers", workers, *CPU) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and "cannot write" in error and "Traceback" not in error
    assert len(tree(out)) == 1 and values(out / tree(out).pop()).ndim == 2


def test_an_input_is_not_overwritten(network, model, tmp_path, monkeypatch, capsys):
    for name in ("labels/a.png", "overlays/a.png"):
        path = trained.save_picture(tmp_path / "out" / name)
        before = path.read_bytes()
        assert command(network, path, "--out", tmp_path / "out", *CPU) == 2
        assert "predictions in --out are not used as inputs" in capsys.readouterr().err
        assert path.read_bytes() == before
        objects.use(monkeypatch, model)


@pytest.mark.parametrize("where", [".", "photos"])
def test_predictions_in_a_folder_of_images_are_no_inputs(where, network, photos, tmp_path):
    out = tmp_path / where
    for _ in range(2):
        assert command(network, photos, "--recursive", "--out", out, "--no-overlays", *CPU) == 0
        assert tree(out / "labels") == {"a.png", "b.png", "sub/a.png"}


def test_a_split_has_the_names_and_ids_of_its_evaluation_server(tmp_path):
    root = tmp_path / "cityscapes"
    for city, frame in (("berlin", "000000_000019"), ("bonn", "000001_000019")):
        path = root / "leftImg8bit" / "test" / city / f"{city}_{frame}_leftImg8bit.png"
        trained.save_picture(path, 32, 64)
    labels = load_data("cityscapes", root, "test").labels
    network = trained.save_network(tmp_path / "network", labels=labels, classes=19)
    out = tmp_path / "out"
    arguments = [network, "--dataset", "cityscapes", "--data", root, "--split", "test", "--out", out, *CPU]
    assert command(*arguments) == 0
    names = {"berlin_000000_000019_pred_labelIds.png", "bonn_000001_000019_pred_labelIds.png"}
    assert tree(out) == {f"labels/{name}" for name in names}
    for name in names:
        with Image.open(out / "labels" / name) as picture:
            assert picture.mode == "L" and picture.size == (64, 32)
            assert set(np.unique(np.asarray(picture))) <= set(labels.ids)
    assert command(*arguments, "--limit", "1", "--overlays") == 0
    assert {path for path in tree(out) if "overlays" in path} == {"overlays/berlin_000000_000019_pred_labelIds.png"}


def test_a_split_of_scenes(tmp_path):
    scenes = load_data("scenes", None, "val")
    drawing = trained.save_network(tmp_path / "network", labels=scenes.labels, classes=len(scenes.labels))
    options = ["--dataset", "scenes", "--split", "val", "--limit", "2", "--out", tmp_path / "scenes", *CPU]
    assert command(drawing, *options) == 0
    assert len(tree(tmp_path / "scenes")) == 2


def test_masks_of_a_split_are_not_overwritten(network, data, tmp_path, capsys):
    for folder, name in (("images", "images"), ("masks", "labels")):
        shutil.copytree(data / folder / "val", tmp_path / name)
    shutil.copy(data / "classes.json", tmp_path)
    (tmp_path / "val.txt").write_text("0\n1\n")
    before = (tmp_path / "labels" / "0.png").read_bytes()
    options = ["--dataset", "folder", "--data", tmp_path, "--option", "masks=labels", "--split", "val"]
    assert command(network, *options, "--out", tmp_path, *CPU) == 2
    assert "labels/0.png is an input and would be overwritten" in capsys.readouterr().err
    assert (tmp_path / "labels" / "0.png").read_bytes() == before


def test_a_split_of_coco_without_annotations(detector, tmp_path):
    root = objects.write(tmp_path / "coco", split="test", annotations=None)
    folder = root / "annotations"
    (folder / "instances_test2017.json").rename(folder / "image_info_test2017.json")
    out = tmp_path / "out"
    arguments = [detector, "--data", root, "--split", "test", "--out", out, *CPU]
    assert command(*arguments) == 0
    assert tree(out) == {"bbox.json", "segm.json"}
    boxes, masks = (json.loads((out / name).read_text()) for name in ("bbox.json", "segm.json"))
    assert len(boxes) == len(masks) == 8 and {result["image_id"] for result in boxes} == {1, 2}
    assert set(boxes[0]) == {"image_id", "category_id", "bbox", "score"}
    assert set(masks[0]["segmentation"]) == {"size", "counts"}
    assert {result["category_id"] for result in boxes} <= set(objects.LABELS.ids)
    assert command(*arguments, "--limit", "1", "--overlays", "--score", "0") == 0
    assert tree(out) == {"bbox.json", "segm.json", "overlays/1.png"}


def test_names_of_a_split_stay_in_the_folder(detector, tmp_path):
    root = objects.write(tmp_path / "coco", images=("../outside.png", "sub/2.png", "sub/2.jpg"))
    out = tmp_path / "out"
    assert command(detector, "--data", root, "--split", "val", "--out", out, "--overlays", *CPU) == 0
    overlays = {"outside.png", "sub/2.png", "sub/2-2.png"}
    assert tree(out) == {"bbox.json", "segm.json", *(f"overlays/{name}" for name in overlays)}


def test_names_of_a_split_that_clash_stay_in_the_folder(detector, tmp_path):
    root = objects.write(tmp_path / "a" / "b" / "coco", images=("x/a.jpg", "../../../x/a.jpg", "../x/a.jpg"))
    before, out = tree(tmp_path), tmp_path / "out" / "p" / "found"
    assert command(detector, "--data", root, "--split", "val", "--out", out, "--overlays", *CPU) == 0
    assert tree(out / "overlays") == {"x/a.png", "x/a-2.png", "x/a-3.png"}
    assert tree(tmp_path) - before == {f"out/p/found/{name}" for name in tree(out)}


def test_links_in_the_output_folder_do_not_lead_out_of_it(detector, photos, tmp_path, capsys):
    root = objects.write(tmp_path / "coco", images=("x/1.png", "y/2.png"))
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    (out / "overlays").mkdir(parents=True)
    (out / "overlays" / "x").symlink_to(other)
    assert command(detector, "--data", root, "--split", "val", "--out", out, "--overlays", *CPU) == 1
    assert tree(out / "overlays") == {"y/2.png"} and "symbolic link" in capsys.readouterr().err
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "overlays").symlink_to(other)
    assert command(detector, photos, "--out", tmp_path / "linked", *CPU) == 2
    assert "symbolic link" in capsys.readouterr().err and not tree(other)
    (tmp_path / "alias").symlink_to(other)  # the output folder itself may be a link
    assert command(detector, photos, "--out", tmp_path / "alias", *CPU) == 0 and "overlays/a.png" in tree(other)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("labels", [], "pass images (files, folders, patterns), or --split and --data"),
        ("labels", ["{photos}", "--data", "x"], "--data, --dataset, --option and --limit need --split"),
        ("labels", ["{photos}", "--score", "0.5"], "--score is for detectors; this network is for segmentation"),
        ("labels", ["{photos}", "--out", "{photos}/b.png"], "cannot write"),
        ("objects", ["{photos}", "--mode", "slide"], "--mode is for segmentation; a detector resizes"),
        ("objects", ["--data", "{coco}", "--split", "val"], "the network has 3 classes, but the data set has 2"),
    ],
)
def test_mistakes_are_one_line(kind, arguments, message, network, model, photos, tmp_path, monkeypatch, capsys):
    if kind == "objects":
        objects.use(monkeypatch, model)
    root = objects.write(tmp_path / "coco", categories=objects.CATEGORIES[:2])
    given = [argument.format(photos=photos, coco=root) for argument in arguments]
    out = [] if "--out" in given else ["--out", tmp_path / "out"]
    assert command(network, *given, *out, *CPU) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("repgraph predict: ")
    assert not (tmp_path / "out").exists() or tree(tmp_path / "out") == set()


@pytest.mark.slow
def test_two_processes_share_the_images(model, photos, tmp_path):
    model.save_pretrained(tmp_path / "network")
    (photos / "c.jpg").write_text("no image")
    arguments = ["predict", "--model", tmp_path / "network", photos, "--recursive", "--out", tmp_path / "out", *CPU]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, "-m", "repgraph", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0  # torchrun has its own code if a process fails
    assert "3 of 4 images predicted, 12 objects, 4 files" in done.stdout and "1 of 4 images could not" in done.stderr
    content = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert [Path(image["file_name"]).name for image in content["images"]] == ["a.jpg", "b.png", "a.jpg"]
    assert tree(tmp_path / "out" / "overlays") == {"a.png", "b.png", "sub/a.png"}
