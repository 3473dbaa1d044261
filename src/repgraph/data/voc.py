"""PASCAL VOC: background and 20 classes, 0 to 20 in the label files, which have a palette.

255, the rim of objects, is not labelled.
"""

from pathlib import Path

from repgraph.data.dataset import SegmentationData
from repgraph.data.labels import Labels, bit_palette
from repgraph.data.listing import Files, find_root, pair, read_split

LAYOUT = "VOC2012 with JPEGImages/NAME.jpg, SegmentationClass/NAME.png and ImageSets/Segmentation/SPLIT.txt"
PLACES = ("VOC2012", "VOCdevkit/VOC2012")
SPLITS = ("train", "val", "trainval", "test")  # and any other list in ImageSets/Segmentation

LABELS = Labels(
    names=(
        "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
        "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
    ),
    palette=bit_palette(21),
    ids=tuple(range(21)),
    ignored=(255,),
)  # fmt: skip


def read(root: str | Path, split: str = "train", masks: str = "SegmentationClass") -> SegmentationData:
    """The names in ``ImageSets/Segmentation/SPLIT.txt``; test has images only.

    ``masks`` is the folder of label files: with ``"SegmentationClassAug"`` and the split ``"train_aug"`` this reads
    the larger training set that is often used (SBD's annotations as label files of one channel).
    """
    top = find_root(root, "JPEGImages", PLACES, LAYOUT)
    names = read_split(top / "ImageSets" / "Segmentation", split, LAYOUT)
    images = Files.list(top / "JPEGImages", ".jpg", LAYOUT)
    truth = None if split == "test" else [Files.masks(top / masks, ".png", LAYOUT)]
    return pair("voc", top, split, LABELS, [images], truth, names)
