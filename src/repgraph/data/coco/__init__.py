"""Images with objects, in COCO's format; ``load("data/coco", "train")`` opens a split as :class:`InstanceData`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image, Mask

from repgraph import data
from repgraph.data.coco import masks
from repgraph.data.dataset import ImageData
from repgraph.data.files import NotFound, read_image
from repgraph.data.labels import DataError, Labels, spread_palette
from repgraph.data.transforms import RandomFlip, Target
from repgraph.files import read_json, validate

LAYOUT = "annotations/instances_SPLIT2017.json (or instances_SPLIT.json) and a folder SPLIT2017, images or JPEGImages"
_FILES = [f"annotations/instances_{name}.json" for name in ("{split}2017", "{split}2014", "{split}")]
_FILES += [f"annotations/{name}.json" for name in ("image_info_{split}2017", "image_info_{split}-dev2017", "{split}")]
_FOLDERS = ["{name}", "images/{name}", "{split}", "images/{split}", "images", "JPEGImages"]
MAX_PIXELS = 2**30  # of an image; pycocotools counts pixels with 32 bits
MIN_SIDE = 1e-3  # pixels; a thinner box may be empty after flipping or scaling in float32

Outline = tuple[np.ndarray, ...] | masks.RLE  # polygons, or an RLE
__all__ = ["InstanceData", "RandomFlip", "load", "open_split"]


class _Entry(BaseModel, strict=True, allow_inf_nan=False):
    id: int


class _Image(_Entry):
    file_name: str = Field(min_length=1)
    height: int = Field(gt=0)
    width: int = Field(gt=0)


class _Category(_Entry):
    name: str


class _RLE(BaseModel):
    size: list[int]
    counts: str | list[int]


class _Annotation(_Entry):
    image_id: int
    category_id: int
    segmentation: list[list[float]] | _RLE
    bbox: list[float] = Field(min_length=4, max_length=4)
    area: float
    iscrowd: Literal[0, 1] | None = None


class _File(BaseModel):
    images: list[_Image] = Field(min_length=1)
    categories: list[_Category] = Field(min_length=1)
    annotations: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Object:
    label: int  # class, 1 to K
    box: tuple[float, ...]  # x, y, width, height, as in the file
    area: float
    crowd: bool
    outline: Outline
    size: tuple[int, int]  # (H, W) of the image

    def mask(self) -> np.ndarray:
        """Return the mask (H, W), uint8 with 0 and 1."""
        if isinstance(self.outline, tuple):
            return masks.draw_polygons(self.outline, *self.size)
        return masks.decode(self.outline)

    def clipped_box(self) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the box, clipped to the image."""
        x, y, w, h = self.box
        height, width = self.size
        return max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))

    def segmentation(self) -> Any:
        """Return the mask as in annotation files."""
        if isinstance(self.outline, tuple):
            return [polygon.tolist() for polygon in self.outline]
        return self.outline


@dataclass(frozen=True)
class Item:
    """One image with its objects, crowds included."""

    id: int
    name: str  # file name in the annotation file
    image: Path
    size: tuple[int, int]  # (H, W) in the annotation file
    objects: list[Object] = field(default_factory=list)


