"""Stanford Background: 8 classes, 0 to 7 in the label files.

-1 in the release's texts, and 255 in PNGs made of them, is not labelled.
"""

from pathlib import Path

from repgraph.data.dataset import SegmentationData
from repgraph.data.labels import Labels, hex_palette
from repgraph.data.listing import Files, Names, choose, find_root, pair, read_split

LAYOUT = (
    "images/NAME.jpg and labels/NAME.regions.txt (the release) or labels/NAME.png, and perhaps train.txt and val.txt"
)
SPLITS = ("train", "val", "trainval")
EVERY = 5  # without lists, every fifth image is in val

LABELS = Labels(
    names=("sky", "tree", "road", "grass", "water", "building", "mountain", "foreground"),
    palette=hex_palette("87ceeb 228b22 808080 9acd32 1e66c8 b22222 8b5a2b ffa500"),
    ids=tuple(range(8)),
    ignored=(255, -1),
)


def read(root: str | Path, split: str = "train") -> SegmentationData:
    """The names in ``SPLIT.txt``; the release has no such lists, and then every fifth image by name is in val."""
    choose(split, SPLITS, "stanford")
    top = find_root(root, "images", ["iccv09Data"], LAYOUT)
    images = Files.list(top / "images", ".jpg", LAYOUT)
    masks = Files.list(top / "labels", ".regions.txt", LAYOUT)
    if not masks.found:
        masks = Files.list(top / "labels", ".png", LAYOUT)
    if (top / "train.txt").exists() or (top / "val.txt").exists():
        names = read_split(top, split, LAYOUT)
    else:
        names = Names(
            [name for k, name in enumerate(images.found) if split in (("train", "val")[k % EVERY == 0], "trainval")]
        )
    return pair("stanford", top, split, LABELS, [images], [masks], names)
