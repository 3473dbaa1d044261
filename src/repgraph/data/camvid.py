"""CamVid as the SegNet tutorial has it: 11 classes, 0 to 10 in the label files, 11 is not labelled."""

from pathlib import Path

from repgraph.data.dataset import SegmentationData
from repgraph.data.labels import Labels, hex_palette
from repgraph.data.listing import Files, choose, find_root, pair

LAYOUT = "CamVid/{train,val,test}/NAME.png and CamVid/{trainannot,valannot,testannot}/NAME.png"
SPLITS = ("train", "val", "trainval", "test")

LABELS = Labels(
    names=(
        "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
    ),
    palette=hex_palette("808080 800000 c0c080 804080 0000c0 808000 c08080 404080 400080 404000 0080c0"),
    ids=tuple(range(11)),
    ignored=(11,),
)  # fmt: skip


def read(root: str | Path, split: str = "train") -> SegmentationData:
    """Pairs of ``SPLIT`` and ``SPLITannot``; all splits have labels."""
    choose(split, SPLITS, "camvid")
    parts = ("train", "val") if split == "trainval" else (split,)
    top = find_root(root, parts[0], ["CamVid"], LAYOUT)
    images = [Files.list(top / part, ".png", LAYOUT) for part in parts]
    masks = [Files.masks(top / f"{part}annot", ".png", LAYOUT) for part in parts]
    return pair("camvid", top, split, LABELS, images, masks)
