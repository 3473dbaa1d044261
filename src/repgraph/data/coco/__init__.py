"""Images with objects, in COCO's format: polygons, run-length encoded masks and crowds.

``load("data/coco", "train")`` opens a split as an :class:`InstanceData`.
"""

import os
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image, Mask

from repgraph import data
from repgraph.data.coco.annotations import Item, read_annotations
from repgraph.data.coco.masks import pycocotools
from repgraph.data.files import Kind, NotFound, Problem, image_size, read_image
from repgraph.data.labels import DataError, Labels
from repgraph.data.transforms import RandomFlip, Target

LAYOUT = "annotations/instances_SPLIT2017.json (or instances_SPLIT.json) and a folder SPLIT2017, images or JPEGImages"
_FILES = ["instances_{split}2017", "instances_{split}2014", "instances_{split}", "image_info_{split}2017"]
_FILES += ["image_info_{split}-dev2017", "{split}"]
_FOLDERS = ("{name}", "images/{name}", "{split}", "images/{split}", "images", "JPEGImages")
Sample = tuple[Image, Target]
__all__ = ["InstanceData", "RandomFlip", "load", "open_split"]


@dataclass(eq=False, repr=False)
class InstanceData(Dataset[Sample]):
    """Images and objects of one split.

    ``data[i]`` is ``(image, target)``: a uint8 ``tv_tensors.Image`` (3, H, W) in RGB, and a dict with

    - ``boxes``: ``tv_tensors.BoundingBoxes`` (N, 4), float32, left, top, right and bottom, clipped to the image;
    - ``labels``: int64 (N,), 1 to K, named ``data.labels.names[label - 1]``; 0 is the background;
    - ``masks``: ``tv_tensors.Mask`` (N, H, W), uint8 with 0 and 1;
    - ``area``: float32 (N,), ``iscrowd``: int64 (N,), and ``image_id``: int, as in the file.

    Annotations that cannot be used are skipped (``problems``), and so are objects whose mask turns out empty. An image
    that cannot be read, or whose size differs from the annotation file, raises a
    :class:`~repgraph.data.labels.DataError` when it is read; :meth:`verify` skips such images beforehand.
    """

    root: Path
    split: str
    path: Path  # of the annotation file
    labels: Labels  # the categories, sorted by id
    items: list[Item]
    labelled: bool  # whether the file has annotations
    problems: list[Problem]  # annotations that were skipped
    missing: list[Path]
    crowds: bool
    empty: int  # images without objects that were left out
    name: ClassVar[str] = "coco"

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        item = self.items[index]
        image = self.read(item)
        drawn = [(each, each.mask(*item.size)) for each in item.used_objects(self.crowds)]
        objects = [each for each, mask in drawn if mask.any()]
        masks = np.array([mask for _, mask in drawn if mask.any()], np.uint8).reshape(-1, *item.size)
        boxes = torch.tensor([each.clipped_box(*item.size) for each in objects], dtype=torch.float32).view(-1, 4)
        return image, {
            "boxes": BoundingBoxes(boxes, format=BoundingBoxFormat.XYXY, canvas_size=item.size),  # type: ignore[call-overload]
            "labels": torch.tensor([each.label for each in objects], dtype=torch.int64),
            "masks": Mask(torch.from_numpy(masks)),
            "image_id": item.id,
            "area": torch.tensor([each.area for each in objects], dtype=torch.float32),
            "iscrowd": torch.tensor([each.crowd for each in objects], dtype=torch.int64),
        }

    def read(self, item: Item) -> Image:
        """Read the image of an item, without its masks."""
        image = read_image(item.image)
        if tuple(image.shape[-2:]) != item.size:
            raise DataError(f"{item.image}: {self.size_mismatch(item, image.shape[-2:])}")
        return image

    def verify(self, workers: int = 8) -> "InstanceData":
        """Skip images that cannot be opened or whose size differs from the annotation file, according to the header."""
        with ThreadPoolExecutor(workers) as executor:
            found = list(executor.map(self._image_problem, self.items))
        self.problems += filter(None, found)
        self.items = [item for item, problem in zip(self.items, found, strict=True) if problem is None]
        if not self.items:
            raise DataError(f"{self.path}: none of its images can be used; {self.problems[-1].detail}")
        return self

    def _image_problem(self, item: Item) -> Problem | None:
        try:
            size = image_size(item.image)
        except DataError as error:
            return Problem(Kind.BAD_IMAGE, str(item.image), str(error).removeprefix(f"{item.image}: "))
        mismatch = Problem(Kind.IMAGE_SIZE, str(item.image), self.size_mismatch(item, size))
        return None if size == item.size else mismatch

    def size_mismatch(self, item: Item, size: Sequence[int]) -> str:
        """Describe an image whose size (H, W) differs from the annotation file."""
        expected = f"{item.size[1]} x {item.size[0]} in {self.path}"
        return f"the image has {size[1]} x {size[0]} pixels but {expected}"

    @property
    def skipped(self) -> dict[str, int]:  # by kind of problem
        return dict(Counter(problem.kind for problem in self.problems))

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
                shape = dict(bbox=list(each.box), area=each.area, segmentation=each.segmentation(*item.size))
                annotations.append({**ids, **shape, "iscrowd": int(each.crowd)})
        images = [dict(id=item.id, file_name=item.name, height=item.size[0], width=item.size[1]) for item in self.items]
        categories = [dict(id=i, name=name) for i, name in zip(self.labels.ids, self.labels.names, strict=True)]
        return {"info": {}, "images": images, "annotations": annotations, "categories": categories}

    def __repr__(self) -> str:
        objects = sum(len(item.used_objects(self.crowds)) for item in self.items)
        text = f"{self.name} {self.split}: {len(self)} images, {objects} objects, {len(self.labels)} classes"
        skipped = ", ".join(f"{kind}: {count}" for kind, count in self.skipped.items())
        return f"{text}, in {self.root}" + (f"; skipped {skipped}" if skipped else "")


