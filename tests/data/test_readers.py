"""Every reader on a small data set in its layout, and on real data: pairs, splits, classes and errors."""

import csv
import re

import numpy as np
import pytest
import scipy.io
import torch
from tests.data.layouts import fails, mask, names, picture
from tests.shared_data import shared
from torchvision.tv_tensors import Image, Mask

from repgraph.data import IGNORE, INSTANCES, NAMES, load, open_split, readers
from repgraph.data.files import read_mask


def pairs(image, mask_path, names, values, **options):
    """Write images and masks; ``{}`` in the paths is replaced by a name."""
    for k, name in enumerate(names):
        picture(image.with_name(image.name.format(name)), seed=k)
        mask(mask_path.with_name(mask_path.name.format(name)), values, **options)


def ade20k(root):
    for split, count in (("training", 3), ("validation", 2)):
        listed = [f"ADE_{split}_{k:08}" for k in range(count)]
        pairs(root / "images" / split / "{}.jpg", root / "annotations" / split / "{}.png", listed, [0, 1, 150])
    picture(root / "release_test/testing/ADE_test_00000001.jpg")


def cityscapes(root):
    for city, split, count in (
        ("aachen", "train", 2),
        ("bochum", "train", 1),
        ("lindau", "val", 2),
        ("berlin", "test", 1),
    ):
        listed = [f"{city}_{k:06}_000019" for k in range(count)]
        images, truth = root / "leftImg8bit" / split / city, root / "gtFine" / split / city
        pairs(images / "{}_leftImg8bit.png", truth / "{}_gtFine_labelIds.png", listed, [0, 7, 33])
        mask(truth / f"{listed[0]}_gtFine_instanceIds.png", [26001], mode="I;16")
        mask(truth / f"{listed[0]}_gtFine_color.png", [9])


def voc(root, masks="SegmentationClass", lists="Segmentation", values=(0, 20, 255)):
    listed = [f"2007_{k}" for k in range(5)]
    pairs(root / "JPEGImages/{}.jpg", root / masks / "{}.png", listed, values, mode="P")
    names(root / "ImageSets" / lists / "train.txt", "2007_3", "2007_0", "2007_1")
    names(root / "ImageSets" / lists / "val.txt", "2007_2", "2007_4")
    names(root / "ImageSets" / lists / "test.txt", "2007_4")


def pascal_context(root):
    voc(root, "SegmentationClassContext", "SegmentationContext", (0, 1, 59))


def camvid(root):
    for split, count in (("train", 3), ("val", 2), ("test", 1)):
        pairs(root / split / "{}.png", root / f"{split}annot" / "{}.png", range(count), [0, 10, 11])


def stanford(root):
    (root / "labels").mkdir(parents=True)
    for k in range(10):
        picture(root / f"images/{k:07}.jpg", seed=k)
        np.savetxt(root / f"labels/{k:07}.regions.txt", np.resize([-1, 0, 7], (6, 8)), fmt="%d")
        (root / f"labels/{k:07}.surfaces.txt").write_text("1 1")
    names(root / "train.txt", *(f"{k:07}" for k in (0, 1, 2)))
    names(root / "val.txt", *(f"{k:07}" for k in (3, 4)))


def folder(root):
    for split, count in (("train", 3), ("val", 2)):
        pairs(root / f"images/{split}" / "{}.png", root / f"masks/{split}" / "{}.png", range(count), [0, 1, 255])
    picture(root / "images/test/a.png")
    names(root / "classes.txt", "ground", "thing")


# Name: the function that writes the data set, and the classes in its masks.
SETS = {
    "ade20k": (ade20k, [0, 149, IGNORE]),
    "camvid": (camvid, [0, 10, IGNORE]),
    "cityscapes": (cityscapes, [0, 18, IGNORE]),
    "folder": (folder, [0, 1, IGNORE]),
    "pascal_context": (pascal_context, [0, 58, IGNORE]),
    "stanford": (stanford, [0, 7, IGNORE]),
    "voc": (voc, [0, 20, IGNORE]),
}


