"""What ``repgraph data check`` looks at in images with objects: every image is read and every mask drawn."""

import numpy as np

from repgraph.data.coco import annotations, objects
from repgraph.data.coco.dataset import BAD_IMAGE, IMAGE_SIZE, InstanceData, Item, wrong_size
from repgraph.data.files import read_image
from repgraph.data.problem import Problem

__all__ = ["BAD_IMAGE", "IMAGE_SIZE", "KINDS", "anything", "count", "sizes"]
KINDS = (
    IMAGE_SIZE, annotations.NO_OBJECT, annotations.NO_IMAGE, annotations.NO_CATEGORY, annotations.REPEATED,
    objects.NO_MASK, objects.BAD_MASK, objects.SIZE, objects.OUTSIDE, objects.BAD_BOX, objects.NO_BOX,
    objects.BAD_CROWD,
)  # fmt: skip


def anything(data: InstanceData) -> bool:
    """Whether there is an object to learn from or to find."""
    return any(not each.crowd for item in data.items for each in item.picture.objects)


def sizes(item: Item, data: InstanceData) -> tuple[list[Problem], tuple[int, int]]:
    """The size of an image as it is, and what is wrong with it; an image that cannot be read is an error."""
    image = read_image(item.image)
    size = int(image.shape[-2]), int(image.shape[-1])
    return [] if size == item.size else [wrong_size(item, size, data.annotations.path)], size


def count(item: Item, data: InstanceData) -> tuple[list[Problem], np.ndarray, np.ndarray]:
    """What is wrong with the objects of an image, the pixels in objects of each class, and their number.

    Pixels [K + 1] are counted once for each object; the last are those in no object. Numbers are [K].
    """
    problems: list[Problem] = []
    classes = len(data.labels)
    pixels, numbers = np.zeros(classes + 1, np.int64), np.zeros(classes, np.int64)
    free = np.ones(item.size, dtype=bool)
    for each in item.picture.objects:
        mask = each.mask(*item.size)
        if not mask.any():
            about = f"annotation {each.id} of image {item.name}"
            problems.append(Problem(objects.OUTSIDE, about, "its outline has no centre of a pixel in it"))
            continue
        pixels[each.label - 1] += int(mask.sum())
        numbers[each.label - 1] += 1
        free &= mask == 0
    pixels[-1] = free.sum()
    return problems, pixels, numbers