load = partial(data.load, "coco")  # opens one split with the options of open_split; missing images are an error


def open_split(
    root: str | Path, split: str, *, images: str = "", annotations: str = "", crowds: bool = True, empty: bool = True
) -> InstanceData:
    """Open one split; images may be missing (``data.missing``).

    ``images`` and ``annotations`` are the folder of the images and the annotation file in ``root``, with ``{split}``
    for the split; by default, the first of the usual names that exists. ``crowds``: whether targets include crowds;
    ``empty``: whether to keep images without objects.
    """
    pycocotools()  # raises early if it is missing
    top = Path(os.path.expanduser(root))
    patterns = (annotations,) if annotations else tuple(f"annotations/{each}.json" for each in _FILES)
    paths = [top / each.replace("{split}", split) for each in patterns]
    path = next((path for path in paths if os.path.isfile(path)), None)
    if path is None:
        raise NotFound(f"{paths[0]}: no such file; give annotations=FILE")
    name = path.stem.removeprefix("instances_").removeprefix("image_info_").replace("-dev", "")
    patterns = (images,) if images else _FOLDERS
    folders = [top / each.replace("{name}", name).replace("{split}", split) for each in patterns]
    folder = next((folder for folder in folders if os.path.isdir(folder)), None)
    if folder is None:
        raise DataError(f"{folders[0]}: no such folder; expected {LAYOUT}, or give images=FOLDER")
    labels, images_read, labelled, problems = read_annotations(path, folder)
    items = [item for item in images_read if empty or item.used_objects(crowds)]
    if not items:
        raise DataError(f"{path}: no image has an object that can be used")
    present = set(os.listdir(folder))  # one call instead of is_file for every image
    missing = [item.image for item in items if item.name not in present and not os.path.isfile(item.image)]
    left_out = len(images_read) - len(items)
    return InstanceData(top, split, path, labels, items, labelled, problems, missing, crowds, left_out)