@pytest.fixture(params=SETS)
def made(request, tmp_path):
    SETS[request.param][0](tmp_path)
    return request.param, tmp_path


def test_splits(made):
    name, root = made
    train, val, both = (load(name, root, split) for split in ("train", "val", "trainval"))
    assert (len(train), len(val), len(both)) == (3, 2, 5)
    assert [item.name for item in both.items] == [item.name for item in train.items + val.items]
    for data in (train, val, both):
        assert (data.name, data.missing, data.problems, data.labelled) == (name, [], [], True)
        for image, truth in data:
            assert isinstance(image, Image) and image.dtype == torch.uint8 and tuple(image.shape) == (3, 6, 8)
            assert isinstance(truth, Mask) and truth.dtype == torch.uint8 and tuple(truth.shape) == (6, 8)
            assert truth.unique().tolist() == SETS[name][1]
    assert len({image.sum().item() for image, _ in train}) > 1
    if name in ("ade20k", "cityscapes", "folder", "voc"):
        data = load(name, root, "test")
        assert len(data) == 1 and not data.labelled and data[0][1] is None and tuple(data[0][0].shape) == (3, 6, 8)


def test_wrong_arguments(made):
    name, root = made
    (root / "empty").mkdir()
    fails(r"empty/\w+: no such folder; expected", load, name, root / "empty")
    fails("tarin", load, name, root, "tarin")
    fails(f"{name} has no option 'clases'", load, name, root, clases=3)
    fails(f"root is required for {name!r}", load, name, None)


def test_damaged_data_sets(made):
    name, root = made
    items = load(name, root).items
    picture(items[0].image, (6, 9))
    fails(r"has 8 x 6 pixels, .* has 9 x 6", load(name, root).__getitem__, 0)
    items[1].image.unlink()
    items[2].mask.unlink()
    data = open_split(name, root, "train")
    if name in ("ade20k", "camvid", "cityscapes", "folder"):  # without lists
        assert data.problems == [f"{items[1].mask}: there is no image for this mask"]
        assert (data.missing, len(data)) == ([items[2].mask], 2)
    else:
        assert data.missing == [items[1].image, items[2].mask] and len(data) == 3
    fails(rf"no such file \({len(data.missing)} missing in {name} train\)", load, name, root)


ARCHIVES = {"ade20k": "ADEChallengeData2016", "camvid": "CamVid", "cityscapes": "cityscapes", "stanford": "iccv09Data"}
ARCHIVES |= {"pascal_context": "VOCdevkit/VOC2010", "voc": "VOCdevkit/VOC2012"}


@pytest.mark.parametrize("name", ARCHIVES)
def test_folders_of_archives(name, tmp_path):
    SETS[name][0](tmp_path / ARCHIVES[name])
    assert load(name, str(tmp_path)).root == tmp_path / ARCHIVES[name]
    if name == "ade20k":
        (tmp_path / "ADEChallengeData2016/release_test").rename(tmp_path / "release_test")  # beside the data set
        assert load(name, tmp_path, "test").items[0].name == "ADE_test_00000001"
    if name == "cityscapes":
        assert load(name, tmp_path, "test").prediction_name(0) == "berlin_000000_000019_pred_labelIds.png"


