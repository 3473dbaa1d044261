"""Readers of published data sets, in the layouts of their releases.

A reader takes the folder of the data set, the name of a split and options, and returns a
:class:`~repgraph.data.dataset.SegmentationData`. CONTRIBUTING.md describes how to add one.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
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


def _read_classes(name: str) -> dict[str, str]:
    """Read ``classes/NAME.txt``: the colour of each class, or its number in the release, by name."""
    text = resources.files(__package__).joinpath(f"classes/{name}.txt").read_text(encoding="utf-8")
    return {title: value for value, title in (line.split(maxsplit=1) for line in text.splitlines())}


def _labels(name: str, ids: Sequence[int], ignored: Sequence[int]) -> Labels:
    classes = _read_classes(name)
    return Labels(tuple(classes), hex_palette(" ".join(classes.values())), tuple(ids), tuple(ignored))


def _parts(split: str) -> tuple[str, ...]:
    return ("train", "val") if split == "trainval" else (split,)


# ADE20K, scene parsing challenge 2016. Each class has its first name in objectInfo150.txt. The colours are the
# challenge's; road and skyscraper share one.
ADE20K = _labels("ade20k", range(1, 151), (0,))


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
CAMVID = _labels("camvid", range(11), (11,))


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
_CONTEXT = {name: int(category) for name, category in _read_classes("pascal_context").items()}
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


# Stanford Background. The texts of the release have -1 for unlabelled pixels, PNG files made from them have 255.
STANFORD = _labels("stanford", range(8), (255, -1))


def stanford(root: str | Path, split: str = "train") -> SegmentationData:
    """Read the images in ``SPLIT.txt``; without lists, as in the release, every fifth image by name is in val."""
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
        classes: Number or names of the classes; default: as in ``classes.json`` or ``classes.txt``.
        ignored: Values (or colours) of unlabelled pixels in masks; default: as in ``classes.json``, otherwise 255.
        images, masks: Names of the two folders.
        mask_ending: The name of a mask is the name of its image and this ending, such as ``"_mask.png"``.
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
    """Return the given classes, or the classes in ``classes.json`` or ``classes.txt`` in ``top``."""
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
