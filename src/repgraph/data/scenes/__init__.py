"""The embedded scenes: pictures that the program draws, in which what a region is depends on something far away.

A bay at dusk. The near shore is sand under the sun and snow under the moon; a boat is inbound where the lighthouse
above it shines orange, and outbound where it shines blue. Shore and boats themselves look the same in either case, so
that a network that sees only their surroundings cannot do better than guess; see :mod:`repgraph.data.scenes.world`.

Nothing is read or downloaded: a picture is a function of (seed, split, index), the same on every machine.
"""

from pathlib import Path

import torch
from torchvision.tv_tensors import Image, Mask

from repgraph.data.dataset import Item, Pair, SegmentationData
from repgraph.data.labels import DataError, Labels
from repgraph.data.scenes.canvas import HEIGHT
from repgraph.data.scenes.painting import NAMES, paint
from repgraph.data.scenes.world import SLOT, Scene, scene

SIZE = (96, 128)
LENGTHS = {"train": 1600, "val": 100, "test": 400}
# Colours that the colour-blind can tell apart; boats have those of their lights.
PALETTE = (
    (214, 219, 235),
    (0, 158, 115),
    (110, 110, 118),
    (38, 66, 110),
    (240, 228, 66),
    (255, 255, 255),
    (213, 94, 0),
    (86, 180, 233),
)
LABELS = Labels(NAMES, PALETTE, ids=tuple(range(len(NAMES))), ignored=(255,))
FAR = ("sand", "snow", "inbound boat", "outbound boat")  # what cannot be told from what is near
__all__ = ["FAR", "LABELS", "SIZE", "Scene", "Scenes", "paint", "scene"]


class Scenes(SegmentationData):
    """Scenes as a data set; ``data.scene(i)`` says what is in the i-th, and can swap what decides its classes.

    Args:
        root: of no use, as there are no files.
        split: "train", "val" or "test".
        size: height and width of the pictures.
        length: how many there are; 1600, 100 and 400 by default.
        seed: other seeds give other pictures.

    Example:
        >>> data = Scenes(None, "val")
        >>> image, mask = data[7]
        >>> image.shape, mask.shape
        (torch.Size([3, 96, 128]), torch.Size([96, 128]))
        >>> other, swapped = data.draw(data.scene(7).swapped(sky=True))
        >>> bool((image[:, 60:] == other[:, 60:]).all())  # the shore looks as it did, and is something else
        True
        >>> bool((mask[90:] == swapped[90:]).all())
        False
    """

    def __init__(
        self,
        root: Path | str | None = None,
        split: str = "train",
        *,
        size: tuple[int, int] = SIZE,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        if split not in LENGTHS:
            raise DataError(f"scenes have no split {split!r}; choose one of {', '.join(LENGTHS)}")
        self.size = _size(size)
        self.seed = _whole("seed", seed, 0)
        count = LENGTHS[split] if length is None else _whole("length", length, 1)
        files = (Path(f"{split}-{i:05}.png") for i in range(count))
        items = [Item(file.stem, file, file) for file in files]
        super().__init__("scenes", Path(), split, LABELS, items)

    def scene(self, index: int) -> Scene:
        """What is in a picture."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no scene {index}: there are {len(self)}")
        height, width = self.size
        return scene(self.seed, self.split, index, width * HEIGHT / height)

    def draw(self, what: Scene) -> tuple[Image, Mask]:
        """A scene, which may be one with swapped cues, in the size of these pictures."""
        picture, labels = paint(what, self.size)
        return Image(torch.from_numpy(picture).permute(2, 0, 1)), Mask(torch.from_numpy(labels))

    def __getitem__(self, index: int) -> Pair:
        return self.draw(self.scene(index))

    def __repr__(self) -> str:
        height, width = self.size
        return f"scenes {self.split}: {len(self)} drawn pictures of {width} x {height}, {len(self.labels)} classes"


def _size(size: object) -> tuple[int, int]:
    """Height and width; a scene needs the width of one lighthouse, and things in it a few pixels."""
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise DataError(f"size is {size!r}; give height and width")
    height, width = (_whole("size", side, 32) for side in size)
    if width * HEIGHT < SLOT * height:
        raise DataError(f"size is {height} x {width}; the width has to be at least {SLOT / HEIGHT:.2f} of the height")
    return height, width


def _whole(name: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise DataError(f"{name} is {value!r}; a whole number of at least {least} is needed")
    return value
