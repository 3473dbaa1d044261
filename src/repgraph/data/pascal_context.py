"""PASCAL-Context, 59 classes, on the images of VOC 2010.

Two layouts are read: label files as PNGs with 1 to 59 (0 is everything else, and not labelled), in
``SegmentationClassContext``; and the release itself, ``trainval/NAME.mat`` with numbers of 459 categories, of which
the 59 frequent ones count.
"""

from pathlib import Path

from repgraph.data.dataset import SegmentationData
from repgraph.data.labels import Labels, bit_palette
from repgraph.data.listing import Files, Missing, choose, find_root, pair, read_split

LAYOUT = (
    "VOC2010 with JPEGImages/NAME.jpg, SegmentationClassContext/NAME.png (0 and 1-59) or the release's "
    "trainval/NAME.mat, and ImageSets/SegmentationContext/SPLIT.txt or VOC's ImageSets/Main/SPLIT.txt"
)
PLACES = ("VOC2010", "VOCdevkit/VOC2010")
SPLITS = ("train", "val", "trainval")

# The number of each class among the release's 459 categories, and its name; sorted by both.
_CLASSES = """
2 aeroplane, 9 bag, 18 bed, 19 bedclothes, 22 bench, 23 bicycle, 25 bird, 31 boat, 33 book, 34 bottle, 44 building, 45
bus, 46 cabinet, 59 car, 65 cat, 68 ceiling, 72 chair, 80 cloth, 85 computer, 98 cow, 104 cup, 105 curtain, 113 dog,
115 door, 144 fence, 158 floor, 159 flower, 162 food, 187 grass, 189 ground, 207 horse, 220 keyboard, 232 light, 258
motorbike, 259 mountain, 260 mouse, 284 person, 295 plate, 296 platform, 308 pottedplant, 324 road, 326 rock, 347
sheep, 349 shelves, 354 sidewalk, 355 sign, 360 sky, 366 snow, 368 sofa, 397 table, 415 track, 416 train, 420 tree,
424 truck, 427 tvmonitor, 440 wall, 445 water, 454 window, 458 wood
"""
_PAIRS = [entry.split() for entry in _CLASSES.split(",")]
_NAMES = tuple(name for _, name in _PAIRS)
_CATEGORIES = tuple(int(number) for number, _ in _PAIRS)
_COLOURS = bit_palette(60)[1:]  # as label files have it: class k is number k + 1

LABELS = Labels(_NAMES, _COLOURS, ids=tuple(range(1, 60)), ignored=(0, 255))
LABELS_OF_459 = Labels(
    _NAMES, _COLOURS, ids=_CATEGORIES, ignored=tuple(number for number in range(460) if number not in _CATEGORIES)
)


def read(root: str | Path, split: str = "train") -> SegmentationData:
    """Pairs of the layout that is there; where both are, the PNGs."""
    choose(split, SPLITS, "pascal_context")
    top = find_root(root, "JPEGImages", PLACES, LAYOUT)
    if (top / "SegmentationClassContext").is_dir():
        masks, labels = Files.list(top / "SegmentationClassContext", ".png", LAYOUT), LABELS
    elif (top / "trainval").is_dir():
        masks, labels = Files.list(top / "trainval", ".mat", LAYOUT), LABELS_OF_459
    else:
        raise Missing(f"{top}: no folder SegmentationClassContext or trainval in it; expected is {LAYOUT}")
    lists = top / "ImageSets" / "SegmentationContext"
    names = read_split(lists if lists.is_dir() else top / "ImageSets" / "Main", split, LAYOUT)
    images = Files.list(top / "JPEGImages", ".jpg", LAYOUT)
    return pair("pascal_context", top, split, labels, [images], [masks], names)
