"""``repgraph data check``: finds all problems at once, counts classes, and reports text and an exit code."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.absent import run_without
from tests.data.coco import files as coco
from tests.data.layouts import cut, fails, folder, mask, names, picture
from tests.shared_data import shared

from repgraph import cli, recipes
from repgraph.data import INSTANCES, NAMES, load
from repgraph.data.check import Report, check
from repgraph.train.session import make_task


def run(*arguments: object) -> int:
    return cli.main(["data", "check", *map(str, arguments)])


def reports(name: str, root: Path, *splits: str, workers: int = 2, **options) -> list[Report]:
    return check(name, root, splits, options, workers, None)


def matches(problems: list[str], *expected: str) -> bool:
    """Return whether there is one problem for each pattern."""
    found = [[problem for problem in problems if re.search(pattern, problem)] for pattern in expected]
    return len(problems) == len(expected) and all(len(each) == 1 for each in found)


@pytest.fixture
def broken(tmp_path):
    """A data set with every kind of problem in train, and an image that is in train and val."""
    names(tmp_path / "classes.txt", "ground", "thing", "never")
    for name in ("fine", "no mask", "cut", "size", "values", "colours", "both", "mask cut"):
        picture(tmp_path / f"images/{name}.png", (20, 30))
        mask(tmp_path / f"masks/{name}.png", [0, 1, 1, 255], (20, 30))
    (tmp_path / "masks/no mask.png").unlink()
    mask(tmp_path / "masks/unpaired.png", [0])
    cut(tmp_path / "images/cut.png")
    mask(tmp_path / "masks/size.png", [0, 1, 1, 255], (30, 20))
    mask(tmp_path / "masks/values.png", [0, 9, 77, 255], (20, 30))
    Image.new("RGB", (30, 20)).save(tmp_path / "masks/colours.png")
    mask(tmp_path / "masks/mask cut.png", np.random.default_rng(0).integers(0, 2, 600), (20, 30))
    cut(tmp_path / "masks/mask cut.png")
    listed = ("fine", "no mask", "gone", "cut", "size", "values", "colours", "both", "mask cut", "fine")
    names(tmp_path / "train.txt", *listed)
    names(tmp_path / "val.txt", "both")
    return tmp_path


FOUND = (
    r"images/gone\.jpg: no such image",
    r"masks/no mask\.png: no such mask",
    r"masks/unpaired\.png: there is no image",
    r"images/cut\.png: cannot read this image \(",
    r"masks/colours\.png: the mask is a RGB image",
    r"masks/mask cut\.png: cannot read this mask",
    r"masks/size\.png has 20 x 30 pixels, ",
    r"masks/values\.png: label values 9, 77 are neither classes ",
)


@pytest.mark.parametrize("workers", [1, 3])
def test_everything_is_found_at_once(broken, workers):
    train, val = reports("folder", broken, workers=workers)
    assert matches(train.problems, *FOUND) and matches(val.problems, r"both\.png: the image is in train and val")
    truth = load("folder", broken, "val")[0][1].numpy()  # two images of train are valid
    assert train.pixels.tolist() == [2 * (truth == value).sum() for value in (0, 1, 2, 255)]
    assert train.images.tolist()[:3] == [2, 2, 0] and len(train.data) == 9 and len(val.data) == 1


def test_text(broken, capsys):
    for k in range(14):
        picture(broken / f"images/extra{k}.png")
    mask(broken / "masks/extra0.png", [0])
    names(broken / "val.txt", "both", *(f"extra{k}" for k in range(14)))
    assert run("folder", broken) == 1
    out = capsys.readouterr().out
    assert all(re.search(pattern, out) for pattern in FOUND)
    assert "folder train: 9 images, 30 x 20 pixels" in out and "folder val: 15 images, 8 x 6 to 30 x 20 pixels" in out
    assert out.count("masks/extra") == 13 and "22 problems found" in out


def test_a_valid_data_set(tmp_path, capsys):
    folder(folder(tmp_path, 4), 2, split="val")
    picture(tmp_path / "images/test/a.jpg", (9, 5))
    assert run("folder", tmp_path) == 0
    out = capsys.readouterr().out
    assert "folder train: 4 images" in out and "folder test: 1 image without labels, 5 x 9 pixels" in out
    val, both = reports("folder", tmp_path, "val", "trainval", classes=["a", "b", "c"], ignored=[255])
    assert (val.split, both.split) == ("val", "trainval")
    assert both.pixels.tolist() == [6 * 12] * 4 and both.images.tolist()[:3] == [6] * 3


def test_splits_that_cannot_be_used(tmp_path):
    folder(tmp_path)
    picture(tmp_path / "images/val/a.png")
    folder(tmp_path, 1, split="test")
    mask(tmp_path / "masks/test/0.png", [255])
    train, val, test = reports("folder", tmp_path)
    assert not train.problems and matches(val.problems, "masks/val: no such folder")
    assert matches(test.problems, "test: all 48 pixels are ignored")
    picture(tmp_path / "images/train/0.jpg")
    assert matches(reports("folder", tmp_path)[0].problems, "0.png and 0.jpg have the same name")


@pytest.mark.parametrize("name", ["ä漢 [bold]x[/bold]", b"\xff\xfe".decode("utf-8", "surrogateescape")])
def test_unusual_names_can_be_printed(tmp_path, capsys, name):
    folder(tmp_path)
    try:
        picture(tmp_path / f"images/train/{name}.png")
    except OSError:
        pytest.skip("the file system does not accept the name")
    assert run("folder", tmp_path) == 1
    out = capsys.readouterr().out.encode("utf-8")
    assert "bold" not in name or f"masks/train/{name}.png".encode() in out


def test_mistakes_in_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(folder(tmp_path))
    for arguments, message in (
        (["scenes", "x"], "scenes are drawn by the program"),
        (["folder", ".", "--option", "clases=3"], "folder has no option 'clases'; did you mean 'classes'?"),
        (["camvid", ".", "--split", "dev"], "camvid has no split 'dev'; choose one of test, train"),
    ):
        assert run(*arguments) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"repgraph data check: {message}") and captured.err.count("\n") == 1


def test_help_without_packages():
    script = "from repgraph.cli import main; main(['data', 'check', '--help'])"
    done = run_without(("torch", "torchvision", "PIL", "pycocotools", "numpy"), script)
    assert done.returncode == 0 and "repgraph data check voc data/VOC2012" in done.stdout
    listed = done.stdout.split("Data set: ")[1].split(".")[0].replace(" or ", ", ")
    assert "".join(listed.split()).split(",") == sorted({*NAMES, *INSTANCES} - {"scenes"})


def test_objects_without_pycocotools(tmp_path, capsys, monkeypatch):
    coco.write(tmp_path, coco.content(coco.annotation(1)))
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    assert run("coco", tmp_path) == 2
    assert "needs pycocotools: pip install '.[detection]' in a clone" in capsys.readouterr().err
    assert run("folder", folder(tmp_path), "--split", "train") == 0


def test_problems_of_objects(tmp_path, capsys):
    thin = coco.annotation(2, segmentation=[[3.1, 4.1, 9.0, 4.2, 3.1, 4.3]])
    invalid = [coco.annotation(3, bbox=[1, 1, 0, 0]), coco.annotation(4, image=99)]
    coco.write(tmp_path, coco.content(coco.annotation(1), thin, *invalid, coco.crowd(5), images=4))
    picture(tmp_path / "train2017/2.png", (7, 9))
    picture(tmp_path / "train2017/3.png", coco.SIZE)
    cut(tmp_path / "train2017/3.png")
    (train,) = reports("coco", tmp_path, "train")
    assert matches(
        train.problems,
        r"/4\.png: no such image",
        r"/3\.png: cannot read this image",
        r"/2\.png: the image has 9 x 7 pixels but 30 x 20 in ",
        r"instances_train2017\.json: annotations\[2\]: its box .* has no area",
        r"instances_train2017\.json: annotations\[3\]: there is no image 99,",
        r"/1\.png: 1 of 3 objects have no pixel",
    )
    assert train.counts[:, :3].T.tolist() == [[40, 1, 1], [36, 1, 1], [0, 0, 0]]
    assert train.pixels[-1] == 600 - 76 and len(train.data) == 4
    assert run("coco", tmp_path) == 1
    assert "in no object" in capsys.readouterr().out


def test_unknown_values_that_are_then_ignored(tmp_path, capsys):
    folder(folder(tmp_path, 2, classes=4), 1, split="val")
    names(tmp_path / "classes.txt", "a", "b", "c")
    assert "add them to classes.txt or classes.json" in reports("folder", tmp_path)[0].problems[0]
    fails(
        r"label values 3 are neither classes .* --set data\.options\.ignored=\[255,3\]",
        load("folder", tmp_path).__getitem__,
        0,
    )
    assert run("folder", tmp_path, "--option", "ignored=[255,3]") == 0


def test_without_a_split_for_validation(tmp_path, capsys):
    """Both the check and training report it, with the remedy."""
    _, val = reports("folder", folder(tmp_path, 5))
    assert matches(val.problems, r"images/val: no such folder; .* --set data\.hold_out=5")
    recipe = recipes.with_settings(recipes.get("folder-r50-rgnet"), [f"data.root={tmp_path}"])
    fails(r"images/val: no such folder; .* --set data\.hold_out=5", make_task(recipe).splits)
    train, held = make_task(recipes.with_settings(recipe, ["data.hold_out=5"])).splits()
    assert (len(train), len(held)) == (4, 1)


def test_loops_and_special_files(tmp_path, capsys):
    folder(folder(tmp_path), split="val")
    for name in ("images/train/loop", "masks/train/more"):
        (tmp_path / name).symlink_to(".")
    os.mkfifo(tmp_path / "images/train/pipe.png")
    mask(tmp_path / "masks/train/pipe.png", [0])
    os.mkfifo(tmp_path / "masks/val/pipe.png")
    picture(tmp_path / "images/val/pipe.png")
    train, val = reports("folder", tmp_path)
    assert (len(train.data), len(val.data)) == (4, 4)
    loops = (f"{name}: it links to a folder that is searched" for name in ("train/loop", "train/more"))
    assert matches(train.problems, *loops, r"images/train/pipe\.png: .*Not a regular file")
    assert matches(val.problems, r"masks/val/pipe\.png: .*Not a regular file")


def test_splits_of_objects(tmp_path, capsys):
    coco.write(tmp_path, coco.content(coco.annotation(1)))
    others = [{"id": 3, "name": "dog"}, {"id": 7, "name": "cat"}]
    coco.write(tmp_path, coco.content(coco.crowd(1), categories=others), "val")
    coco.write(tmp_path, "{", "test")
    train, val, test = reports("coco", tmp_path)
    assert not train.problems and matches(test.problems, "not valid JSON")
    assert matches(val.problems, "no object that can be used", "train and val differ: class 0 is 'cat' and 'dog'")


def test_real_data(capsys):
    """COCO's sample has a polygon that is too thin for a pixel."""
    assert not any(report.problems for report in reports("cityscapes", shared("data/samples/cityscapes")))
    train, _ = reports("coco", shared("data/coco"))
    assert matches(train.problems, r"000000000542\.jpg: 1 of \d+ objects have no pixel")
