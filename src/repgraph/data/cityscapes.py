"""Cityscapes with fine annotations: 19 classes, from the labelIds files that the release brings.

Predictions go to the evaluation server as labelIds, in files that begin with ``CITY_SEQUENCE_FRAME``.
"""

from dataclasses import replace
from pathlib import Path

from repgraph.data.dataset import SegmentationData
from repgraph.data.labels import Labels, hex_palette
from repgraph.data.listing import Files, choose, find_root, pair

LAYOUT = "leftImg8bit/SPLIT/CITY/CITY_SEQUENCE_FRAME_leftImg8bit.png and gtFine/SPLIT/CITY/CITY_..._gtFine_labelIds.png"
SPLITS = ("train", "val", "trainval", "test")

# labelId, colour, name
_CLASSES = """
7 804080 road, 8 f423e8 sidewalk, 11 464646 building, 12 66669c wall, 13 be9999 fence, 17 999999 pole,
19 faaa1e traffic light, 20 dcdc00 traffic sign, 21 6b8e23 vegetation, 22 98fb98 terrain, 23 4682b4 sky,
24 dc143c person, 25 ff0000 rider, 26 00008e car, 27 000046 truck, 28 003c64 bus, 31 005064 train,
32 0000e6 motorcycle, 33 770b20 bicycle
"""
_ROWS = [entry.split(maxsplit=2) for entry in _CLASSES.split(",")]
_IDS = tuple(int(row[0]) for row in _ROWS)

LABELS = Labels(
    names=tuple(row[2].strip() for row in _ROWS),
    palette=hex_palette(" ".join(row[1] for row in _ROWS)),
    ids=_IDS,
    ignored=tuple(number for number in range(34) if number not in _IDS),
)


def read(root: str | Path, split: str = "train") -> SegmentationData:
    """Pairs of ``leftImg8bit`` and ``gtFine``; the labels of the test split are not public, and its masks are None."""
    choose(split, SPLITS, "cityscapes")
    top = find_root(root, "leftImg8bit", ["cityscapes"], LAYOUT)
    parts = ("train", "val") if split == "trainval" else (split,)
    images = [Files.list(top / "leftImg8bit" / part, "_leftImg8bit.png", LAYOUT) for part in parts]
    masks = [Files.masks(top / "gtFine" / part, "_gtFine_labelIds.png", LAYOUT) for part in parts if part != "test"]
    data = pair("cityscapes", top, split, LABELS, images, masks or None, prediction_ending="_pred_labelIds.png")
    data.items = [replace(item, name=item.name.rsplit("/", 1)[-1]) for item in data.items]  # the city is in the name
    return data
