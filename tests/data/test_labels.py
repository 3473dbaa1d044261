"""Labels: file values to classes and back, their JSON, and what is refused."""

import json
import pickle

import numpy as np
import pytest

from repgraph.data import ade20k, camvid, cityscapes, pascal_context, stanford, voc
from repgraph.data.labels import IGNORE, DataError, Labels, UnknownLabel, bit_palette, spread_palette

PUBLISHED = {
    "ade20k": (ade20k.LABELS, 150),
    "camvid": (camvid.LABELS, 11),
    "cityscapes": (cityscapes.LABELS, 19),
    "pascal_context": (pascal_context.LABELS, 59),
    "pascal_context, 459": (pascal_context.LABELS_OF_459, 59),
    "stanford": (stanford.LABELS, 8),
    "voc": (voc.LABELS, 21),
}
TWO = Labels(("a", "b"), ((0, 0, 0), (1, 2, 3)), ids=(300, 5), ignored=(-1, 0))


@pytest.mark.parametrize("labels", [entry[0] for entry in PUBLISHED.values()], ids=PUBLISHED)
def test_classes_survive_the_way_to_the_file_and_back(labels):
    classes = np.array([*range(len(labels)), IGNORE], dtype=np.uint8)
    assert (labels.to_train(labels.to_file(classes)) == classes).all()


@pytest.mark.parametrize(("labels", "count"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_labels_are_complete(labels, count):
    assert len(labels) == count == len(set(labels.names))
    assert all(name == name.strip() and name for name in labels.names)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_values_of_any_integer_type(dtype):
    values = np.array([[300, 5], [0, 300]], dtype=dtype)
    assert TWO.to_train(values).tolist() == [[0, 1], [IGNORE, 0]]
    assert TWO.to_train(values).dtype == np.uint8


def test_negative_values_can_be_ignored():
    assert TWO.to_train(np.array([-1, 5])).tolist() == [IGNORE, 1]


def test_ids_beyond_a_byte_are_written_with_16_bits():
    assert TWO.to_file(np.array([0, 1])).dtype == np.uint16
    assert voc.LABELS.to_file(np.array([0, 20])).dtype == np.uint8


def test_ignored_pixels_become_the_first_ignored_value():
    assert cityscapes.LABELS.to_file(np.array([IGNORE, 0])).tolist() == [0, 7]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_unknown_values_name_file_values_and_what_is_known(dtype):
    with pytest.raises(
        UnknownLabel, match=r"^a/b\.png: unknown label values 21, 254; classes are 0-20, ignored are 255$"
    ):
        voc.LABELS.to_train(np.array([0, 254, 21, 255], dtype=dtype), "a/b.png")


@pytest.mark.parametrize("value", [21, 254, 256, -1])
def test_classes_that_are_none_have_no_file_value(value):
    with pytest.raises(DataError, match=f"class {value} has no value in label files: there are classes 0 to 20"):
        voc.LABELS.to_file(np.array([0, value]))


def test_nothing_stands_for_ignored_pixels_where_no_value_is_ignored():
    labels = Labels(("a",), ((0, 0, 0),), (0,))
    with pytest.raises(DataError, match="class 255 has no value"):
        labels.to_file(np.array([255]))


@pytest.mark.parametrize("labels", [entry[0] for entry in PUBLISHED.values()], ids=PUBLISHED)
def test_labels_through_json_and_pickle(labels):
    again = Labels.from_dict(json.loads(json.dumps(labels.to_dict())))
    assert again == labels == pickle.loads(pickle.dumps(labels))
    assert hash(again) == hash(labels)


@pytest.mark.parametrize(
    "given", [{}, {"names": ["a"], "palette": 3, "ids": [0]}, {"names": ["a"], "palette": [[0, 0, 0]], "ids": 0}]
)
def test_a_wrong_description_is_refused(given):
    with pytest.raises(DataError, match="labels need names, palette, ids and ignored"):
        Labels.from_dict(given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("a",), (), (0,)), "1 names, 0 colours and 1 ids"),
        (((), (), ()), "0 classes: there can be 1 to 255"),
        ((("a", "b"), ((0, 0, 0),) * 2, (4, 4)), "label value 4 is given two meanings"),
        ((("a",), ((0, 0, 0),), (4,), (4,)), "label value 4 is given two meanings"),
        ((("a",), ((0, 0, 256),), (4,)), r"\(0, 0, 256\) is no colour"),
        ((("a",), ((0, 0),), (4,)), r"\(0, 0\) is no colour"),
        ((("a",), ((0, 0, 1.5),), (4,)), r"\(0, 0, 1.5\) is no colour"),
        ((("a",), ((0, 0, 0),), (65536,)), "id 65536: label files hold 0 to 65535"),
        ((("a",), ((0, 0, 0),), (10**30,)), "id 10+: label files hold 0 to 65535"),
        ((("a",), ((0, 0, 0),), (-1,)), "id -1: label files hold 0 to 65535"),
        ((("a",), ((0, 0, 0),), (1.9,)), "label value 1.9 is not a whole number"),
        ((("a",), ((0, 0, 0),), (True,)), "label value True is not a whole number"),
        ((("a",), ((0, 0, 0),), (0,), "25"), "label value '2' is not a whole number"),
        ((("a", "b", "a"), ((0, 0, 0),) * 3, (0, 1, 2)), "2 classes have the name 'a'; give each its own"),
    ],
)
def test_labels_that_make_no_sense(arguments, message):
    with pytest.raises(DataError, match=message):
        Labels(*arguments)


@pytest.mark.parametrize("ignored", [65536, 10**30, -1])
def test_an_ignored_value_that_no_label_file_holds_is_not_written(ignored):
    labels = Labels(("a",), ((0, 0, 0),), (65535,), (ignored,))
    assert labels.to_file(np.array([0])).tolist() == [65535]
    with pytest.raises(DataError, match="class 255 has no value"):
        labels.to_file(np.array([255]))


def test_as_many_classes_as_fit():
    labels = Labels(tuple(map(str, range(255))), spread_palette(255), tuple(range(1, 256)), (0,))
    assert labels.to_train(np.arange(256, dtype=np.uint8)).tolist() == [255, *range(255)]


def test_the_palette_of_voc():
    palette = bit_palette(256)
    assert palette[15] == (192, 128, 128) and palette[20] == (0, 64, 128) and palette[255] == (224, 224, 192)
    assert len(set(palette)) == 256


def test_colours_for_own_classes_differ():
    assert len(set(spread_palette(60))) == 60


def test_known_colours_and_ids():
    city = dict(zip(cityscapes.LABELS.names, cityscapes.LABELS.palette, strict=True))
    assert (
        city["road"] == (128, 64, 128) and city["traffic light"] == (250, 170, 30) and city["bicycle"] == (119, 11, 32)
    )
    assert cityscapes.LABELS.ids == (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
    assert ade20k.LABELS.palette[:2] == ((120, 120, 120), (180, 120, 120)) and ade20k.LABELS.palette[-1] == (92, 0, 255)
    assert sorted(pascal_context.LABELS.names) == list(pascal_context.LABELS.names)
    assert list(pascal_context.LABELS_OF_459.ids) == sorted(pascal_context.LABELS_OF_459.ids)
