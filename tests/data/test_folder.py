"""Your own images: the two layouts, the classes, and unusual file names."""

import json
import unicodedata

import numpy as np
import pytest
from PIL import Image
from tests.data.layouts import fails, folder, mask, names, picture

from repgraph.data import load


def flat(root, *stems, extension="png"):
    """Write images and masks without split folders."""
    names(root / "classes.txt", "ground", "thing")
    for k, stem in enumerate(stems):
        picture(root / f"images/{stem}.{extension}", seed=k)
        mask(root / f"masks/{stem}.png", [0, 1, 255])
    return root


def item_names(*arguments) -> list[str]:
    return [item.name for item in load("folder", *arguments).items]


def test_lists(tmp_path):
    flat(tmp_path, "a", "b", "c", "d")
    names(tmp_path / "train.txt", "c", "a")
    names(tmp_path / "val.txt", "b")
    assert item_names(tmp_path) == ["c", "a"] and item_names(tmp_path, "val") == ["b"]
    assert item_names(tmp_path, "trainval") == ["c", "a", "b"]
    fails(r"test\.txt: No such file", load, "folder", tmp_path, "test")
    names(tmp_path / "train.txt", "a", "b", "a")
    assert item_names(tmp_path) == ["a", "b"]


def test_without_a_list_train_is_the_rest(tmp_path):
    flat(tmp_path, "b", "a", "c")
    assert item_names(tmp_path) == ["a", "b", "c"]
    names(tmp_path / "val.txt", "b")
    assert item_names(tmp_path) == ["a", "c"]
    names(tmp_path / "val.txt", "a", "b", "c")
    fails("images: no images found", load, "folder", tmp_path)


def test_names_of_folders_and_masks(tmp_path):
    names(tmp_path / "classes.txt", "ground", "thing")
    picture(tmp_path / "left/train/a.jpg")
    mask(tmp_path / "right/train/a_label.png", [0, 1])
    mask(tmp_path / "right/train/a_depth.png", [9])
    data = load("folder", tmp_path, images="left", masks="right", mask_ending="_label.png")
    assert data[0][1].unique().tolist() == [0, 1] and not data.problems
    folder(tmp_path, 4, split="trainval")
    assert len(load("folder", tmp_path, "trainval")) == 4  # it has its own folder


@pytest.mark.parametrize("stem", ["ä é 漢字", "a.b.c", "a'b\"c", "[a]*", "IMG_0001 (1)", "{x}", "-v", "%s", "x/y/1"])
def test_unusual_names(tmp_path, stem):
    names(flat(tmp_path, stem) / "train.txt", unicodedata.normalize("NFD", stem))  # as some file systems store it
    data = load("folder", tmp_path)
    assert [item.name for item in data.items] == [stem] and data[0][1].unique().tolist() == [0, 1, 255]
    assert data.prediction_name(0) == f"{stem}.png"


@pytest.mark.parametrize("extension", ["JPG", "jpeg", "TIF"])
def test_extensions(tmp_path, extension):
    flat(tmp_path, "a", extension=extension)
    (tmp_path / "masks/a.png").rename(tmp_path / "masks/a.PNG")
    for name in ("images/.DS_Store", "images/._a.png", "images/notes.txt", "masks/Thumbs.db", "images/.cache/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"?")
    data = load("folder", tmp_path)
    assert len(data) == 1 and data.problems == [] and data[0][1].unique().tolist() == [0, 1, 255]


def test_options_for_classes(tmp_path):
    (folder(tmp_path) / "classes.txt").unlink()
    assert load("folder", tmp_path, classes=3).labels.names == ("class 0", "class 1", "class 2")
    assert load("folder", tmp_path, classes=["x", "y", "z"]).labels.names == ("x", "y", "z")
    assert load("folder", tmp_path, classes=4, ignored=[255, 9]).labels.ignored == (255, 9)
    fails(r"classes\.txt: No such file .* one name per line; .* classes=N", load, "folder", tmp_path)
    names(tmp_path / "classes.txt", "other", "car", "other")
    fails(r"classes\.txt: the class name 'other' occurs 2 times", load, "folder", tmp_path)
    for option, value in (("classes", 0), ("classes", 10**12), ("ignored", ["x"]), ("mask_ending", 5), ("masks", None)):
        fails(f"folder: {option} is ", load, "folder", tmp_path, **{option: value})


def labels_of_json(root, content):
    (folder(root) / "classes.json").write_text(json.dumps(content), encoding="utf-8-sig")
    return load("folder", root).labels


def test_classes_json(tmp_path):
    labels = labels_of_json(tmp_path, ["sky", "straße", "car"])
    assert (labels.names, labels.ids, labels.ignored) == (("sky", "straße", "car"), (0, 1, 2), (255,))
    entries = [{"name": "sky", "id": 4, "colour": [1, 2, 3]}, {"name": "car", "id": 300}, "x"]
    labels = labels_of_json(tmp_path, {"classes": entries, "ignored": [0, 1]})
    assert (labels.ids, labels.ignored, labels.palette[0]) == ((4, 300, 2), (0, 1), (1, 2, 3))
    assert labels_of_json(tmp_path, [{"name": "a", "id": 0}, {"name": "b", "id": 255}]).ignored == ()


def test_rgb_masks(tmp_path):
    """Colours are as in ``classes.json``; unknown colours are errors until they are added there or ignored."""
    colours = {"sky": [0, 0, 255], "car": [200, 0, 1]}
    entries = [{"name": name, "id": k + 7, "colour": colour} for k, (name, colour) in enumerate(colours.items())]
    pixels = np.array([[[0, 0, 255], [200, 0, 1]], [[9, 9, 9], [0, 0, 255]]], np.uint8)
    picture(tmp_path / "images/train/0.png", (2, 2))
    (tmp_path / "masks/train").mkdir(parents=True)

    def read(content, mode="RGB"):
        (tmp_path / "classes.json").write_text(json.dumps(content))
        Image.fromarray(pixels).convert(mode).save(tmp_path / "masks/train/0.png")
        data = load("folder", tmp_path)
        assert data.labels.to_dict().keys() == {"names", "palette", "ids", "ignored"}
        return data[0][1].tolist()

    fails(r"0\.png: label values \[9, 9, 9\] are neither classes .*--option ignored=\[255,\[9,9,9\]\]", read, entries)
    for mode in ("RGB", "RGBA"):
        assert read({"classes": entries, "ignored": [255, [9, 9, 9]]}, mode) == [[0, 1], [255, 0]]
    assert read([*entries, {"name": "x", "colour": [9, 9, 9]}]) == [[0, 1], [2, 0]]
    for unclear in ([*entries, "x"], [*entries, {"name": "x", "colour": [0, 0, 255]}]):
        fails('0\\.png: the mask is a RGB image; .* every class has its own "colour"', read, unclear)
    fails("a color: .*300", read, {"classes": entries, "ignored": [[9, 9, 300]]})


@pytest.mark.parametrize(
    "content",
    [[], [{"name": "a", "index": 3}], [{"name": "a", "colour": [1, 2, 300]}], {"classes": ["a"], "ignored": 255}],
)
def test_invalid_classes_json(tmp_path, content):
    fails(r"classes\.json: ", labels_of_json, tmp_path, content)
    (tmp_path / "classes.json").write_text("[")
    fails(r"classes\.json is not valid JSON", load, "folder", tmp_path)
