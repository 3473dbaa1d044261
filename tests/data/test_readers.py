"""Every reader on a small set in its layout: pairs, splits, classes, and what is said when something is not there."""

import pickle
import re

import numpy as np
import pytest
import torch
from tests.data.layouts import mask, matlab, names, picture
from torchvision.tv_tensors import Image, Mask

from repgraph.data import IGNORE, NAMES, DataError, load, open_set, opener
from repgraph.errors import UsageError


def ade20k(root):
    for split, folder, count in (("train", "training", 3), ("val", "validation", 2)):
        for k in range(count):
            picture(root / f"images/{folder}/ADE_{split}_{k:08}.jpg", seed=k)
            mask(root / f"annotations/{folder}/ADE_{split}_{k:08}.png", [0, 1, 150])
    picture(root / "release_test/testing/ADE_test_00000001.jpg")


def cityscapes(root):
    for split, city, count in (
        ("train", "aachen", 2),
        ("train", "bochum", 1),
        ("val", "lindau", 2),
        ("test", "berlin", 1),
    ):
        for k in range(count):
            name = f"{city}_{k:06}_000019"
            picture(root / f"leftImg8bit/{split}/{city}/{name}_leftImg8bit.png", seed=k)
            mask(root / f"gtFine/{split}/{city}/{name}_gtFine_labelIds.png", [0, 7, 33] if split != "test" else [0])
            mask(root / f"gtFine/{split}/{city}/{name}_gtFine_instanceIds.png", [26001], mode="I;16")
            mask(root / f"gtFine/{split}/{city}/{name}_gtFine_color.png", [9])


def voc(root):
    for k in range(5):
        picture(root / f"JPEGImages/2007_{k}.jpg", seed=k)
        mask(root / f"SegmentationClass/2007_{k}.png", [0, 20, 255], mode="P")
    names(root / "ImageSets/Segmentation/train.txt", "2007_3", "2007_0", "2007_1")
    names(root / "ImageSets/Segmentation/val.txt", "2007_2", "2007_4")
    names(root / "ImageSets/Segmentation/test.txt", "2007_4")


def pascal_context(root):
    for k in range(5):
        picture(root / f"JPEGImages/2008_{k}.jpg", seed=k)
        mask(root / f"SegmentationClassContext/2008_{k}.png", [0, 1, 59])
    names(root / "ImageSets/SegmentationContext/train.txt", "2008_0", "2008_1", "2008_3")
    names(root / "ImageSets/SegmentationContext/val.txt", "2008_2", "2008_4")


def camvid(root):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        for k in range(count):
            picture(root / f"{split}/0001TP_{k}.png", seed=k)
            mask(root / f"{split}annot/0001TP_{k}.png", [0, 10, 11])


def stanford(root):
    for k in range(10):
        picture(root / f"images/{k:07}.jpg", seed=k)
        text = "\n".join(" ".join(map(str, row)) for row in np.resize([-1, 0, 7], (6, 8)))
        (root / "labels").mkdir(exist_ok=True)
        (root / f"labels/{k:07}.regions.txt").write_text(text)
        (root / f"labels/{k:07}.surfaces.txt").write_text("1 1")
    names(root / "train.txt", *(f"{k:07}" for k in (0, 1, 2)))
    names(root / "val.txt", *(f"{k:07}" for k in (3, 4)))


def folder(root):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        for k in range(count):
            picture(root / f"images/{split}/{k}.png", seed=k)
            if split != "test":
                mask(root / f"masks/{split}/{k}.png", [0, 1, 255])
    names(root / "classes.txt", "ground", "thing")


# set: what writes it, the classes in its masks, and in test: images, or None where it has no such split
SETS = {
    "ade20k": (ade20k, [0, 149, IGNORE], 1),
    "camvid": (camvid, [0, 10, IGNORE], None),
    "cityscapes": (cityscapes, [0, 18, IGNORE], 1),
    "folder": (folder, [0, 1, IGNORE], 1),
    "pascal_context": (pascal_context, [0, 58, IGNORE], None),
    "stanford": (stanford, [0, 7, IGNORE], None),
    "voc": (voc, [0, 20, IGNORE], 1),
}


@pytest.fixture(params=SETS)
def made(request, tmp_path):
    """A set's name, its folder, and the classes in its masks."""
    write, classes, _ = SETS[request.param]
    write(tmp_path)
    return request.param, tmp_path, classes


def test_all_sets_are_tried():
    assert {*SETS, "scenes"} == set(NAMES)


def test_pairs_of_train_and_val(made):
    name, root, classes = made
    train, val, both = (load(name, root, split) for split in ("train", "val", "trainval"))
    assert (len(train), len(val), len(both)) == (3, 2, 5)
    assert [item.name for item in both.items] == [item.name for item in train.items + val.items]
    for data in (train, val, both):
        assert (data.name, data.missing, data.strays, data.repeated, data.labelled) == (name, [], [], [], True)
        for image, truth in data:
            assert isinstance(image, Image) and isinstance(truth, Mask)
            assert (image.dtype, tuple(image.shape), truth.dtype, tuple(truth.shape)) == (
                torch.uint8, (3, 6, 8), torch.uint8, (6, 8),
            )  # fmt: skip
            assert truth.unique().tolist() == classes
    different = {image.sum().item() for image, _ in train}
    assert len(different) > 1  # not one image over and over


