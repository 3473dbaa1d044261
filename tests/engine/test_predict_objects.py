"""``repgraph predict`` of a Mask R-CNN: pictures and JSON of any images, and what happens when something goes wrong."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.coco import files
from tests.engine import objects, trained

from repgraph import cli
from repgraph.data.coco import load
from repgraph.engine.detection import detect
from repgraph.engine.detection import files as module
from repgraph.engine.detection import network as one_image
from repgraph.models import MaskRCNN

CPU = ["--device", "cpu"]


def command(*arguments) -> int:
    return cli.main(["predict", *map(str, arguments)])


def tree(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def model() -> MaskRCNN:
    return objects.network()


@pytest.fixture
def network(model, monkeypatch) -> str:
    objects.use(monkeypatch, model)
    return "network"


@pytest.fixture
def photos(tmp_path) -> Path:
    for i, name in enumerate(("a.jpg", "b.png", "sub/a.jpg")):
        trained.save_picture(tmp_path / "photos" / name, 30 + i, 41, seed=i)
    return tmp_path / "photos"


def test_pictures_and_everything_that_was_found(network, model, photos, tmp_path, capsys):
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, "--recursive", "--score", "0", *CPU) == 0
    assert tree(out) == {"detections.json", "overlays/a.png", "overlays/b.png", "overlays/sub/a.png"}
    assert "3 of 3 images predicted, 12 objects, 4 files in" in capsys.readouterr().out
    content = read(out / "detections.json")
    assert [Path(image["file_name"]) for image in content["images"]] == [
        photos / name for name in ("a.jpg", "b.png", "sub/a.jpg")
    ]
    assert [category["id"] for category in content["categories"]] == [3, 7, 90]
    with Image.open(photos / "b.png") as picture:
        image = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    wanted = detect(model, image).results(2, (3, 7, 90))
    got = [each for each in content["annotations"] if each["image_id"] == 2]
    assert [{key: each[key] for key in result} for each, result in zip(got, wanted, strict=True)] == wanted
    with Image.open(out / "overlays" / "b.png") as picture:
        assert picture.size == (41 * 12, 31 * 12)  # so that names can be read
    # What was found can be opened as a set of its own.
    again = load(out, "all", annotations="detections.json", images=".")
    assert len(again) == 3 and not set(again.skipped) - {"objects whose mask has no pixel in the image"}


def test_pictures_show_what_scores_enough(network, photos, tmp_path):
    for score, changed in (("1", False), ("0", True)):
        out = tmp_path / score
        assert command(network, photos / "b.png", "--out", out, "--score", score, "--side", "41", *CPU) == 0
        with Image.open(photos / "b.png") as before, Image.open(out / "overlays" / "b.png") as after:
            same = before.size == after.size and np.array_equal(np.asarray(before), np.asarray(after))
        assert same is not changed
        assert len(read(out / "detections.json")["annotations"]) == 4
    assert command(network, photos / "b.png", "--out", tmp_path / "bare", "--no-overlays", *CPU) == 0
    assert tree(tmp_path / "bare") == {"detections.json"}


def save_odd_images(folder: Path) -> None:
    generator = np.random.default_rng(0)
    folder.mkdir()
    Image.fromarray(generator.integers(0, 256, (1, 1, 3), dtype=np.uint8)).save(folder / "one.png")
    Image.fromarray(generator.integers(0, 256, (1, 700, 3), dtype=np.uint8)).save(folder / "line.png")
    Image.fromarray(generator.integers(0, 256, (20, 30), dtype=np.uint8)).save(folder / "grey.png")
    Image.fromarray(generator.integers(0, 65536, (20, 30), dtype=np.uint16)).save(folder / "deep.png")
    Image.new("CMYK", (30, 20), (10, 200, 3, 4)).save(folder / "cmyk.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(trained.picture(16, 24)).save(folder / "turned.jpg", exif=exif)


def test_images_of_any_kind_and_a_network_without_labels(tmp_path, monkeypatch, capsys):
    objects.use(monkeypatch, objects.network(classes=1, labels=None))
    save_odd_images(tmp_path / "odd")
    assert command("network", tmp_path / "odd", "--out", tmp_path / "out", "--score", "0", *CPU) == 0
    content = read(tmp_path / "out" / "detections.json")
    sizes = {Path(image["file_name"]).stem: (image["width"], image["height"]) for image in content["images"]}
    assert sizes == {
        "one": (1, 1), "line": (700, 1), "grey": (30, 20), "deep": (30, 20), "cmyk": (30, 20), "turned": (16, 24),
    }  # fmt: skip
    assert content["categories"] == [{"id": 1, "name": "class 1"}]
    assert len(tree(tmp_path / "out" / "overlays")) == 6 and {e["image_id"] for e in content["annotations"]} == set(
        range(1, 7)
    )


def test_an_image_beyond_pillows_limit(network, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    monkeypatch.setattr(one_image, "LARGE", 500)
    options = ["--out", tmp_path / "out", "--side", "20", "--score", "0", *CPU]
    assert command(network, photos / "b.png", *options) == 0
    monkeypatch.undo()
    assert len(read(tmp_path / "out" / "detections.json")["annotations"]) == 4
    with Image.open(tmp_path / "out" / "overlays" / "b.png") as picture:
        assert picture.width >= 20 and picture.height >= 15  # with room for names


def test_an_image_without_objects_stays_as_it_is(photos, tmp_path, monkeypatch, capsys):
    objects.use(monkeypatch, objects.network(score_threshold=1.0))
    assert command("network", photos / "b.png", "--out", tmp_path / "out", "--side", "41", *CPU) == 0
    content = read(tmp_path / "out" / "detections.json")
    assert len(content["images"]) == 1 and content["annotations"] == []
    with Image.open(photos / "b.png") as before, Image.open(tmp_path / "out" / "overlays" / "b.png") as after:
        assert np.array_equal(np.asarray(before), np.asarray(after))


def test_what_cannot_be_read_or_does_not_fit_is_told_and_the_rest_is_done(
    network, photos, tmp_path, monkeypatch, capsys
):
    (photos / "c.jpg").write_text("no image")
    original = module.detect

    def scarce(model, image, **more):
        if image.shape[1] == 31:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return original(model, image, **more)

    monkeypatch.setattr(module, "detect", scarce)
    out = tmp_path / "out"
    assert command(network, photos, "--out", out, *CPU) == 1
    captured = capsys.readouterr()
    assert "1 of 3 images predicted, 4 objects, 2 files in" in captured.out
    assert f"{photos / 'c.jpg'}: cannot read this image" in captured.err
    told = "b.png (41 x 31 pixels): out of memory; try images of fewer pixels, a network with a smaller max_size"
    assert told in captured.err and "2 of 3 images could not be predicted" in captured.err
    assert tree(out) == {"detections.json", "overlays/a.png"}
    assert [image["id"] for image in read(out / "detections.json")["images"]] == [1]


def test_what_helps_on_a_gpu():
    assert module.helps("fp32", torch.device("cuda"))[:2] == ["--precision bf16", "--device cpu"]


def test_weights_that_are_not_finite_are_told_with_the_image(photos, tmp_path, monkeypatch, capsys):
    broken = objects.network()
    broken.detector.rpn.head.cls_logits.bias.data.fill_(float("nan"))
    objects.use(monkeypatch, broken)
    assert command("network", photos, "--out", tmp_path / "out", *CPU) == 2
    told = f"{photos / 'a.jpg'}: the region proposal network gives numbers that are not finite: its weights are not\n"
    assert capsys.readouterr().err.endswith(told)


def test_a_split_without_annotations_gives_the_files_that_the_server_takes(network, tmp_path, capsys):
    given = files.content(images=2)
    del given["annotations"]
    root = files.write(tmp_path / "coco", given, "test")
    (root / "annotations" / "instances_test2017.json").rename(root / "annotations" / "image_info_test2017.json")
    arguments = ["--data", root, "--split", "test", "--out", tmp_path / "out", *CPU]
    assert command(network, *arguments) == 0
    assert tree(tmp_path / "out") == {"bbox.json", "segm.json"}
    boxes, masks = (read(tmp_path / "out" / name) for name in ("bbox.json", "segm.json"))
    assert len(boxes) == len(masks) == 8 and {result["image_id"] for result in boxes} == {1, 2}
    assert set(boxes[0]) == {"image_id", "category_id", "bbox", "score"} and set(masks[0]["segmentation"]) == {
        "size",
        "counts",
    }
    assert {result["category_id"] for result in boxes} <= {3, 7, 90}
    assert command(network, *arguments, "--limit", "1", "--overlays", "--score", "0") == 0
    assert tree(tmp_path / "out") == {"bbox.json", "segm.json", "overlays/1.png"}
    assert {result["image_id"] for result in read(tmp_path / "out" / "bbox.json")} == {1}


def test_names_in_a_set_stay_in_the_folder_and_apart(network, tmp_path):
    given = files.content(images=3)
    for image, name in zip(given["images"], ("../outside.png", "sub/2.png", "sub/2.jpg"), strict=True):
        image["file_name"] = name
    root = files.write(tmp_path / "coco", given, images=0)
    for name in ("train2017/sub/2.png", "train2017/sub/2.jpg", "outside.png"):
        trained.save_picture(root / name, *files.SIZE)
    out = tmp_path / "out"
    assert command(network, "--data", root, "--split", "train", "--out", out, "--overlays", *CPU) == 0
    assert tree(out) == {
        "bbox.json", "segm.json", "overlays/outside.png", "overlays/sub/2.png.png", "overlays/sub/2.jpg.png",
    }  # fmt: skip
    assert not (tmp_path / "outside.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{photos}", "--mode", "slide"], "--mode is for networks that label pixels; this one finds objects"),
        (["{photos}", "--plain"], "--plain is for label maps, and this network finds objects"),
        (["{photos}", "--no-legend"], "--legend is for label maps"),
        (["--split", "val"], "--data is needed: the folder of coco"),
        (["--split", "two", "--data", "{coco}"], "the network has 3 classes, the data set 2"),
        (["{photos}/empty"], "there is no image in"),
        (["{photos}", "--out", "{photos}/b.png"], "cannot write"),
    ],
)
def test_mistakes_are_one_line(arguments, message, network, photos, tmp_path, capsys):
    (photos / "empty").mkdir()
    files.write(tmp_path / "coco", files.content(categories=files.CATEGORIES[:2]), "two")
    filled = [a.format(photos=photos, coco=tmp_path / "coco") for a in arguments]
    out = [] if "--out" in filled else ["--out", tmp_path / "out"]
    assert command(network, *filled, *out, *CPU) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and error.startswith("repgraph predict: ")
    assert not (tmp_path / "out").exists() or tree(tmp_path / "out") == set()


def test_an_input_is_not_written_over_and_scores_are_not_for_pixels(network, photos, tmp_path, monkeypatch, capsys):
    path = trained.save_picture(tmp_path / "out" / "overlays" / "a.png")
    before = path.read_bytes()
    assert command(network, path, "--out", tmp_path / "out", *CPU) == 2
    assert "is an input and would be written over" in capsys.readouterr().err and path.read_bytes() == before
    monkeypatch.undo()
    pixels = trained.save_network(tmp_path / "pixels")
    assert command(pixels, photos, "--out", tmp_path / "labels", "--score", "0.5", *CPU) == 2
    assert "--score is for networks that find objects; this one labels pixels" in capsys.readouterr().err


def test_a_full_disk_ends_it(network, photos, tmp_path, monkeypatch, capsys):
    def full(source, target):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    assert command(network, photos, "--out", tmp_path / "out", *CPU) == 2
    assert "No space left on device" in capsys.readouterr().err and tree(tmp_path / "out") == set()
