"""A set of images and masks, as PyTorch's loaders take it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import Dataset
from torchvision.tv_tensors import Image, Mask

from repgraph.data.files import read_image, read_values
from repgraph.data.labels import DataError, Labels

Pair = tuple[Image, Mask | None]


@dataclass(frozen=True)
class Item:
    """One image and its mask; the mask is None in a split without labels. ``name`` is unique in its split."""

    name: str
    image: Path
    mask: Path | None


class SegmentationData(Dataset[Pair]):
    """Images and masks of one split.

    ``data[i]`` is ``(image, mask)``: a uint8 ``tv_tensors.Image`` (3, H, W) in RGB, and a uint8 ``tv_tensors.Mask``
    (H, W) of classes 0..K-1 and 255 (:data:`~repgraph.data.labels.IGNORE`); the mask is None in a split without labels.
    A file that cannot be used is a :class:`~repgraph.data.labels.DataError` that names it, raised when it is read.

    What was found amiss when the files were listed, and is reported by ``repgraph data check``: ``missing`` files of
    items, ``strays`` (masks without an image) and names ``repeated`` in the split's list; the last two are in no item.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        split: str,
        labels: Labels,
        items: Sequence[Item],
        *,
        missing: Sequence[Path] = (),
        strays: Sequence[Path] = (),
        repeated: Sequence[str] = (),
        prediction_ending: str = ".png",
    ) -> None:
        self.name = name
        self.root = root
        self.split = split
        self.labels = labels
        self.items = list(items)
        self.missing = list(missing)
        self.strays = list(strays)
        self.repeated = list(repeated)
        self.prediction_ending = prediction_ending

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Pair:
        item = self.items[index]
        image = read_image(item.image)
        if item.mask is None:
            return image, None
        classes = self.labels.to_train(read_values(item.mask), item.mask)
        if classes.shape != tuple(image.shape[-2:]):
            raise DataError(mismatch(item, tuple(image.shape[-2:]), classes.shape))
        return image, Mask(torch.from_numpy(classes))

    @property
    def labelled(self) -> bool:
        """Whether the split has masks."""
        return any(item.mask is not None for item in self.items)

    def prediction_name(self, index: int) -> str:
        """The file name for the labels predicted for an image, as the data set's own evaluation expects it."""
        return self.items[index].name + self.prediction_ending

    def __repr__(self) -> str:
        return f"{self.name} {self.split}: {len(self)} images, {len(self.labels)} classes, in {self.root}"


def mismatch(item: Item, image: Sequence[int], mask: Sequence[int]) -> str:
    """What is wrong with a mask that has another size than its image; sizes are (H, W)."""
    sizes = f"{mask[1]} x {mask[0]} pixels, its image {item.image} {image[1]} x {image[0]}"
    return f"{item.mask}: the mask has {sizes}; both need the same size"