@pytest.mark.parametrize("name", [name for name, entry in SETS.items() if entry[2]])
def test_a_split_without_labels(name, tmp_path):
    write, _, count = SETS[name]
    write(tmp_path)
    data = load(name, tmp_path, "test")
    assert len(data) == count and not data.labelled
    image, truth = data[0]
    assert truth is None and tuple(image.shape) == (3, 6, 8)


def test_sets_can_be_sent_to_other_processes(made):
    name, root, _ = made
    data = pickle.loads(pickle.dumps(load(name, root)))
    assert len(data) == 3 and data.labels == load(name, root).labels
    loader = torch.utils.data.DataLoader(data, batch_size=3, num_workers=1, multiprocessing_context="fork")
    if name == "folder":  # once is enough
        assert next(iter(loader))[0].shape == (3, 3, 6, 8)


def test_the_folder_that_is_needed_is_named(made, tmp_path):
    name, _, _ = made
    with pytest.raises(UsageError, match="nowhere: there is no such folder; expected is"):
        load(name, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty/\w+: there is no such folder; expected is"):
        load(name, tmp_path / "empty")


def test_unknown_splits_and_options(made):
    name, root, _ = made
    with pytest.raises(DataError, match="tarin"):
        load(name, root, "tarin")
    with pytest.raises(DataError, match=f"{name} has no option 'clases'; it"):
        load(name, root, clases=3)
    with pytest.raises(DataError, match=f"{name} needs the folder that its files are in"):
        load(name, None)


def test_missing_files_are_found_when_the_set_is_opened(made):
    name, root, _ = made
    data = load(name, root)
    data.items[1].image.unlink()
    data.items[2].mask.unlink()
    if name in ("ade20k", "camvid", "cityscapes", "folder"):  # images are listed from the folder: one mask is left over
        opened = open_set(name, root)
        assert opened.strays == [data.items[1].mask] and len(opened) == 2
        assert opened.missing == [data.items[2].mask]
    else:
        opened = open_set(name, root)
        assert len(opened) == 3 and len(opened.missing) == 2
        assert opened.missing[0] == data.items[1].image
    with pytest.raises(
        DataError, match=rf"there is no such file, though {name} train needs it; {len(opened.missing)} missing"
    ):
        load(name, root)


def test_a_mask_of_another_size(made):
    name, root, _ = made
    data = load(name, root)
    picture(data.items[0].image, (6, 9))
    with pytest.raises(DataError, match=r"the mask has 8 x 6 pixels, its image .* 9 x 6; both need the same size"):
        data[0]


def test_no_images_at_all(made):
    name, root, _ = made
    data = load(name, root)
    for item in data.items:
        item.image.unlink()
    with pytest.raises(DataError, match=r"no images there|there is no such file"):
        load(name, root)


def test_labels_out_of_range_name_the_file(tmp_path):
    voc(tmp_path)
    mask(tmp_path / "SegmentationClass/2007_3.png", [0, 21])
    with pytest.raises(DataError, match=r"2007_3\.png: unknown label value 21; classes are 0-20, ignored are 255"):
        load("voc", tmp_path)[0]


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("ade20k", "ADEChallengeData2016"),
        ("camvid", "CamVid"),
        ("cityscapes", "cityscapes"),
        ("stanford", "iccv09Data"),
        ("pascal_context", "VOCdevkit/VOC2010"),
        ("pascal_context", "VOC2010"),
        ("voc", "VOCdevkit/VOC2012"),
        ("voc", "VOC2012"),
    ],
)
def test_the_folder_that_an_archive_makes_is_found(name, inside, tmp_path):
    (tmp_path / inside).mkdir(parents=True)
    SETS[name][0](tmp_path / inside)
    assert load(name, str(tmp_path)).root == tmp_path / inside


def test_ade20k_test_images_beside_the_set(tmp_path):
    ade20k(tmp_path / "ADEChallengeData2016")
    (tmp_path / "ADEChallengeData2016/release_test").rename(tmp_path / "release_test")
    assert load("ade20k", tmp_path, "test").items[0].name == "ADE_test_00000001"


def test_cityscapes_names_and_predictions(tmp_path):
    cityscapes(tmp_path)
    data = load("cityscapes", tmp_path, "test")
    assert data.items[0].name == "berlin_000000_000019"
    assert data.prediction_name(0) == "berlin_000000_000019_pred_labelIds.png"  # the server: <city>_123456_123456*.png
    assert data.labels.to_file(np.array([0, 18])).tolist() == [7, 33]


