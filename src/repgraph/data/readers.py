"""Readers of published data sets and of your own images. CONTRIBUTING.md describes how to add one."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field

from repgraph.constants import IGNORE
from repgraph.data import coco
from repgraph.data.classes import ADE20K, CAMVID, CITYSCAPES, PASCAL_CONTEXT, PASCAL_CONTEXT_459, STANFORD, VOC
from repgraph.data.dataset import SegmentationData, pair
from repgraph.data.files import find_root, read_lines, read_split
from repgraph.data.labels import Colour, DataError, Labels, colour_value, spread_palette
from repgraph.data.scenes import LENGTHS, Scenes
from repgraph.files import read_json, validate

Root = str | Path


def _parts(split: str) -> tuple[str, ...]:
    return ("train", "val") if split == "trainval" else (split,)


def ade20k(root: Root, split: str) -> SegmentationData:
    """Read ``images`` and ``annotations``; test is ``release_test/testing``, without labels."""
    top = find_root(root, "images", ["ADEChallengeData2016"])
    if split == "test":  # release_test.zip is unpacked in the folder of the data set or beside it
        testing = [folder / "release_test/testing" for folder in (top, top.parent)]
        return pair("ade20k", top, split, ADE20K, [(next(filter(Path.is_dir, testing), testing[0]), None)])
    parts = [{"train": "training", "val": "validation"}[part] for part in _parts(split)]
    return pair("ade20k", top, split, ADE20K, [(top / "images" / part, top / "annotations" / part) for part in parts])


def camvid(root: Root, split: str) -> SegmentationData:
    """Read ``SPLIT`` and ``SPLITannot``; all splits are labeled."""
    parts = _parts(split)
    top = find_root(root, parts[0], ["CamVid"])
    return pair("camvid", top, split, CAMVID, [(top / part, top / f"{part}annot") for part in parts])


def cityscapes(root: Root, split: str) -> SegmentationData:
    """Read ``leftImg8bit`` and ``gtFine``; the labels of test are not public, and its server takes labelIds."""
    top = find_root(root, "leftImg8bit", ["cityscapes"])
    truth = None if split == "test" else top / "gtFine"
    folders = [(top / "leftImg8bit" / part, truth and truth / part) for part in _parts(split)]
    endings = ("_leftImg8bit.png", "_gtFine_labelIds.png")
    data = pair("cityscapes", top, split, CITYSCAPES, folders, endings=endings)
    data.prediction_ending = "_pred_labelIds.png"
    data.items = [replace(item, name=item.name.rsplit("/", 1)[-1]) for item in data.items]  # without the folder CITY
    return data


def pascal_context(root: Root, split: str) -> SegmentationData:
    """Read PNG masks if there are any, otherwise the .mat files of the release."""
    top = find_root(root, "JPEGImages", ["VOC2010", "VOCdevkit/VOC2010"])
    masks, ending, labels = top / "SegmentationClassContext", ".png", PASCAL_CONTEXT
    if not masks.is_dir():
        masks, ending, labels = find_root(top, "trainval") / "trainval", ".mat", PASCAL_CONTEXT_459
    lists = top / "ImageSets" / "SegmentationContext"
    names = read_split(lists if lists.is_dir() else top / "ImageSets" / "Main", split)
    folders = [(top / "JPEGImages", masks)]
    return pair("pascal_context", top, split, labels, folders, lambda _: names, (".jpg", ending))


def stanford(root: Root, split: str) -> SegmentationData:
    """Read the images in ``SPLIT.txt``; without lists, as in the release, every fifth image by name is in val."""
    top = find_root(root, "images", ["iccv09Data"])
    labels = find_root(top, "labels") / "labels"

    def select(found: Collection[str]) -> list[str]:
        if (top / "train.txt").exists() or (top / "val.txt").exists():
            return read_split(top, split)
        return [name for k, name in enumerate(found) if ("train" if k % 5 else "val") in _parts(split)]

    ending = ".regions.txt" if any(labels.glob("*.regions.txt")) else ".png"
    return pair("stanford", top, split, STANFORD, [(top / "images", labels)], select, (".jpg", ending))


def voc(root: Root, split: str, masks: str = "SegmentationClass") -> SegmentationData:
    """Read the images in a list in ``ImageSets/Segmentation``, and label files in ``masks``; test is unlabeled."""
    top = find_root(root, "JPEGImages", ["VOC2012", "VOCdevkit/VOC2012"])
    names = read_split(top / "ImageSets" / "Segmentation", split)
    folders = [(top / "JPEGImages", None if split == "test" else top / masks)]
    return pair("voc", top, split, VOC, folders, lambda _: names)


class _Class(BaseModel, extra="forbid"):
    name: str
    id: int | None = None
    colour: Colour | None = None


class _Classes(BaseModel):
    classes: list[Annotated[_Class, BeforeValidator(lambda each: {"name": each} if isinstance(each, str) else each)]]
    ignored: list[int | Colour] | None = None


def folder(
    root: Root,
    split: str,
    *,
    classes: Annotated[int, Field(ge=1, le=IGNORE)] | Sequence[str] | None = None,
    ignored: Sequence[int | Colour] | None = None,
    images: str = "images",
    masks: str = "masks",
    mask_ending: str = ".png",
) -> SegmentationData:
    """Read images and masks of the same names, in any subfolders of ``images`` and ``masks`` (docs/data.md)."""
    top = find_root(root, images)
    labels = read_labels(top, classes, ignored)
    parts, select = [split], None
    if not any(os.path.isdir(top / images / part) for part in ("train", "val", "test", split)):
        parts, select = [""], partial(_split_names, top, split)
    elif not os.path.isdir(top / images / split):
        parts = list(_parts(split))
    labelled = split != "test" or os.path.isdir(top / masks / parts[0])
    folders = [(top / images / part, top / masks / part if labelled else None) for part in parts]
    return pair("folder", top, split, labels, folders, select, (".jpg", mask_ending))


def _split_names(top: Path, split: str, found: Collection[str]) -> list[str]:
    """Return the names of a split if all images are in one folder."""
    if split != "train" or (top / "train.txt").is_file():
        return read_split(top, split)
    others = {name for path in top.glob("*.txt") if path.name != "classes.txt" for name in read_lines(path)}
    return [name for name in found if name not in others]


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


_LABELLED = ("train", "val", "trainval")
_ALL = (*_LABELLED, "test")
# Functions that read, splits (empty: any), and layouts, for errors.
READERS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "ade20k": (ade20k, _ALL, "{images,annotations}/{training,validation}/NAME.{jpg,png}, release_test/testing"),
    "camvid": (camvid, _ALL, "CamVid/{train,val,test}/NAME.png, CamVid/SPLITannot/NAME.png"),
    "cityscapes": (cityscapes, _ALL, "leftImg8bit/SPLIT/CITY/*.png, gtFine/SPLIT/CITY/*_labelIds.png"),
    "coco": (coco.open_split, (), coco.LAYOUT),
    "folder": (folder, (), "{images,masks}/SPLIT/NAME.{jpg,png}, or with SPLIT.txt; classes.txt or classes=N"),
    "pascal_context": (pascal_context, _LABELLED, "VOC2010 with JPEGImages, ImageSets and trainval/NAME.mat"),
    "scenes": (Scenes, tuple(LENGTHS), "no files"),
    "stanford": (stanford, _LABELLED, "images/NAME.jpg, labels/NAME.regions.txt or labels/NAME.png"),
    "voc": (voc, (), "VOC2012/JPEGImages/NAME.jpg, SegmentationClass/NAME.png, ImageSets/Segmentation/SPLIT.txt"),
}