@dataclass(eq=False, repr=False, kw_only=True)
class InstanceData(ImageData):
    """Images and objects of one split.

    ``data[i]`` is ``(image, target)``: a uint8 ``tv_tensors.Image`` (3, H, W) in RGB, and a dict with

    - ``boxes``: ``tv_tensors.BoundingBoxes`` (N, 4), float32, left, top, right and bottom, clipped to the image;
    - ``labels``: int64 (N,), 1 to K, named ``data.labels.names[label - 1]``; 0 is the background;
    - ``masks``: ``tv_tensors.Mask`` (N, H, W), uint8 with 0 and 1;
    - ``area``: float32 (N,), ``iscrowd``: int64 (N,), and ``image_id``: int, as in the file.

    Annotations that cannot be used are skipped (``problems``), and so are objects whose mask turns out empty. Reading a
    damaged image, or one of another size than in the file, raises a :class:`~repgraph.data.labels.DataError`.
    """

    path: Path  # of the annotation file
    labelled: bool  # whether it has annotations
    crowds: bool
    empty: int  # images without objects that were left out

    def __getitem__(self, index: int) -> tuple[Image, Target]:
        item = self.items[index]
        image = self.read(index)
        used = [each for each in item.objects if self.crowds or not each.crowd]
        drawn = [(each, mask) for each in used if (mask := each.mask()).any()]
        objects = [each for each, _ in drawn]
        pixels = np.array([mask for _, mask in drawn], np.uint8).reshape(-1, *item.size)
        boxes = torch.tensor([each.clipped_box() for each in objects], dtype=torch.float32).view(-1, 4)
        return image, {
            "boxes": BoundingBoxes(boxes, format=BoundingBoxFormat.XYXY, canvas_size=item.size),  # type: ignore[call-overload]
            "labels": torch.tensor([each.label for each in objects], dtype=torch.int64),
            "masks": Mask(torch.from_numpy(pixels)),
            "image_id": item.id,
            "area": torch.tensor([each.area for each in objects], dtype=torch.float32),
            "iscrowd": torch.tensor([each.crowd for each in objects], dtype=torch.int64),
        }

    def read(self, index: int) -> Image:
        """Read an image, without its objects."""
        item = self.items[index]
        image = read_image(item.image)
        if tuple(image.shape[-2:]) != item.size:
            size, expected = (f"{each[-1]} x {each[-2]}" for each in (image.shape, item.size))
            raise DataError(f"{item.image}: the image has {size} pixels but {expected} in {self.path}")
        return image

    def prediction_name(self, index: int) -> str:
        return self.items[index].name

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(H, W) of every image according to the annotation file."""
        return [item.size for item in self.items]

    def truth(self) -> dict[str, Any]:
        """Return all images and objects in COCO's format, with ids from 1: in COCO's evaluation, 0 means "none"."""
        annotations: list[dict[str, Any]] = []
        for item in self.items:
            for each in item.objects:
                ids = dict(id=len(annotations) + 1, image_id=item.id, category_id=self.labels.ids[each.label - 1])
                shape = dict(bbox=list(each.box), area=each.area, segmentation=each.segmentation())
                annotations.append({**ids, **shape, "iscrowd": int(each.crowd)})
        images = [dict(id=item.id, file_name=item.name, height=item.size[0], width=item.size[1]) for item in self.items]
        categories = [dict(id=i, name=name) for i, name in zip(self.labels.ids, self.labels.names, strict=True)]
        return {"info": {}, "images": images, "annotations": annotations, "categories": categories}


load = partial(data.load, "coco")  # opens one split with the options of open_split; missing images are an error


def open_split(
    root: str | Path, split: str, *, images: str = "", annotations: str = "", crowds: bool = True, empty: bool = True
) -> InstanceData:
    """Open one split, with targets that include ``crowds``, and with images without objects (``empty``).

    ``images`` and ``annotations`` are the folder of the images and the annotation file in ``root``, with ``{split}``
    for the split; by default, the first of the usual names that exists.
    """
    masks.tools()  # raises early if it is missing
    top = Path(os.path.expanduser(root))
    paths = [top / each.replace("{split}", split) for each in ([annotations] if annotations else _FILES)]
    path = next((path for path in paths if os.path.isfile(path)), None)
    if path is None:
        raise NotFound(f"{paths[0]}: no such file; pass annotations=FILE")
    name = path.stem.removeprefix("instances_").removeprefix("image_info_").replace("-dev", "")
    patterns = [images] if images else _FOLDERS
    folders = [top / each.replace("{name}", name).replace("{split}", split) for each in patterns]
    folder = next((folder for folder in folders if os.path.isdir(folder)), None)
    if folder is None:
        raise DataError(f"{folders[0]}: no such folder; expected {LAYOUT}, or pass images=FOLDER")
    labels, images_read, labelled, problems = _read_annotations(path, folder)
    items = [item for item in images_read if empty or any(crowds or not each.crowd for each in item.objects)]
    if not items:
        raise DataError(f"{path}: no image has an object that can be used")
    present = set(os.listdir(folder))  # one call instead of is_file for every image
    missing = [item.image for item in items if item.name not in present and not os.path.isfile(item.image)]
    more: Any = dict(path=path, labelled=labelled, crowds=crowds, empty=len(images_read) - len(items))
    return InstanceData("coco", top, split, labels, items, missing, problems, **more)


def _read_annotations(path: Path, folder: Path) -> tuple[Labels, list[Item], bool, list[str]]:
    """Return the categories of an annotation file, its images, whether it has annotations, and those skipped."""
    content = validate(_File, read_json(path, error_type=DataError), path, DataError)
    ids, names = zip(*sorted((category.id, category.name) for category in content.categories), strict=True)
    try:
        labels = Labels(names, spread_palette(len(ids)), ids)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    images: dict[int, Item] = {}
    for each in content.images:
        if each.id in images:
            raise DataError(f"{path}: two images have the id {each.id}")
        if each.height * each.width > MAX_PIXELS:
            raise DataError(f"{path}: {each.file_name} has more than {MAX_PIXELS} pixels")
        images[each.id] = Item(each.id, each.file_name, folder / each.file_name, (each.height, each.width))
    problems = [f"{path}: {each}" for each in _add_objects(content.annotations or [], images, labels)]
    return labels, list(images.values()), content.annotations is not None, problems


def _add_objects(entries: list[Any], images: Mapping[int, Item], labels: Labels) -> list[str]:
    """Add the annotated objects to their images; return problems for annotations that cannot be used."""
    label_of = {category: label for label, category in enumerate(labels.ids, 1)}
    seen: set[int] = set()
    problems = []
    for position, given in enumerate(entries):
        try:
            entry = validate(_Annotation, given, "it", DataError)
            if entry.id in seen:
                raise ValueError(f"the id {entry.id} occurs twice; only the first one is used")
            seen.add(entry.id)
            if entry.image_id not in images or entry.category_id not in label_of:
                raise ValueError(f"there is no image {entry.image_id}, or no category {entry.category_id}")
            image = images[entry.image_id]
            image.objects.append(_read_object(entry, label_of[entry.category_id], image.size))
        except ValueError as error:  # including DataError
            problems.append(f"annotations[{position}]: {error}")
    return problems


def _read_object(entry: _Annotation, label: int, size: tuple[int, int]) -> Object:
    outline: Outline
    if isinstance(entry.segmentation, list):
        outline = tuple(masks.check_polygons(entry.segmentation))
    elif entry.segmentation.size != list(size):
        raise ValueError(f"its size is {entry.segmentation.size}; expected the size of the image, {list(size)}")
    else:
        outline = {"size": list(size), "counts": masks.check_counts(entry.segmentation.counts, *size)}
    found = Object(label, tuple(entry.bbox), entry.area, bool(entry.iscrowd), outline, size)
    left, top, right, bottom = np.array(found.clipped_box(), np.float32).tolist()
    if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
        raise ValueError(f"its box {entry.bbox} has no area in an image of {size[1]} x {size[0]} pixels")
    return found
