"""Drawn scenes: an image is a function of (seed, split, index), the same on every machine."""

from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torchvision.tv_tensors import Image, Mask

from repgraph.constants import IGNORE
from repgraph.data.dataset import Item, Sample, SegmentationData
from repgraph.data.labels import Labels, hex_palette
from repgraph.data.scenes.canvas import HEIGHT
from repgraph.data.scenes.painting import NAMES, Scene, paint, sample_scene

Side = Annotated[int, Field(ge=32, le=2**14)]
SIZE = (96, 128)
LENGTHS = {"train": 1600, "val": 100, "test": 400}
# Distinct for color-blind readers; boats have the colors of their lights.
PALETTE = hex_palette("d6dbeb 009e73 6e6e76 26426e f0e442 ffffff d55e00 56b4e9")
LABELS = Labels(NAMES, PALETTE, ids=tuple(range(len(NAMES))), ignored=(IGNORE,))
FAR = ("sand", "snow", "inbound boat", "outbound boat")  # classes that depend on something far away
__all__ = ["FAR", "LABELS", "SIZE", "Scene", "Scenes", "paint", "sample_scene"]


class Scenes(SegmentationData):
    """Drawn scenes as a data set of ``length`` images, by default 1600, 100 and 400 in train, val and test.

    ``data.scene(i)`` is the content of an image, whose cues can be swapped.
    """

    def __init__(
        self,
        root: Any = None,
        split: str = "train",
        *,
        size: tuple[Side, Side] = SIZE,
        length: Annotated[int, Field(gt=0, le=10**6)] | None = None,
        seed: Annotated[int, Field(ge=0, lt=2**63)] = 0,
    ) -> None:
        self.size, self.seed = size, seed
        files = [Path(f"{split}-{i:05}.png") for i in range(LENGTHS[split] if length is None else length)]
        super().__init__("scenes", Path(), split, LABELS, [Item(file.stem, file, file) for file in files])

    def scene(self, index: int) -> Scene:
        number = int(self.items[index].name.rpartition("-")[2])  # not the index: items may be a subset
        return sample_scene(self.seed, self.split, number, self.size[1] * HEIGHT / self.size[0])

    def draw(self, scene: Scene, zoom: int = 1) -> tuple[Image, Mask]:
        """Return image and classes of a scene; ``zoom`` draws both larger, with sharp edges, for viewing."""
        image, labels = paint(scene, (zoom * self.size[0], zoom * self.size[1]))
        return Image(torch.from_numpy(image).permute(2, 0, 1)), Mask(torch.from_numpy(labels))

    def read(self, index: int) -> Image:
        return self[index][0]

    def __getitem__(self, index: int) -> Sample:
        return self.draw(self.scene(index))
