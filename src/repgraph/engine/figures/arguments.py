"""Options that the commands for figures share, and the images that they name."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repgraph.arguments import short, whole
from repgraph.engine.evaluation.sets import add_data, open_data, open_objects
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from repgraph.data.labels import Labels
    from repgraph.engine.trained import Trained

WIDTH, DPI = 6.9, 300  # inches: the text of a page with two columns


@dataclass(frozen=True)
class Pictures:
    """Images by their names, and their truth (H, W) where there is one; ``about`` says which they are."""

    names: Sequence[str]
    read: "Callable[[int], tuple[Tensor, Any]]"
    about: str
    labels: "Labels | None" = None

    def __len__(self) -> int:
        return len(self.names)


def add_images(parser: argparse.ArgumentParser) -> None:
    """The network and the images, as files or as a part of a data set."""
    from pathlib import Path

    put = parser.add_argument
    put("model", metavar="MODEL", type=Path, help="folder of a run or of a network, a checkpoint or .safetensors")
    put("images", metavar="IMAGE", nargs="*", help="images, folders of images, patterns such as 'photos/**/*.jpg'")
    add_data(parser, "instead of IMAGE")


def add_look(parser: argparse.ArgumentParser) -> None:
    """What figures look like, and where the network runs."""
    put = parser.add_argument
    put("--width", type=inches, default=WIDTH, metavar="IN", help="of the figure, in inches; 4.8 fits a page of LNCS")
    put("--dpi", type=whole(20, 2400), default=DPI, metavar="N", help="pixels per inch")
    put("--device", default="auto", help="cpu, cuda or cuda:1; auto is cuda where there is one")


def pixel(text: str) -> tuple[float, float]:
    """A position "X,Y" in pixels.

    >>> pixel("120,80")
    (120.0, 80.0)
    """
    x, comma, y = text.partition(",")
    try:
        found = float(x), float(y)
    except ValueError:
        found = -1.0, -1.0
    if not comma or not all(0 <= value < 1e9 for value in found):
        raise argparse.ArgumentTypeError(f"{short(text)} is not a position; give X,Y in pixels, such as 120,80")
    return found


def inches(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 50:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a width in inches, from 1 to 50")
    return value


def pictures(arguments: argparse.Namespace, network: "Trained", made: "Sequence[Path]") -> Pictures:
    """The images that were named, or those of the split of a data set; ``made`` are the files that will be written."""
    of_set = any((arguments.data, arguments.dataset, arguments.option, arguments.split))
    if bool(arguments.images) == of_set:
        raise UsageError("give images (files, folders, patterns), or --split and --data, the split of a data set")
    return _split(arguments, network) if of_set else _files(arguments, made)


def _files(arguments: argparse.Namespace, made: "Sequence[Path]") -> Pictures:
    from repgraph.engine.prediction import inputs, reading

    sources = inputs.find(arguments.images)[: arguments.limit]
    inputs.spare(sources, made)

    def read(index: int) -> "tuple[Tensor, Any]":
        return reading.read_upright(sources[index].path), None

    return Pictures(
        [inputs.text(source.name) for source in sources], read, f"{len(sources)} image{'s' * (len(sources) > 1)}"
    )


def _split(arguments: argparse.Namespace, network: "Trained") -> Pictures:
    from repgraph.engine.prediction import inputs

    data: Any = (open_objects if network.detects else open_data)(arguments, network.recipe)
    count = len(data) if arguments.limit is None else min(arguments.limit, len(data))
    names = [inputs.text(data.items[i].name) if getattr(data, "items", None) else str(i) for i in range(count)]
    about = f"{data.name} {data.split}, {count} image{'s' * (count > 1)}"
    return Pictures(names, data.__getitem__, about, data.labels)
