"""Labels: file values to classes and back, JSON, and errors."""

import json
import pickle

import numpy as np
import pytest
from tests.data.layouts import fails

from repgraph.constants import IGNORE
from repgraph.data import readers
from repgraph.data.labels import Labels, spread_palette, voc_palette

COUNTS = {"ADE20K": 150, "CAMVID": 11, "CITYSCAPES": 19, "PASCAL_CONTEXT": 59, "PASCAL_CONTEXT_459": 59, "STANFORD": 8}
BLACK = (0, 0, 0)
TWO = Labels(("a", "b"), (BLACK, (1, 2, 3)), ids=(300, 5), ignored=(-1, 0))


@pytest.mark.parametrize(("name", "count"), [*COUNTS.items(), ("VOC", 21)])
def test_published_labels(name, count):
    labels = getattr(readers, name)
    assert len(labels) == count == len(set(labels.names)) and all(name == name.strip() != "" for name in labels.names)
    classes = np.array([*range(count), IGNORE], dtype=np.uint8)
    np.testing.assert_array_equal(labels.to_train(labels.to_file(classes)), classes)
    again = Labels.from_dict(json.loads(json.dumps(labels.to_dict())))
    assert again == labels == pickle.loads(pickle.dumps(labels)) and hash(again) == hash(labels)


def test_known_colours_and_ids():
    city = dict(zip(readers.CITYSCAPES.names, readers.CITYSCAPES.palette, strict=True))
    assert (city["road"], city["traffic light"], city["bicycle"]) == ((128, 64, 128), (250, 170, 30), (119, 11, 32))
    assert readers.CITYSCAPES.ids[:4] == (7, 8, 11, 12) and readers.CITYSCAPES.ids[-3:] == (31, 32, 33)
    assert readers.ADE20K.palette[:2] == ((120, 120, 120), (180, 120, 120))
    assert readers.ADE20K.palette[-1] == (92, 0, 255) and readers.ADE20K.names[44] == "chest of drawers"
    palette = voc_palette(256)
    assert palette[15] == (192, 128, 128) and palette[255] == (224, 224, 192) and len(set(palette)) == 256
    assert len(set(spread_palette(60))) == 60


def test_special_values():
    for dtype in (np.int16, np.int32, np.int64):
        assert TWO.to_train(np.array([[300, 5], [-1, 0]], dtype=dtype)).tolist() == [[0, 1], [IGNORE, IGNORE]]
    assert TWO.to_file(np.array([0, 1])).dtype == np.uint16
    fails("class 255 has no value", TWO.to_file, np.array([255]))  # -1 does not fit into a file
    assert readers.CITYSCAPES.to_file(np.array([IGNORE, 0])).tolist() == [0, 7]  # the first ignored value
    fails("class 21 has no value in label files", readers.VOC.to_file, np.array([0, 21]))
    for dtype in (np.uint8, np.int32):
        message = (
            r"^a/b\.png: label values 21, 254 are neither classes \(0, 1, .*, 20\) nor ignored\. .*=\[255,21,254\]\)$"
        )
        fails(message, readers.VOC.to_train, np.array([0, 254, 21, 255], dtype=dtype), "a/b.png")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((("a",), (), (0,)), "1 classes, 0 colors and 1 ids"),
        (((), (), ()), "0 classes, .* expected 1 to 255 of each"),
        ((("a",), (BLACK,), (4,), (4,)), "the label value 4 occurs 2 times"),
        ((("a", "b", "a"), (BLACK,) * 3, (0, 1, 2)), "the class name 'a' occurs 2 times"),
        ((("a",), ((0, 0, 256),), (4,)), "a color: .* 256"),
        ((("a",), (BLACK,), (10**30,)), "ids: .*10+,.* expected integers from 0 to 65535"),
    ],
)
def test_invalid_labels(arguments, message):
    fails("expected names, palette, ids and ignored", Labels.from_dict, {"names": ["a"], "palette": 3, "ids": [0]})
    fails(message, Labels, *arguments)
