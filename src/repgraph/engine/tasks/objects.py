"""Batches of images with objects: of any sizes, in a few tensors that are quick to hand on and to move."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image, Mask

from repgraph.engine.detection.network import stretched
from repgraph.engine.training.cache import Codec, Shape

SMALLEST = 1 / 16  # of a box's sides, in pixels: of less, nothing may be left when it is resized


class Objects(NamedTuple):
    """What one device gets in an iteration.

    All images, uint8 (3, H, W), lie one after another in ``pixels``; the masks of all objects, (H, W) each with 0 and
    1, in ``masks``. ``boxes`` (N, 4) and ``labels`` (N,) are of all objects. ``shapes`` has height, width and number
    of objects of each image.
    """

    iteration: int
    pixels: Tensor
    masks: Tensor
    boxes: Tensor
    labels: Tensor
    shapes: tuple[tuple[int, int, int], ...]

    def images(self) -> list[Tensor]:
        """The images: views."""
        sizes = [3 * height * width for height, width, _ in self.shapes]
        return [
            flat.view(3, height, width)
            for flat, (height, width, _) in zip(self.pixels.split(sizes), self.shapes, strict=True)
        ]

    def targets(self) -> list[dict[str, Tensor]]:
        """For each image its objects, as torchvision's detectors take them: views."""
        counts = [count for *_, count in self.shapes]
        masks = self.masks.split([height * width * count for height, width, count in self.shapes])
        found = zip(self.shapes, self.boxes.split(counts), self.labels.split(counts), masks, strict=True)
        return [
            {"boxes": boxes, "labels": labels, "masks": flat.view(count, height, width)}
            for (height, width, count), boxes, labels, flat in found
        ]

    def parts(self, count: int) -> "list[Objects]":
        """The batch in so many parts."""
        each = len(self.shapes) // count
        shapes = [self.shapes[at : at + each] for at in range(0, len(self.shapes), each)]
        pixels = self.pixels.split([sum(3 * h * w for h, w, _ in part) for part in shapes])
        masks = self.masks.split([sum(h * w * n for h, w, n in part) for part in shapes])
        numbers = [sum(n for *_, n in part) for part in shapes]
        flat = zip(pixels, masks, self.boxes.split(numbers), self.labels.split(numbers), shapes, strict=True)
        return [Objects(self.iteration, *part) for part in flat]


def collate(iteration: int, items: Sequence[tuple[Any, Any]]) -> Objects:
    """A batch of images and targets; a target is what :class:`~repgraph.data.coco.InstanceData` has."""
    images = [image.as_subclass(Tensor) for image, _ in items]
    targets = [{name: target[name].as_subclass(Tensor) for name in ("boxes", "labels", "masks")} for _, target in items]
    return Objects(
        iteration,
        torch.cat([image.reshape(-1) for image in images]),
        torch.cat([target["masks"].reshape(-1) for target in targets]),
        torch.cat([target["boxes"] for target in targets]),
        torch.cat([target["labels"] for target in targets]),
        tuple((int(i.shape[1]), int(i.shape[2]), len(t["boxes"])) for i, t in zip(images, targets, strict=True)),
    )


def without_slivers(target: dict[str, Any]) -> dict[str, Any]:
    """The target without objects whose boxes are so thin that nothing of them may be left in the network."""
    boxes = target["boxes"].as_subclass(Tensor)
    kept = ((boxes[:, 2:] - boxes[:, :2]) >= SMALLEST).all(1)
    if bool(kept.all()):
        return target
    return {**target, **{name: target[name].as_subclass(Tensor)[kept] for name in ("boxes", "labels", "masks")}}


def widened(image: Tensor, target: dict[str, Any], longest: int) -> tuple[Tensor, dict[str, Any]]:
    """An image and its target, stretched as tests do it where nothing would be left of it at the network's size."""
    plain = image.as_subclass(Tensor)
    wide = stretched(plain, longest)
    if wide is plain:
        return image, target
    (height, width), (high, broad) = plain.shape[1:], wide.shape[1:]
    boxes = target["boxes"].as_subclass(Tensor) * torch.tensor([broad / width, high / height] * 2)
    return wide, {**target, "boxes": boxes, "masks": stretched(target["masks"].as_subclass(Tensor), longest)}


class _Small(NamedTuple):
    """What is kept of an image beside its bytes."""

    height: int
    width: int
    shape: Shape
    target: dict[str, Any]


def _pack(image: Tensor, target: dict[str, Any]) -> tuple[_Small, list[Tensor]]:
    """Masks take a bit for each pixel."""
    shape = Shape.of(image)
    rest = {name: target[name].as_subclass(Tensor).clone() for name in ("boxes", "labels")}
    bits = np.packbits(target["masks"].as_subclass(Tensor).numpy().reshape(-1))
    return _Small(shape.height, shape.width, shape, rest), [shape.bytes(image), torch.from_numpy(bits)]


def _unpack(small: _Small, values: Tensor) -> tuple[Image, dict[str, Any]]:
    shape, count = small.shape, len(small.target["boxes"])
    pixels = shape.height * shape.width
    image, bits = values.split([3 * pixels, values.numel() - 3 * pixels])
    masks = torch.from_numpy(np.unpackbits(bits.numpy(), count=count * pixels)).view(count, shape.height, shape.width)
    boxes = BoundingBoxes(  # type: ignore[call-overload]
        small.target["boxes"], format=BoundingBoxFormat.XYXY, canvas_size=(shape.height, shape.width)
    )
    return shape.image(image), {"boxes": boxes, "labels": small.target["labels"], "masks": Mask(masks)}


OBJECTS = Codec(_pack, _unpack)
