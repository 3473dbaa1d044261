"""Images with label masks as a PyTorch data set, and a data set in memory."""

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset
from torchvision.tv_tensors import Image, Mask

from repgraph.data.files import find_files, read_image, read_mask
from repgraph.data.labels import DataError, Labels
from repgraph.errors import UsageError

Sample = tuple[Image, Mask | None]


@dataclass(frozen=True)
class Item:
    """One image and its mask, which is None in an unlabeled split. Names are unique within a split."""

    name: str
    image: Path
    mask: Path | None


@dataclass(eq=False, repr=False)
class ImageData(Dataset[Any]):
    """The images of one split."""

    name: str
    root: Path
    split: str
    labels: Labels
    items: list[Any]
    missing: list[Path] = field(default_factory=list)  # files of items that do not exist
    problems: list[str] = field(default_factory=list)  # what cannot be used: annotations, masks without an image, links

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"{self.name} {self.split}: {len(self)} images, {len(self.labels)} classes, in {self.root}"


@dataclass(eq=False, repr=False)
class SegmentationData(ImageData):
    """Images and masks of one split.

    ``data[i]`` is ``(image, mask)``: a uint8 ``tv_tensors.Image`` (3, H, W) in RGB, and a uint8 ``tv_tensors.Mask``
    (H, W) with classes 0 to K - 1 and ``IGNORE`` (255), or None in an unlabeled split. A file that cannot be used
    raises a :class:`~repgraph.data.labels.DataError` when it is read.
    """

    prediction_ending: str = ".png"  # appended to the name of an image in the file name of its prediction

    def read(self, index: int) -> Image:
        """Read an image, without its mask."""
        return read_image(self.items[index].image)

    def __getitem__(self, index: int) -> Sample:
        item, image = self.items[index], self.read(index)
        if item.mask is None:
            return image, None
        classes = self.labels.to_train(read_mask(item.mask, self.labels.rgb_masks), item.mask)
        if classes.shape != image.shape[-2:]:
            size, expected = (f"{each[-1]} x {each[-2]}" for each in (classes.shape, image.shape))
            raise DataError(f"{item.mask} has {size} pixels, {item.image} has {expected}; see repgraph data check")
        return image, Mask(torch.from_numpy(classes))

    @property
    def labelled(self) -> bool:
        """Whether the split has masks."""
        return any(item.mask is not None for item in self.items)

    def prediction_name(self, index: int) -> str:
        """Return the file name of a prediction, as the evaluation server of the data set expects it."""
        return self.items[index].name + self.prediction_ending


def pair(
    name: str,
    root: Path,
    split: str,
    labels: Labels,
    folders: Sequence[tuple[Path, Path | None]],
    select: Callable[[Collection[str]], list[str]] | None = None,
    endings: tuple[str, str] = (".jpg", ".png"),
) -> SegmentationData:
    """Pair images and masks by name, in pairs of folders (None for no masks); ``select`` selects from all names."""
    data = SegmentationData(name, root, split, labels, [])
    for image_folder, mask_folder in folders:
        images = find_files(image_folder, endings[0], data.problems)
        masks = find_files(mask_folder, endings[1], data.problems, DataError) if mask_folder else {}
        wanted = dict.fromkeys(select(images) if select else images)
        for each in wanted:
            image = images.get(each, image_folder / f"{each}{endings[0]}")
            mask = masks.get(each, mask_folder / f"{each}{endings[1]}") if mask_folder else None
            data.items.append(Item(each, image, mask))
            data.missing += [path for path, found in ((image, images), (mask, masks)) if path and each not in found]
        unpaired = sorted(masks.keys() - images.keys() - wanted.keys())
        data.problems += [f"{masks[each]}: there is no image for this mask" for each in unpaired]
    if not data.items:
        raise DataError(f"{', '.join(str(folder) for folder, _ in folders)}: no images found")
    return data


class Cached(list[Any]):
    """The samples of a data set in memory, decoded, and shared with forked worker processes."""

    def __init__(self, data: Any) -> None:
        needed = sum(getattr(leaf, "nbytes", 0) for leaf in tree_leaves(data[0])) * len(data)
        if needed > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise UsageError(f"data.cache needs about {needed / 2**30:.1f} GiB, more than the machine has; turn it off")
        self.sizes, self.description = getattr(data, "sizes", None), repr(data)
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            super().__init__(pool.map(data.__getitem__, range(len(data))))

    def __repr__(self) -> str:
        return self.description
