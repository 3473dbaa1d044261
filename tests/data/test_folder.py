"""A folder of one's own: its two layouts, its classes, and file names as they come."""

import json
import unicodedata

import pytest
from tests.data.layouts import folder, mask, names, picture

from repgraph.data import DataError, load


def flat(root, *stems, extension="png"):
    names(root / "classes.txt", "ground", "thing")
    for k, stem in enumerate(stems):
        picture(root / f"images/{stem}.{extension}", seed=k)
        mask(root / f"masks/{stem}.png", [0, 1, 255])
    return root


def listed(data) -> list[str]:
    return [item.name for item in data.items]


def test_images_in_one_folder_with_lists(tmp_path):
    flat(tmp_path, "a", "b", "c", "d")
    names(tmp_path / "train.txt", "c", "a")
    names(tmp_path / "val.txt", "b.png")  # file names will do
    assert listed(load("folder", tmp_path)) == ["c", "a"]
    assert listed(load("folder", tmp_path, "val")) == ["b"]
    assert listed(load("folder", tmp_path, "trainval")) == ["c", "a", "b"]
    with pytest.raises(DataError, match=r"test\.txt: there is no such list; lists there: train, val"):
        load("folder", tmp_path, "test")


def test_images_in_one_folder_without_lists(tmp_path):
    flat(tmp_path, "b", "a", "c")
    assert listed(load("folder", tmp_path)) == ["a", "b", "c"]
    with pytest.raises(DataError, match=r"val\.txt: there is no such list; write the names of its images there"):
        load("folder", tmp_path, "val")
    names(tmp_path / "val.txt", "b")
    assert listed(load("folder", tmp_path)) == ["a", "c"]  # what is in val is not in train


def test_a_list_that_repeats_itself(tmp_path):
    flat(tmp_path, "a", "b")
    names(tmp_path / "train.txt", "a", "b", "a.png")
    data = load("folder", tmp_path)
    assert (listed(data), data.repeated) == (["a", "b"], ["a"])


def test_trainval_of_split_folders(tmp_path):
    folder(tmp_path)
    folder(tmp_path, 2, split="val")
    assert len(load("folder", tmp_path, "trainval")) == 5


def test_other_names_of_folders_and_masks(tmp_path):
    names(tmp_path / "classes.txt", "ground", "thing")
    picture(tmp_path / "left/train/a.jpg")
    mask(tmp_path / "right/train/a_label.png", [0, 1])
    mask(tmp_path / "right/train/a_depth.png", [9])
    data = load("folder", tmp_path, images="left", masks="right", mask_ending="_label.png")
    assert data[0][1].unique().tolist() == [0, 1]


def test_folders_within_folders(tmp_path):
    flat(tmp_path, "x/1", "y/1", "y/z/2")
    assert listed(load("folder", tmp_path)) == ["x/1", "y/1", "y/z/2"]
    assert load("folder", tmp_path).prediction_name(0) == "x/1.png"


@pytest.mark.parametrize(
    "stem", ["ä é 漢字", "a.b.c", "with space", "a'b\"c", "#1", "[a]*", "IMG_0001 (1)", "{x}", "-v", "%s"]
)
def test_odd_names(tmp_path, stem):
    flat(tmp_path, stem)
    names(tmp_path / "train.txt", stem)
    data = load("folder", tmp_path)
    assert listed(data) == [stem]
    assert data[0][1].unique().tolist() == [0, 1, 255]


def test_accents_in_either_form(tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "fenêtre") for form in ("NFC", "NFD"))
    names(tmp_path / "classes.txt", "ground", "thing")
    picture(tmp_path / f"images/{decomposed}.png")
    mask(tmp_path / f"masks/{composed}.png", [0, 1])
    names(tmp_path / "train.txt", composed)
    assert load("folder", tmp_path)[0][1].unique().tolist() == [0, 1]


@pytest.mark.parametrize("extension", ["JPG", "jpeg", "Png", "TIF", "bmp"])
def test_extensions_in_any_letters(tmp_path, extension):
    flat(tmp_path, "a", extension=extension)
    (tmp_path / "masks/a.png").rename(tmp_path / "masks/a.PNG")
    assert load("folder", tmp_path)[0][1].unique().tolist() == [0, 1, 255]


