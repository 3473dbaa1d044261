"""A set of images and masks, as PyTorch's loaders take it."""

from collections.abc import Callable, Sequence
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

    ``data[i]`` is ``(image, mask)``: a uint8 ``tv_tensors.Image`` (3, H, W) in RGB, and a uint8 ``tv_tensors.Mask`` (H, W)
    of classes 0..K-1 and 255 (:data:`~repgraph.data.labels.IGNORE`); the mask is None in a split without labels. A file that
    cannot be used is a :class:`~repgraph.data.labels.DataError` that names it, when it is read and not before.

    ``strays`` are mask files without an image, ``repeated`` the names that a list of the split has more than once; they
    are left out of ``items``, and ``repgraph data check`` reports them.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        split: str,
        labels: Labels,
        items: Sequence[Item],
        *,
        strays: Sequence[Path] = (),
        repeated: Sequence[str] = (),
        prediction_name: Callable[[Item], str] = lambda item: f"{item.name}.png",
    ) -> None:
        self.name = name
        self.root = root
        self.split = split
        self.labels = labels
        self.items = list(items)
        self.strays = list(strays)
        self.repeated = list(repeated)
        self._prediction_name = prediction_name

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
        """The file name that the predicted labels of an image go by, as the data set's own evaluation expects it."""
        return self._prediction_name(self.items[index])

    def __repr__(self) -> str:
        return f"{self.name} {self.split}: {len(self)} images, {len(self.labels)} classes, in {self.root}"


def mismatch(item: Item, image: Sequence[int], mask: Sequence[int]) -> str:
    """What is wrong with a mask that has another size than its image; sizes are (H, W)."""
    sizes = f"{mask[1]} x {mask[0]} pixels, its image {item.image} {image[1]} x {image[0]}"
    return f"{item.mask}: the mask has {sizes}; both need the same size"
