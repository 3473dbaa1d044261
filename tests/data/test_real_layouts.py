"""Every reader on real data, in the layout that it was released in. Skipped where the data is absent."""

import csv
import re

import numpy as np
import pytest
from tests.shared_data import shared

from repgraph.data import ade20k, load
from repgraph.data.files import read_values

COUNTS = [
    ("voc", "VOC2012", "train", 1464),
    ("voc", "VOC2012", "val", 483),
    ("voc", "VOC2012", "trainval", 1947),
    ("camvid", "CamVid", "train", 367),
    ("camvid", "CamVid", "val", 101),
    ("camvid", "CamVid", "test", 233),
    ("stanford", "stanford_background", "train", 572),
    ("stanford", "stanford_background", "val", 143),
    ("ade20k", "samples/ADEChallengeData2016", "train", 1),
    ("ade20k", "samples/ADEChallengeData2016", "val", 3),
    ("ade20k", "samples", "trainval", 4),
    ("cityscapes", "samples/cityscapes", "val", 1),
]


@pytest.mark.parametrize(("name", "root", "split", "count"), COUNTS)
def test_splits(name, root, split, count):
    data = load(name, shared(f"data/{root}"), split)
    assert len(data) == count
    assert (data.missing, data.strays, data.repeated) == ([], [], [])
    for index in {0, count // 2, count - 1}:
        image, truth = data[index]
        assert image.shape[-2:] == truth.shape and image.shape[0] == 3
        found = set(truth.unique().tolist()) - {255}
        assert found and found <= set(range(len(data.labels)))


def test_cityscapes_against_its_own_train_ids():
    """The set's labelTrainIds say what labelIds become. (The sample was shrunk: a few pixels at borders differ.)"""
    data = load("cityscapes", shared("data/samples/cityscapes"), "val")
    trained = read_values(data.items[0].mask.with_name(data.items[0].mask.name.replace("labelIds", "labelTrainIds")))
    classes = data[0][1].numpy()
    assert (classes == trained).mean() > 0.99
    for number in np.unique(classes):
        assert np.bincount(trained[classes == number]).argmax() == number


def test_ade20k_names_are_those_of_the_release():
    with shared("data/samples/ADEChallengeData2016/objectInfo150.txt").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row, name, number in zip(rows, ade20k.LABELS.names, ade20k.LABELS.ids, strict=True):
        assert int(row["Idx"]) == number
        assert re.split("[; ]", row["Name"])[: len(name.split())] == name.split()


def test_stanford_splits_without_lists_are_those_of_the_lists(tmp_path):
    root = shared("data/stanford_background")
    for folder in ("images", "labels"):
        (tmp_path / folder).symlink_to(root / folder)
    for split in ("train", "val"):
        listed, found = load("stanford", root, split), load("stanford", tmp_path, split)
        assert {item.name for item in listed.items} == {item.name for item in found.items}
