"""The images of a command: files or a split of a data set, with their names and their ground truth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torchvision.tv_tensors import Image

from repgraph.data.labels import Labels
from repgraph.data.transforms import resize
from repgraph.errors import UsageError, one_line
from repgraph.inference import Trained
from repgraph.inference.inputs import check_not_overwritten, find_images


@dataclass(frozen=True)
class ImageList:
    """Images that are read when needed."""

    names: Sequence[str]
    read: Callable[[int], tuple[Tensor, Any]]  # returns an image, uint8 RGB (3, H, W), and its ground truth or None
    description: str
    labels: Labels  # of the ground truth

    def __len__(self) -> int:
        return len(self.names)


def open_images(
    network: Trained,
    given: Sequence[str],
    outputs: Sequence[Path],
    *source: Any,
    limit: int | None = None,
    side: int | None = None,
) -> ImageList:
    """Return images from files, folders and patterns, or from a split of a data set, if one is given.

    ``given`` are files, folders and patterns; or numbers and names in the split, by default all of it. It is an error
    if one of the ``outputs`` is an image or a mask. ``source`` are the arguments of :meth:`Trained.open_data`, and
    ``side`` is the maximum of the longer side in pixels.
    """
    if any(source):
        if side:
            raise UsageError("--side is for images in files; it cannot be used with --split")
        images = network.open_data(*source)
        paths = [getattr(item, kind, None) for item in images.items for kind in ("image", "mask")]
        check_not_overwritten(filter(None, paths), outputs)
        return _images_of_split(images, given, limit)
    if not given:
        raise UsageError("pass images (files, folders, patterns), or --split and --data for a split of a data set")
    sources = find_images(given)[:limit]
    check_not_overwritten([source.path for source in sources], outputs)

    def read(index: int) -> tuple[Tensor, Any]:
        image = Image(sources[index].read())
        longer = max(image.shape[-2:])
        return resize(image, None, side / longer) if side and side < longer else (image, None)

    names = [one_line(source.name) for source in sources]
    return ImageList(names, read, _count(len(sources)), network.labels_or_numbers())


def _images_of_split(data: Any, chosen: Sequence[str], limit: int | None) -> ImageList:
    names = [item.name for item in data.items]
    known = {Path(name).stem: index for index, name in reversed(list(enumerate(names)))}
    known |= {str(index): index for index in range(len(names))} | {name: index for index, name in enumerate(names)}
    for text in chosen:
        if text not in known:
            expected = f"a number from 0 to {len(names) - 1}, or a name such as {names[0]!r}"
            raise UsageError(f"{data.name} {data.split} has no image {text!r}; expected {expected}")
    indices = ([known[text] for text in chosen] or list(range(len(data))))[:limit]
    description = f"{data.name} {data.split}, {_count(len(indices))}"
    shown = [one_line(names[index]) for index in indices]
    return ImageList(shown, lambda number: data[indices[number]], description, data.labels)


def _count(number: int) -> str:
    return f"{number} image{'s' * (number != 1)}"
