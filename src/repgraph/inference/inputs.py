"""Images to predict, from files, folders, patterns or a split; each has a unique name for its prediction."""

import contextlib
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from PIL import Image
from torch import Tensor

from repgraph.data.files import IMAGE_SUFFIXES, read_image
from repgraph.errors import UsageError
from repgraph.files import walk


@dataclass(frozen=True)
class Source:
    """An image to predict."""

    path: Path
    name: str  # of its prediction: a relative path without suffix
    id: int  # in COCO files
    read: Callable[[], Tensor] = field(compare=False, repr=False)  # returns uint8 RGB (3, H, W)
    mask: Path | None = None  # its labels in a data set


def find_images(given: Sequence[str], *, recursive: bool = False, skip: Sequence[Path] = ()) -> list[Source]:
    """Find images in the order given, each one once; images in a folder are sorted by name.

    Hidden files, and in folders those without the suffix of an image, are left out, and so are the folders in ``skip``.
    """
    folders = [os.path.realpath(folder) for folder in skip]
    found: dict[Path, PurePath] = {}  # path, and path relative to the argument
    for text in given:
        top, paths = _expand(text, recursive)
        # Without following links to images: two links to an image are two images.
        names = {path.parent.resolve() / path.name: path.relative_to(top) for path in paths}
        names = {path: name for path, name in names.items() if not any(map(path.is_relative_to, folders))}
        if not names:
            raise UsageError(f"{text}: predictions in --out are not used as inputs; choose another --out")
        found |= {path: name for path, name in names.items() if path not in found}
    return [
        Source(path, name, number, partial(read_image, path, upright=True))
        for number, (path, name) in enumerate(zip(found, unique_names(found.values()), strict=True), 1)
    ]


def split_images(data: Any, limit: int | None = None) -> list[Source]:
    """Return the images of a split, with the names that the data set's evaluation expects."""
    items = data.items[:limit]
    names = unique_names(PurePath(data.prediction_name(index)) for index in range(len(items)))
    return [
        Source(item.image, name, getattr(item, "id", index + 1), partial(data.read, index), getattr(item, "mask", None))
        for index, (item, name) in enumerate(zip(items, names, strict=True))
    ]


def check_not_overwritten(inputs: Iterable[Path], outputs: Iterable[Path]) -> None:
    """Raise an error if an output would overwrite a file that is read."""
    real = {os.path.realpath(path) for path in inputs}
    for path in outputs:
        if os.path.realpath(os.path.expanduser(path)) in real:
            raise UsageError(f"{path} is an input and would be overwritten; choose another --out")


def unique_names(paths: Iterable[PurePath]) -> list[str]:
    """Return a name for each path: without suffix, root and "..", and with a number if names are equal up to case."""
    names: list[str] = []
    taken: set[str] = set()
    for path in paths:
        first = "/".join(part for part in path.with_suffix("").parts if part not in (path.anchor, ".."))
        numbered = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
        names.append(next(name for name in numbered if name.casefold() not in taken))
        taken.add(names[-1].casefold())
    return names


@contextlib.contextmanager
def large_images() -> Iterator[None]:
    """Let Pillow open images of up to 2**30 pixels."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = 2**30
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _expand(text: str, recursive: bool) -> tuple[Path, list[Path]]:
    """Return the folder to which names are relative, and the images of one argument; raise an error without any."""
    path = Path(os.path.expanduser(text))
    if os.path.isdir(path):
        top, found = path, walk(path) if recursive else list(path.iterdir())
        problem = f"{text}: no images in this folder"
        if not recursive and any(map(Path.is_dir, found)):
            problem += f" (for its sub-folders, use the pattern '{path}/**/*.jpg')"
        found = [each for each in found if each.suffix.lower() in IMAGE_SUFFIXES]
    elif os.path.lexists(path):
        return path.parent, [path]
    elif glob.has_magic(text):
        fixed = next(index for index, part in enumerate(path.parts) if glob.has_magic(part))
        top, problem = Path(*path.parts[:fixed]), f"{text!r} matches no images"
        found = list(top.glob("/".join(path.parts[fixed:])))
    else:
        raise UsageError(f"{text}: no such file or folder")
    found = [each for each in found if not any(part.startswith(".") for part in each.relative_to(top).parts)]
    if found := sorted(each for each in found if not each.is_dir()):  # a broken link or a pipe fails when it is read
        return top, found
    raise UsageError(problem)
