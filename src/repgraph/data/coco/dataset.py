"""Images with objects, as PyTorch's loaders and torchvision's detectors take them."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image, Mask

from repgraph.data.coco.annotations import Annotations, Picture
from repgraph.data.coco.objects import Object
from repgraph.data.files import image_size, read_image
from repgraph.data.labels import DataError
from repgraph.data.problem import Problem

BAD_IMAGE, IMAGE_SIZE = "images that cannot be read", "images of another size than the annotation file says"

Target = dict[str, Any]
Sample = tuple[Image, Target]


@dataclass(frozen=True)
class Item:
    """One image: its file, and what the annotation file says of it."""

    image: Path
    picture: Picture

    @property
    def name(self) -> str:
        return self.picture.file

    @property
    def size(self) -> tuple[int, int]:
        """(H, W), as the annotation file has it."""
        return self.picture.height, self.picture.width


class InstanceData(Dataset[Sample]):
    """Images and their objects, of one split.

    ``data[i]`` is ``(image, target)``: a uint8 ``tv_tensors.Image`` (3, H, W) in RGB, and a dict with

    - ``boxes``: ``tv_tensors.BoundingBoxes`` (N, 4), float32, left, top, right, bottom in pixels, cut at the rim;
    - ``labels``: int64 (N,), 1 to K without gaps, 0 being the background; ``data.labels.ids[label - 1]`` is the
      category's own id, ``data.labels.names[label - 1]`` its name;
    - ``masks``: ``tv_tensors.Mask`` (N, H, W), uint8 with 0 and 1;
    - ``area``: float32 (N,), as in the file; ``iscrowd``: int64 (N,), 1 for a crowd;
    - ``image_id``: int, the image's own.

    N is 0 for an image without objects. Objects that cannot be used are left out: ``problems`` has them, ``skipped``
    counts them. An outline so thin that no pixel's centre is in it is found when it is drawn, and left out then. An
    image that cannot be read, or has another size than the file says, is a
    :class:`~repgraph.data.labels.DataError` that names it, raised when it is read; with :meth:`verify` it is left out
    beforehand. ``repgraph data check`` finds all of these.

    Args:
        split: its name.
        root: the set's folder.
        annotations: what the annotation file says.
        images: the folder with the images.
        missing: those that are not there.
        crowds: whether crowds are among the objects; training is done without them.
        empty: whether images without objects (crowds not counted, if left out) are kept.
    """

    name = "coco"

    def __init__(
        self,
        split: str,
        root: Path,
        annotations: Annotations,
        images: Path,
        *,
        missing: Sequence[Path] = (),
        crowds: bool = True,
        empty: bool = True,
    ) -> None:
        self.split, self.root, self.crowds = split, root, crowds
        self.annotations = annotations
        self.labels = annotations.labels
        self.problems = list(annotations.problems)
        self.missing = list(missing)
        items = [Item(images / picture.file, picture) for picture in annotations.pictures]
        self.items = [item for item in items if empty or self._objects(item)]
        if not self.items:
            raise DataError(f"{annotations.path}: no image in it has an object that can be used")

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Sample:
        item = self.items[index]
        return self.read(item), self._target(item)

    def read(self, item: Item) -> Image:
        """The image of one of ``items``, alone: its masks are not drawn."""
        image = read_image(item.image)
        if tuple(image.shape[-2:]) != item.size:
            raise DataError(mismatch(item, tuple(image.shape[-2:]), self.annotations.path))
        return image

    def _objects(self, item: Item) -> list[Object]:
        return [each for each in item.picture.objects if self.crowds or not each.crowd]

    def _target(self, item: Item) -> Target:
        drawn = [(each, each.mask(*item.size)) for each in self._objects(item)]
        drawn = [(each, mask) for each, mask in drawn if mask.any()]
        objects = [each for each, _ in drawn]
        masks = np.stack([mask for _, mask in drawn]) if drawn else np.zeros((0, *item.size), np.uint8)
        boxes = torch.tensor([each.clipped(*item.size) for each in objects], dtype=torch.float32).view(-1, 4)
        return {
            "boxes": BoundingBoxes(boxes, format=BoundingBoxFormat.XYXY, canvas_size=item.size),  # type: ignore[call-overload]
            "labels": torch.tensor([each.label for each in objects], dtype=torch.int64),
            "masks": Mask(torch.from_numpy(np.ascontiguousarray(masks))),
            "image_id": item.picture.id,
            "area": torch.tensor([each.area for each in objects], dtype=torch.float32),
            "iscrowd": torch.tensor([each.crowd for each in objects], dtype=torch.int64),
        }

    def verify(self, workers: int = 8) -> "InstanceData":
        """Leave out, and count, images whose files are no images or have another size than the annotation file says.

        The beginning of every file is read, ``workers`` at a time: that takes seconds for some ten thousand files, and
        keeps such an image from ending a training run in its middle. Damage further on in a file is not seen.
        """
        with ThreadPoolExecutor(workers) as executor:
            found = list(executor.map(self._amiss, self.items))
        self.problems += [problem for problem in found if problem is not None]
        self.items = [item for item, problem in zip(self.items, found, strict=True) if problem is None]
        if not self.items:
            raise DataError(f"{self.annotations.path}: none of its images can be used; {self.problems[-1].detail}")
        return self

    def _amiss(self, item: Item) -> Problem | None:
        try:
            size = image_size(item.image)
        except DataError as error:
            return Problem(BAD_IMAGE, str(item.image), str(error).removeprefix(f"{item.image}: "))
        return None if size == item.size else wrong_size(item, size, self.annotations.path)

    @property
    def labelled(self) -> bool:
        """Whether the split has annotations."""
        return self.annotations.labelled

    @property
    def skipped(self) -> dict[str, int]:
        """How many annotations and images were left out, by the kind of problem."""
        return dict(Counter(problem.kind for problem in self.problems))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(H, W) of every image, as the annotation file has it; no image is read."""
        return [item.size for item in self.items]

    def truth(self) -> dict[str, Any]:
        """The images of this set and all their objects, crowds too, in COCO's format: what results are compared with.

        Objects are numbered from 1: COCO's own evaluation takes the id 0 for "none".
        """
        annotations: list[dict[str, Any]] = []
        for item in self.items:
            for each in item.picture.objects:
                entry: dict[str, Any] = dict(
                    id=len(annotations) + 1, image_id=item.picture.id, bbox=list(each.box), area=each.area
                )
                entry |= dict(category_id=self.labels.ids[each.label - 1], iscrowd=int(each.crowd))
                annotations.append(entry | dict(segmentation=each.segmentation(*item.size)))
        sizes = [dict(id=i.picture.id, file_name=i.name, height=i.size[0], width=i.size[1]) for i in self.items]
        names = zip(self.labels.ids, self.labels.names, strict=True)
        categories = [dict(id=number, name=name) for number, name in names]
        return {"info": {}, "images": sizes, "annotations": annotations, "categories": categories}

    def __repr__(self) -> str:
        objects = sum(len(self._objects(item)) for item in self.items)
        left_out = ", ".join(f"{kind}: {count}" for kind, count in self.skipped.items())
        what = f"{len(self)} images, {objects} objects, {len(self.labels)} classes, in {self.root}"
        return f"{self.name} {self.split}: {what}" + (f"; left out are {left_out}" if left_out else "")


def wrong_size(item: Item, size: Sequence[int], annotations: Path) -> Problem:
    """An image of another size than the annotation file says."""
    return Problem(IMAGE_SIZE, str(item.image), mismatch(item, size, annotations).removeprefix(f"{item.image}: "))


def mismatch(item: Item, size: Sequence[int], annotations: Path) -> str:
    """What is wrong with an image that has another size than the annotation file says; sizes are (H, W)."""
    said = f"{item.size[1]} x {item.size[0]} in {annotations}"
    return f"{item.image}: the image has {size[1]} x {size[0]} pixels, and {said}; both need the same size"