def test_voc_lists(tmp_path):
    voc(tmp_path)
    assert [item.name for item in load("voc", tmp_path).items] == ["2007_3", "2007_0", "2007_1"]  # as listed
    names(tmp_path / "ImageSets/Segmentation/trainval.txt", "2007_1")
    assert len(load("voc", tmp_path, "trainval")) == 1  # its own list counts
    with pytest.raises(DataError, match=r"tiny\.txt: there is no such list; lists there: test, train, trainval, val"):
        load("voc", tmp_path, "tiny")
    names(tmp_path / "ImageSets/Segmentation/tiny.txt", "2007_1", "2007_2", "2007_1", "")
    tiny = load("voc", tmp_path, "tiny")
    assert [item.name for item in tiny.items] == ["2007_1", "2007_2"] and tiny.repeated == ["2007_1"]


def test_voc_with_other_masks(tmp_path):
    voc(tmp_path)
    mask(tmp_path / "SegmentationClassAug/2007_0.png", [3])
    names(tmp_path / "ImageSets/Segmentation/train_aug.txt", "2007_0")
    data = load("voc", tmp_path, "train_aug", masks="SegmentationClassAug")
    assert data[0][1].unique().tolist() == [3]


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_empty_lists(tmp_path, content):
    voc(tmp_path)
    (tmp_path / "ImageSets/Segmentation/train.txt").write_text(content)
    with pytest.raises(DataError, match=r"train\.txt: no names in it"):
        load("voc", tmp_path)


def test_a_list_that_is_no_text(tmp_path):
    voc(tmp_path)
    (tmp_path / "ImageSets/Segmentation/train.txt").write_bytes("2007_ä".encode("latin-1"))
    with pytest.raises(DataError, match=r"train\.txt: not a text in UTF-8"):
        load("voc", tmp_path)


def test_trainval_without_one_of_its_lists(tmp_path):
    voc(tmp_path)
    (tmp_path / "ImageSets/Segmentation/val.txt").unlink()
    with pytest.raises(DataError, match=r"val\.txt: cannot read the list \(No such file"):
        load("voc", tmp_path, "trainval")


def test_lists_from_windows(tmp_path):
    voc(tmp_path)
    (tmp_path / "ImageSets/Segmentation/train.txt").write_bytes(b"\xef\xbb\xbf2007_0\r\n2007_1\r\n")
    assert len(load("voc", tmp_path)) == 2


def test_pascal_context_as_released(tmp_path):
    values = np.resize(np.array([0, 2, 3, 458, 459, 284]), (6, 8)).astype(np.uint16)
    for k in range(2):
        picture(tmp_path / f"JPEGImages/2008_{k}.jpg")
        matlab(tmp_path / f"trainval/2008_{k}.mat", values)
    names(tmp_path / "ImageSets/Main/train.txt", "2008_0")
    names(tmp_path / "ImageSets/Main/val.txt", "2008_1")
    data = load("pascal_context", tmp_path, "val")
    person = data.labels.names.index("person")
    expected = np.resize([IGNORE, 0, IGNORE, 58, IGNORE, person], (6, 8))
    assert (data[0][1].numpy() == expected).all()


def test_pascal_context_without_labels(tmp_path):
    picture(tmp_path / "JPEGImages/2008_0.jpg")
    with pytest.raises(DataError, match="no folder SegmentationClassContext or trainval in it; expected is VOC2010"):
        load("pascal_context", tmp_path)


def test_stanford_as_released_has_no_lists(tmp_path):
    stanford(tmp_path)
    for part in ("train", "val"):
        (tmp_path / f"{part}.txt").unlink()
    train, val = load("stanford", tmp_path), load("stanford", tmp_path, "val")
    assert [item.name for item in val.items] == ["0000000", "0000005"]
    assert len(train) == 8 and len(load("stanford", tmp_path, "trainval")) == 10
    assert not {item.name for item in train.items} & {item.name for item in val.items}


@pytest.mark.parametrize("name", ["voc", "coco"])
def test_the_home_of_a_user_who_is_not_known(name):
    with pytest.raises(DataError, match=r"^~no such user/data: there is no such folder"):
        open_set(name, "~no such user/data")


def test_unknown_sets():
    with pytest.raises(DataError, match="unknown data set 'imagenet'; choose one of ade20k, camvid"):
        load("imagenet", "data")


@pytest.mark.parametrize(
    ("name", "option", "value", "needed"),
    [
        ("voc", "masks", 5, "a text"),
        ("voc", "masks", None, "a text"),
        ("coco", "annotations", ["a.json"], "a text"),
        ("coco", "crowds", "no", "true or false"),
        ("coco", "empty", 1, "true or false"),
    ],
)
def test_options_of_a_wrong_kind(name, option, value, needed):
    with pytest.raises(DataError, match=re.escape(f"{name}: {option}={value!r}; give {needed}")):
        opener(name, ".", **{option: value})
    assert opener("coco", ".", images=None, crowds=False)