def test_voc_lists(tmp_path):
    voc(tmp_path)
    lists = tmp_path / "ImageSets/Segmentation"
    assert [item.name for item in load("voc", tmp_path).items] == ["2007_3", "2007_0", "2007_1"]  # as listed
    names(lists / "trainval.txt", "2007_1")
    assert len(load("voc", tmp_path, "trainval")) == 1
    fails(r"tiny\.txt: No such file .*; expected VOC2012", load, "voc", tmp_path, "tiny")
    (lists / "tiny.txt").write_bytes(b"\xef\xbb\xbf2007_1\r\n2007_2\r\n2007_1\r\n\r\n")  # from Windows
    tiny = load("voc", tmp_path, "tiny")
    assert [item.name for item in tiny.items] == ["2007_1", "2007_2"]
    for content, message in ((b"\n \n", "the list is empty"), ("2007_ä".encode("latin-1"), "not UTF-8 text")):
        (lists / "tiny.txt").write_bytes(content)
        fails(rf"tiny\.txt: {message}", load, "voc", tmp_path, "tiny")
    mask(tmp_path / "SegmentationClassAug/2007_0.png", [3])
    names(lists / "train_aug.txt", "2007_0")
    assert load("voc", tmp_path, "train_aug", masks="SegmentationClassAug")[0][1].unique().tolist() == [3]


def test_pascal_context_as_released(tmp_path):
    picture(tmp_path / "JPEGImages/2008_1.jpg")
    fails("trainval: no such folder; expected VOC2010", load, "pascal_context", tmp_path)
    values = np.resize(np.array([0, 2, 3, 458, 459, 284], np.uint16), (6, 8))
    (tmp_path / "trainval").mkdir()
    scipy.io.savemat(tmp_path / "trainval/2008_1.mat", {"LabelMap": values}, do_compression=True)
    names(tmp_path / "ImageSets/Main/val.txt", "2008_1")
    data = load("pascal_context", tmp_path, "val")
    person = data.labels.names.index("person")
    np.testing.assert_array_equal(data[0][1], np.resize([IGNORE, 0, IGNORE, 58, IGNORE, person], (6, 8)))


def test_stanford_as_released(tmp_path):
    stanford(tmp_path)
    for part in ("train", "val"):
        (tmp_path / f"{part}.txt").unlink()
    train, val, both = ([i.name for i in load("stanford", tmp_path, s).items] for s in ("train", "val", "trainval"))
    assert val == ["0000000", "0000005"] and len(train) == 8 and sorted(train + val) == both


def test_names_and_options():
    assert set(readers.READERS) == {*NAMES, *INSTANCES} and {*SETS, "scenes"} == set(NAMES)
    fails("unknown data set 'imagenet'; choose one of ade20k, camvid", load, "imagenet", "data")
    for name, option, value in (("voc", "masks", 5), ("voc", "masks", None), ("coco", "empty", "x")):
        fails(f"{name}: {option} is {value!r}; input should be", open_split, name, ".", "train", **{option: value})


@pytest.mark.parametrize(
    ("name", "root", "split", "count"),
    [("voc", "VOC2012", "trainval", 1947), ("camvid", "CamVid", "test", 233), ("ade20k", "samples", "trainval", 4)],
)
def test_real_data(name, root, split, count):
    data = load(name, shared(f"data/{root}"), split)
    assert (len(data), data.missing, data.problems) == (count, [], [])
    for index in {0, count // 2, count - 1}:
        image, truth = data[index]
        assert image.shape[-2:] == truth.shape and image.shape[0] == 3
        found = set(truth.unique().tolist()) - {IGNORE}
        assert found and found <= set(range(len(data.labels)))


def test_real_train_ids_of_cityscapes():
    """labelTrainIds are the classes. (The sample was downscaled: a few pixels at borders differ.)"""
    data = load("cityscapes", shared("data/samples/cityscapes"), "val")
    path = data.items[0].mask
    train_ids = read_mask(path.with_name(path.name.replace("labelIds", "labelTrainIds")))
    classes = data[0][1].numpy()
    assert (classes == train_ids).mean() > 0.99
    for k in np.unique(classes):
        assert np.bincount(train_ids[classes == k]).argmax() == k


def test_real_names_of_ade20k():
    with shared("data/samples/ADEChallengeData2016/objectInfo150.txt").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, name, i in zip(rows, readers.ADE20K.names, readers.ADE20K.ids, strict=True):
        assert int(row["Idx"]) == i and re.split("[; ]", row["Name"])[: len(name.split())] == name.split()
