"""Read annotation files in COCO's format; single annotations that cannot be used are skipped and reported."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from repgraph.data.coco import masks
from repgraph.data.files import Kind, Problem
from repgraph.data.labels import DataError, Labels, spread_palette
from repgraph.files import read_json, validate

MAX_PIXELS = 2**30  # of an image; pycocotools counts pixels with 32 bits
MIN_SIDE = 1e-3  # pixels; a thinner box may be empty after flipping or scaling in float32

Outline = tuple[np.ndarray, ...] | str  # polygons, or the counts of an RLE


class _Entry(BaseModel, strict=True, allow_inf_nan=False):
    id: int


class _Image(_Entry):
    file_name: str = Field(min_length=1)
    height: int = Field(gt=0, le=MAX_PIXELS)
    width: int = Field(gt=0, le=MAX_PIXELS)


class _Category(_Entry):
    name: str


class _Annotation(_Entry):
    image_id: int
    category_id: int
    segmentation: Any = None
    bbox: Annotated[list[float], Field(min_length=4, max_length=4)] | None = None
    area: float | None = None
    iscrowd: Literal[0, 1] | None = None


class _File(BaseModel):
    images: list[_Image] = Field(min_length=1)
    categories: list[_Category] = Field(min_length=1)
    annotations: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class Object:
    id: int
    label: int  # class, 1 to K
    box: tuple[float, ...]  # x, y, width, height, as in the file
    area: float
    crowd: bool
    outline: Outline

    def mask(self, height: int, width: int) -> np.ndarray:
        """Return the mask (H, W), uint8 with 0 and 1, in an image of this size."""
        return masks.decode(_to_rle(self.outline, height, width))

    def clipped_box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom of the box, clipped to an image of this size."""
        x, y, w, h = self.box
        return max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height))

    def segmentation(self, height: int, width: int) -> Any:
        """Return the mask as in annotation files."""
        if isinstance(self.outline, tuple):
            return [polygon.tolist() for polygon in self.outline]
        return _to_rle(self.outline, height, width)


@dataclass(frozen=True)
class Item:
    """One image with its objects, crowds included."""

    id: int
    name: str  # file name in the annotation file
    image: Path
    size: tuple[int, int]  # (H, W) in the annotation file
    objects: list[Object] = field(default_factory=list)

    def used_objects(self, crowds: bool) -> list[Object]:
        return [each for each in self.objects if crowds or not each.crowd]


def read_annotations(path: Path, folder: Path) -> tuple[Labels, list[Item], bool, list[Problem]]:
    """Read an annotation file for the images in a folder.

    Returns the categories sorted by id, the images, whether the file has annotations (those of test splits have none),
    and a problem for each annotation that is skipped. Label k of an object is class k - 1.
    """
    content = validate(_File, read_json(path, error_type=DataError), path, DataError)
    for entries in (content.images, content.categories):
        number, count = Counter(entry.id for entry in entries).most_common(1)[0]
        if count > 1:
            raise DataError(f"{path}: {count} images or categories have the id {number}")
    categories = {category.id: category.name for category in sorted(content.categories, key=lambda each: each.id)}
    try:
        labels = Labels(tuple(categories.values()), spread_palette(len(categories)), tuple(categories))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    images = {i.id: Item(i.id, i.file_name, folder / i.file_name, (i.height, i.width)) for i in content.images}
    for item in images.values():
        if item.size[0] * item.size[1] > MAX_PIXELS:
            raise DataError(f"{path}: {item.name} has the size {item.size}; expected at most {MAX_PIXELS} pixels")
    problems = _add_objects(content.annotations or [], images, labels)
    return labels, list(images.values()), content.annotations is not None, problems


def _add_objects(entries: list[Any], images: Mapping[int, Item], labels: Labels) -> list[Problem]:
    """Add the annotated objects to their images; return problems for annotations that cannot be used."""
    label_of = {category: label for label, category in enumerate(labels.ids, 1)}
    seen: set[int] = set()
    problems = []
    for position, given in enumerate(entries):
        about = f"annotations[{position}]"
        try:
            entry = validate(_Annotation, given, about, DataError)
            about = f"annotation {entry.id}"
            if entry.id in seen:
                raise DataError("its id occurs twice; only the first one is used")
            seen.add(entry.id)
            if entry.image_id not in images:
                raise DataError(f"image_id is {entry.image_id}, which no image has")
            image = images[entry.image_id]
            about += f" of image {image.name}"
            if entry.category_id not in label_of:
                raise DataError(f"category_id is {entry.category_id}, which no category has")
            image.objects.append(_read_object(entry, label_of[entry.category_id], *image.size))
        except ValueError as error:  # including DataError
            problems.append(Problem(Kind.ANNOTATION, about, str(error).removeprefix(f"{about}: ")))
    return problems


def _read_object(entry: _Annotation, label: int, height: int, width: int) -> Object:
    outline = _read_outline(entry.segmentation, height, width)
    box, area = entry.bbox, entry.area
    if box is None or area is None:
        rle = _to_rle(outline, height, width)
        box = masks.bounding_box(rle) if box is None else box
        area = masks.area(rle) if area is None else area
    found = Object(entry.id, label, tuple(box), area, bool(entry.iscrowd), outline)
    left, top, right, bottom = np.array(found.clipped_box(height, width), np.float32).tolist()
    if right - left < MIN_SIDE or bottom - top < MIN_SIDE:
        raise DataError(f"its box {box} has no area in an image of {width} x {height} pixels")
    return found


def _read_outline(value: Any, height: int, width: int) -> Outline:
    if isinstance(value, list):
        return tuple(masks.check_polygons(value))
    if not isinstance(value, Mapping) or "counts" not in value or "size" not in value:
        raise ValueError("segmentation is neither a list of polygons nor an object with size and counts")
    if value["size"] != [height, width]:
        raise ValueError(f"its size is {value['size']}; expected the size of the image, {[height, width]}")
    return masks.check_counts(value["counts"], height, width)


def _to_rle(outline: Outline, height: int, width: int) -> masks.RLE:
    if isinstance(outline, tuple):
        return masks.from_polygons(outline, height, width)
    return {"size": [height, width], "counts": outline}
