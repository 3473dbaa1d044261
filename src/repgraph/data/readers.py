"""Readers of published data sets, in the layouts in which they are released.

A reader takes the folder of the data set, the name of a split and perhaps options, and returns a
:class:`~repgraph.data.dataset.SegmentationData`. CONTRIBUTING.md describes how to add one.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field
from torchvision.datasets import Cityscapes

from repgraph.constants import IGNORE
from repgraph.data import coco
from repgraph.data.dataset import SegmentationData, pair
from repgraph.data.files import IMAGE_SUFFIXES, FileIndex, find_root, read_lines, read_split
from repgraph.data.labels import Colour, DataError, Labels, colour_value, hex_palette, spread_palette, voc_palette
from repgraph.data.scenes import LENGTHS, Scenes
from repgraph.files import read_json, validate


def _labels(table: str, ids: Sequence[int], ignored: Sequence[int]) -> Labels:
    """Return the labels of a table with "COLOUR NAME" for each class."""
    rows = [entry.split(maxsplit=1) for entry in " ".join(table.split()).split(",")]
    palette = hex_palette(" ".join(colour for colour, _ in rows))
    return Labels(tuple(name for _, name in rows), palette, tuple(ids), tuple(ignored))


def _parts(split: str) -> tuple[str, ...]:
    return ("train", "val") if split == "trainval" else (split,)


# ADE20K, scene parsing challenge 2016. Names are the first of each class in objectInfo150.txt; colours are those of the
# challenge, in which road and skyscraper share one.
_ADE20K_TABLE = """
787878 wall, b47878 building, 06e6e6 sky, 503232 floor, 04c803 tree, 787850 ceiling, 8c8c8c road, cc05ff bed, e6e6e6
windowpane, 04fa07 grass, e005ff cabinet, ebff07 sidewalk, 96053d person, 787846 earth, 08ff33 door, ff0652 table,
8fff8c mountain, ccff04 plant, ff3307 curtain, cc4603 chair, 0066c8 car, 3de6fa water, ff0633 painting, 0b66ff sofa,
ff0747 shelf, ff09e0 house, 0907e6 sea, dcdcdc mirror, ff095c rug, 7009ff field, 08ffd6 armchair, 07ffe0 seat, ffb806
fence, 0aff47 desk, ff290a rock, 07ffff wardrobe, e0ff08 lamp, 6608ff bathtub, ff3d06 railing, ffc207 cushion, ff7a08
base, 00ff14 box, ff0829 column, ff0599 signboard, 0633ff chest of drawers, eb0cff counter, a09614 sand, 00a3ff sink,
8c8c8c skyscraper, fa0a0f fireplace, 14ff00 refrigerator, 1fff00 grandstand, ff1f00 path, ffe000 stairs, 99ff00
runway, 0000ff case, ff4700 pool table, 00ebff pillow, 00adff screen door, 1f00ff stairway, 0bc8c8 river, ff5200
bridge, 00fff5 bookcase, 003dff blind, 00ff70 coffee table, 00ff85 toilet, ff0000 flower, ffa300 book, ff6600 hill,
c2ff00 bench, 008fff countertop, 33ff00 stove, 0052ff palm, 00ff29 kitchen island, 00ffad computer, 0a00ff swivel
chair, adff00 boat, 00ff99 bar, ff5c00 arcade machine, ff00ff hovel, ff00f5 bus, ff0066 towel, ffad00 light, ff0014
truck, ffb8b8 tower, 001fff chandelier, 00ff3d awning, 0047ff streetlight, ff00cc booth, 00ffc2 television, 00ff52
airplane, 000aff dirt track, 0070ff apparel, 3300ff pole, 00c2ff land, 007aff bannister, 00ffa3 escalator, ff9900
ottoman, 00ff0a bottle, ff7000 buffet, 8fff00 poster, 5200ff stage, a3ff00 van, ffeb00 ship, 08b8aa fountain, 8500ff
conveyer belt, 00ff5c canopy, b800ff washer, ff001f plaything, 00b8ff swimming pool, 00d6ff stool, ff0070 barrel,
5cff00 basket, 00e0ff waterfall, 70e0ff tent, 46b8a0 bag, a300ff minibike, 9900ff cradle, 47ff00 oven, ff00a3 ball,
ffcc00 food, ff008f step, 00ffeb tank, 85ff00 trade name, ff00eb microwave, f500ff pot, ff007a animal, fff500 bicycle,
0abed4 lake, d6ff00 dishwasher, 00ccff screen, 1400ff blanket, ffff00 sculpture, 0099ff hood, 0029ff sconce, 00ffcc
vase, 2900ff traffic light, 29ff00 tray, ad00ff ashcan, 00f5ff fan, 4700ff pier, 7a00ff crt screen, 00ffb8 plate,
005cff monitor, b8ff00 bulletin board, 0085ff shower, ffd600 radiator, 19c2c2 glass, 66ff00 clock, 5c00ff flag
"""
ADE20K = _labels(_ADE20K_TABLE, range(1, 151), (0,))


def ade20k(root: str | Path, split: str = "train") -> SegmentationData:
    """Read ``images`` and ``annotations``; test is ``release_test/testing``, without labels."""
    top = find_root(root, "images", ["ADEChallengeData2016"])
    if split == "test":  # release_test.zip is unpacked in the folder of the data set or beside it
        folders = [top / "release_test/testing", top.parent / "release_test/testing"]
        testing = next((each for each in folders if each.is_dir()), folders[0])
        return pair("ade20k", top, split, ADE20K, [FileIndex.scan(testing, ".jpg")], None, None)
    parts = [{"train": "training", "val": "validation"}[part] for part in _parts(split)]
    images = [FileIndex.scan(top / "images" / part, ".jpg") for part in parts]
    masks = [FileIndex.scan(top / "annotations" / part, ".png", required=True) for part in parts]
    return pair("ade20k", top, split, ADE20K, images, masks, None)


# CamVid, as in the SegNet tutorial
_CAMVID_TABLE = """
808080 sky, 800000 building, c0c080 pole, 804080 road, 0000c0 pavement, 808000 tree, c08080 sign, 404080 fence, 400080
car, 404000 pedestrian, 0080c0 bicyclist
"""
CAMVID = _labels(_CAMVID_TABLE, range(11), (11,))


def camvid(root: str | Path, split: str = "train") -> SegmentationData:
    """Read ``SPLIT`` and ``SPLITannot``; all splits are labelled."""
    parts = _parts(split)
    top = find_root(root, parts[0], ["CamVid"])
    images = [FileIndex.scan(top / part, ".png") for part in parts]
    masks = [FileIndex.scan(top / f"{part}annot", ".png", required=True) for part in parts]
    return pair("camvid", top, split, CAMVID, images, masks, None)


# Cityscapes, fine annotations
_SCORED = [(entry.name, entry.color, entry.id) for entry in Cityscapes.classes if not entry.ignore_in_eval]
_NAMES, _COLOURS, _IDS = zip(*_SCORED, strict=True)
CITYSCAPES = Labels(_NAMES, _COLOURS, _IDS, ignored=tuple(sorted({*range(34)} - {*_IDS})))


def cityscapes(root: str | Path, split: str = "train") -> SegmentationData:
    """Read ``leftImg8bit`` and ``gtFine``; the labels of test are not public, and its server takes labelIds."""
    top = find_root(root, "leftImg8bit", ["cityscapes"])
    parts = _parts(split)
    images = [FileIndex.scan(top / "leftImg8bit" / part, "_leftImg8bit.png") for part in parts]
    ending = "_gtFine_labelIds.png"
    masks = [FileIndex.scan(top / "gtFine" / part, ending, required=True) for part in parts if part != "test"]
    data = pair("cityscapes", top, split, CITYSCAPES, images, masks, None)
    data.prediction_ending = "_pred_labelIds.png"
    data.items = [replace(item, name=item.name.rsplit("/", 1)[-1]) for item in data.items]  # without the folder CITY
    return data


# PASCAL-Context, on the images of VOC 2010. The release, trainval/NAME.mat, has 459 categories, of which the 59
# frequent ones are the classes; PNG files, as other projects distribute them, have 1 to 59.
_CONTEXT_TABLE = """
2 aeroplane, 9 bag, 18 bed, 19 bedclothes, 22 bench, 23 bicycle, 25 bird, 31 boat, 33 book, 34 bottle, 44 building, 45
bus, 46 cabinet, 59 car, 65 cat, 68 ceiling, 72 chair, 80 cloth, 85 computer, 98 cow, 104 cup, 105 curtain, 113 dog,
115 door, 144 fence, 158 floor, 159 flower, 162 food, 187 grass, 189 ground, 207 horse, 220 keyboard, 232 light, 258
motorbike, 259 mountain, 260 mouse, 284 person, 295 plate, 296 platform, 308 pottedplant, 324 road, 326 rock, 347
sheep, 349 shelves, 354 sidewalk, 355 sign, 360 sky, 366 snow, 368 sofa, 397 table, 415 track, 416 train, 420 tree,
424 truck, 427 tvmonitor, 440 wall, 445 water, 454 window, 458 wood
"""
_CONTEXT = {name: int(category) for category, name in (entry.split() for entry in _CONTEXT_TABLE.split(","))}
PASCAL_CONTEXT = Labels(tuple(_CONTEXT), voc_palette(60)[1:], ids=tuple(range(1, 60)), ignored=(0, 255))
_CONTEXT_OTHERS = tuple(sorted(set(range(460)) - set(_CONTEXT.values())))
PASCAL_CONTEXT_459 = replace(PASCAL_CONTEXT, ids=tuple(_CONTEXT.values()), ignored=_CONTEXT_OTHERS)


def pascal_context(root: str | Path, split: str = "train") -> SegmentationData:
    """Read PNG masks if there are any, otherwise the .mat files of the release."""
    top = find_root(root, "JPEGImages", ["VOC2010", "VOCdevkit/VOC2010"])
    if (top / "SegmentationClassContext").is_dir():
        masks, labels = FileIndex.scan(top / "SegmentationClassContext", ".png"), PASCAL_CONTEXT
    else:
        masks, labels = FileIndex.scan(top / "trainval", ".mat"), PASCAL_CONTEXT_459
    lists = top / "ImageSets" / "SegmentationContext"
    names = read_split(lists if lists.is_dir() else top / "ImageSets" / "Main", split)
    images = FileIndex.scan(top / "JPEGImages", ".jpg")
    return pair("pascal_context", top, split, labels, [images], [masks], names)


# Stanford Background. The texts of the release have -1 for unlabelled pixels, PNG files made of them have 255.
_STANFORD_TABLE = """
87ceeb sky, 228b22 tree, 808080 road, 9acd32 grass, 1e66c8 water, b22222 building, 8b5a2b mountain, ffa500 foreground
"""
STANFORD = _labels(_STANFORD_TABLE, range(8), (255, -1))


def stanford(root: str | Path, split: str = "train") -> SegmentationData:
    """Read the images in ``SPLIT.txt``; the release has no lists, and then every fifth image by name is in val."""
    top = find_root(root, "images", ["iccv09Data"])
    images = FileIndex.scan(top / "images", ".jpg")
    masks = FileIndex.scan(top / "labels", ".regions.txt")
    if not masks.found:
        masks = FileIndex.scan(top / "labels", ".png")
    if (top / "train.txt").exists() or (top / "val.txt").exists():
        names = read_split(top, split)
    else:
        split_of = {name: "val" if k % 5 == 0 else "train" for k, name in enumerate(images.found)}
        names = [name for name in images.found if split_of[name] in _parts(split)]
    return pair("stanford", top, split, STANFORD, [images], [masks], names)


# PASCAL VOC. The borders of objects, 255, are not labelled.
VOC_NAMES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
VOC = Labels(VOC_NAMES, voc_palette(21), ids=tuple(range(21)), ignored=(255,))


def voc(root: str | Path, split: str = "train", masks: str = "SegmentationClass") -> SegmentationData:
    """Read the images in a list in ``ImageSets/Segmentation``, and label files in ``masks``; test is unlabelled."""
    top = find_root(root, "JPEGImages", ["VOC2012", "VOCdevkit/VOC2012"])
    names = read_split(top / "ImageSets" / "Segmentation", split)
    images = FileIndex.scan(top / "JPEGImages", ".jpg")
    truth = None if split == "test" else [FileIndex.scan(top / masks, ".png", required=True)]
    return pair("voc", top, split, VOC, [images], truth, names)


# Your own images and masks in a folder.
class _Class(BaseModel, extra="forbid"):
    name: str
    id: int | None = None
    colour: Colour | None = None


class _Classes(BaseModel):
    classes: list[Annotated[_Class, BeforeValidator(lambda each: {"name": each} if isinstance(each, str) else each)]]
    ignored: list[int | Colour] | None = None


def folder(
    root: str | Path,
    split: str = "train",
    *,
    classes: Annotated[int, Field(ge=1, le=IGNORE)] | Sequence[str] | None = None,
    ignored: Sequence[int | Colour] | None = None,
    images: str = "images",
    masks: str = "masks",
    mask_ending: str = ".png",
) -> SegmentationData:
    """Read images and masks of the same names, in any subfolders of the folders ``images`` and ``masks``.

    Args:
        root, split: The folder, and the name of the split.
        classes: Number or names of the classes; default: those of ``classes.json`` or ``classes.txt``.
        ignored: Values (or colours) of unlabelled pixels in masks; default: those of ``classes.json``, otherwise 255.
        images, masks: Names of the two folders.
        mask_ending: What follows the name of an image in that of its mask, such as ``"_mask.png"``.
    """
    top = find_root(root, images, [])
    labels = read_labels(top, classes, ignored)
    parts = [split]
    if not any(os.path.isdir(top / images / part) for part in ("train", "val", "test", split)):
        parts = [""]
    elif split == "trainval" and not (top / images / split).is_dir():
        parts = ["train", "val"]
    found = [FileIndex.scan(top / images / part, ".jpg") for part in parts]
    names = _split_names(top, split, found[0]) if parts == [""] else None
    labelled = split != "test" or os.path.isdir(top / masks / parts[0])
    truth = [FileIndex.scan(top / masks / part, mask_ending, required=True) for part in parts] if labelled else None
    return pair("folder", top, split, labels, found, truth, names)


def _split_names(top: Path, split: str, images: FileIndex) -> list[str]:
    """Return the names of a split if all images are in one folder; lists may contain file names."""

    def read_list(listed: str) -> list[str]:
        names = [(name, Path(name).suffix) for name in read_split(top, listed)]
        is_file = {name: name not in images.found and suffix.lower() in IMAGE_SUFFIXES for name, suffix in names}
        return [name.removesuffix(suffix) if is_file[name] else name for name, suffix in names]

    if split != "train" or (top / "train.txt").is_file():
        return read_list(split)
    others = {name for path in top.glob("*.txt") if path.name != "classes.txt" for name in read_list(path.stem)}
    return [name for name in images.found if name not in others]


def read_labels(
    top: Path, classes: int | Sequence[str] | None = None, ignored: Sequence[int | Colour] | None = None
) -> Labels:
    """Return the given classes, or those of ``classes.json`` or ``classes.txt`` in ``top``."""
    source: Any = "classes"
    content: Any = [f"class {k}" for k in range(classes)] if isinstance(classes, int) else classes
    if classes is None and os.path.isfile(source := top / "classes.json"):
        content = read_json(source, error_type=DataError)
    elif classes is None:
        content = read_lines(source := top / "classes.txt")
    given = validate(_Classes, content if isinstance(content, dict) else {"classes": content}, source, DataError)
    ids = [k if entry.id is None else entry.id for k, entry in enumerate(given.classes)]
    colours = [entry.colour or colour for entry, colour in zip(given.classes, spread_palette(len(ids)), strict=True)]
    default = [] if IGNORE in ids else [IGNORE]
    ignored = next(each for each in (ignored, given.ignored, default) if each is not None)
    own_colours = all(entry.colour for entry in given.classes) and len(set(colours)) == len(colours)
    try:
        values = [each if isinstance(each, int) else colour_value(each) for each in ignored]
        names = tuple(entry.name for entry in given.classes)
        return Labels(names, tuple(colours), tuple(ids), tuple(values), rgb_masks=own_colours)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


class Reader(NamedTuple):
    """How to read a data set."""

    read: Callable[..., Any]
    splits: tuple[str, ...]  # any if empty
    layout: str  # for errors


_LABELLED = ("train", "val", "trainval")
_ALL = (*_LABELLED, "test")
READERS = {
    "ade20k": Reader(ade20k, _ALL, "{images,annotations}/{training,validation}/NAME.{jpg,png}, release_test/testing"),
    "camvid": Reader(camvid, _ALL, "CamVid/{train,val,test}/NAME.png, CamVid/SPLITannot/NAME.png"),
    "cityscapes": Reader(cityscapes, _ALL, "leftImg8bit/SPLIT/CITY/*.png, gtFine/SPLIT/CITY/*_labelIds.png"),
    "coco": Reader(coco.open_split, (), coco.LAYOUT),
    "folder": Reader(folder, (), "{images,masks}/SPLIT/NAME.{jpg,png}, or with SPLIT.txt; classes.txt or classes=N"),
    "pascal_context": Reader(pascal_context, _LABELLED, "VOC2010 with JPEGImages, ImageSets and trainval/NAME.mat"),
    "scenes": Reader(Scenes, tuple(LENGTHS), "no files"),
    "stanford": Reader(stanford, _LABELLED, "images/NAME.jpg, labels/NAME.regions.txt or labels/NAME.png"),
    "voc": Reader(voc, (), "VOC2012/JPEGImages/NAME.jpg, SegmentationClass/NAME.png, ImageSets/Segmentation/SPLIT.txt"),
}
