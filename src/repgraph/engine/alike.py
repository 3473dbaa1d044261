"""Images of one size, taken together from a stream of images of many sizes."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

PIXELS = 2**21  # of a group in all: larger images go alone
WAITING = 64  # images that are held back until there are others of their size

Item = TypeVar("Item", bound=tuple[Any, ...])


def alike(items: Iterable[Item], most: int, pixels: int = PIXELS, waiting: int = WAITING) -> Iterator[list[Item]]:
    """All items, in groups of at most ``most`` whose first tensors, images (3, H, W), have one shape.

    A group has at most ``pixels`` pixels, or one image. At most ``waiting`` items are in memory at a time.

    >>> import torch
    >>> sizes = [4, 5, 4, 4, 5, 4]
    >>> [[len(image[0]) for image, in group] for group in alike([(torch.zeros(3, n, 2),) for n in sizes], most=3)]
    [[4, 4, 4], [5, 5], [4]]
    """
    groups: dict[tuple[int, ...], list[Item]] = {}
    held = 0
    for item in items:
        shape = tuple(item[0].shape)
        group = groups.setdefault(shape, [])
        group.append(item)
        held += 1
        full = len(group) >= most or (len(group) + 1) * shape[-1] * shape[-2] > pixels
        if full or held >= waiting:
            largest = shape if full else max(groups, key=lambda each: len(groups[each]))
            held -= len(groups[largest])
            yield groups.pop(largest)
    yield from groups.values()