def test_files_that_are_no_images_are_left_out(tmp_path):
    flat(tmp_path, "a")
    for name in ("images/.DS_Store", "images/._a.png", "images/notes.txt", "masks/Thumbs.db", "images/.cache/b.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"?")
    data = load("folder", tmp_path)
    assert listed(data) == ["a"] and data.strays == []


def test_two_images_of_one_name(tmp_path):
    flat(tmp_path, "a")
    picture(tmp_path / "images/a.jpg")
    with pytest.raises(DataError, match=r"a\.png and a\.jpg have one name; keep one of the two"):
        load("folder", tmp_path)


def test_no_masks(tmp_path):
    picture(tmp_path / "images/val/a.png")
    with pytest.raises(DataError, match="masks/val: there is no such folder; expected is images/SPLIT"):
        load("folder", tmp_path, "val", classes=2)


def test_an_empty_folder_of_images(tmp_path):
    flat(tmp_path)
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    with pytest.raises(DataError, match="images: no images there"):
        load("folder", tmp_path)


@pytest.mark.parametrize("split", ["train", "val"])
def test_names_that_no_file_has(tmp_path, split):
    flat(tmp_path, "a")
    names(tmp_path / f"{split}.txt", "a", "zzz.jpg")
    with pytest.raises(DataError, match=r"images/zzz\.jpg: there is no such file, though .*; 2 missing in all"):
        load("folder", tmp_path, split)


def test_classes_by_number_and_by_name(tmp_path):
    root = folder(tmp_path)
    (root / "classes.txt").unlink()
    assert load("folder", root, classes=3).labels.names == ("class 0", "class 1", "class 2")
    assert load("folder", root, classes=["x", "y", "z"]).labels.names == ("x", "y", "z")
    assert load("folder", root, classes=4, ignored=[255, 9]).labels.ignored == (255, 9)
    assert load("folder", root, classes=4, ignored=255).labels.ignored == (255,)


def test_classes_txt_may_not_repeat_a_name(tmp_path):
    root = folder(tmp_path)
    names(root / "classes.txt", "other", "car", "other")
    with pytest.raises(DataError, match=r"classes\.txt: 2 classes have the name 'other'; give each its own"):
        load("folder", root)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("classes", 3.0, "classes=3.0: give the number of classes, 1 to 255, or their names"),
        ("classes", 10**12, "classes=1000000000000: give the number of classes"),
        ("ignored", ["x"], r"ignored=\['x'\]; give label values that are whole numbers, such as 255"),
        ("ignored", "255", "ignored='255'; give label values"),
        ("ignored", 2.5, "ignored=2.5; give label values"),
        ("ignored", True, "ignored=True; give label values"),
        ("mask_ending", 5, "folder: mask_ending=5; give a text"),
        ("masks", None, "folder: masks=None; give a text"),
    ],
)
def test_options_of_a_wrong_kind(tmp_path, option, value, message):
    with pytest.raises(DataError, match=message):
        load("folder", folder(tmp_path), **{option: value})


def write_json(root, content):
    folder(root)
    (root / "classes.json").write_text(json.dumps(content), encoding="utf-8")
    return load("folder", root).labels


def test_classes_json_as_names(tmp_path):
    labels = write_json(tmp_path, ["sky", "straße", "car"])
    assert (labels.names, labels.ids, labels.ignored) == (("sky", "straße", "car"), (0, 1, 2), (255,))


def test_classes_json_in_full(tmp_path):
    entries = [{"name": "sky", "id": 4, "colour": [1, 2, 3]}, {"name": "car", "id": 300, "color": "#ff8000"}, "x"]
    labels = write_json(tmp_path, {"classes": entries, "ignored": [0, 1]})
    assert (labels.ids, labels.ignored, labels.palette[:2]) == ((4, 300, 2), (0, 1), ((1, 2, 3), (255, 128, 0)))


def test_classes_json_with_one_ignored_value(tmp_path):
    assert write_json(tmp_path, {"classes": ["a", "b"], "ignored": 255}).ignored == (255,)


def test_a_class_may_have_the_number_255(tmp_path):
    assert write_json(tmp_path, [{"name": "a", "id": 0}, {"name": "b", "id": 255}]).ignored == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"names": ["a"]}, r"classes\.json: expected is a list of names"),
        ("a", r"classes\.json: expected is a list of names"),
        ([], r"classes\.json: 0 classes"),
        ([1], r"classes\.json: class 0 is 1; give its name"),
        ([{"name": "a", "index": 3}], r"classes\.json: class 0 is .*; give its name, or name, id and colour"),
        ([{"name": "a", "id": "x"}], r"classes\.json: class 0 is .*; its id is a whole number, its colour \[r, g, b\]"),
        ([{"name": "a", "id": 1.9}], r"classes\.json: class 0 is .*; its id is a whole number"),
        ([{"name": "a", "id": "1"}], r"classes\.json: class 0 is .*; its id is a whole number"),
        ([{"name": "a", "id": 70000}], r"classes\.json: id 70000: label files hold 0 to 65535"),
        ([{"name": "a", "colour": [1, 2, 3.5]}], r"classes\.json: \(1, 2, 3.5\) is no colour"),
        ({"classes": ["a"], "ignored": "255"}, r'classes\.json: "ignored" is \'255\'; give label values'),
        (["a", "b", "a"], r"classes\.json: 2 classes have the name 'a'"),
        ([{"name": "a", "colour": 5}], r"classes\.json: class 0 is .*; its id is a whole number, its colour"),
        ([{"name": "a", "colour": [1, 2]}], r"classes\.json: \(1, 2\) is no colour"),
        ([{"name": "a", "id": 1}, "b"], r"classes\.json: label value 1 is given two meanings"),
    ],
)
def test_a_classes_json_that_makes_no_sense(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        write_json(tmp_path, content)


def test_a_classes_json_that_is_no_json(tmp_path):
    (folder(tmp_path) / "classes.json").write_text("[")
    with pytest.raises(DataError, match=r"classes\.json: cannot read it as JSON"):
        load("folder", tmp_path)


@pytest.mark.parametrize("classes", [0, -1, True])
def test_a_number_of_classes_that_is_none(tmp_path, classes):
    with pytest.raises(DataError, match=f"classes={classes}: give the number of classes"):
        load("folder", folder(tmp_path), classes=classes)


def test_classes_nowhere(tmp_path):
    (folder(tmp_path) / "classes.txt").unlink()
    with pytest.raises(
        DataError, match=r"classes\.txt: no such file, and no classes\.json; name one class in each line"
    ):
        load("folder", tmp_path)
