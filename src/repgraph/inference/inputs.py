"""Images to predict, from files, folders, patterns or a split; each has a unique name for its prediction."""

import contextlib
import fnmatch
import glob
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from PIL import Image
from torch import Tensor

from repgraph.data.coco import InstanceData
from repgraph.data.files import IMAGE_SUFFIXES, read_image
from repgraph.errors import UsageError
from repgraph.files import walk

MAX_PIXELS = 2**30  # of an image; Pillow's own limit is 2**27
MAX_NAME = 255  # bytes of a file name


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

    In folders (and subfolders, if ``recursive``), files with the suffix of an image are taken, except hidden ones. A
    symbolic link counts as an image. Folders in ``skip``, for predictions, are not searched.
    """
    folders = [os.path.realpath(folder) for folder in skip]
    found: dict[Path, PurePath] = {}  # path, and path relative to the argument
    for text in given:
        top, paths = _expand(text, recursive)
        kept = [path for path in paths if not any(_absolute(path).is_relative_to(folder) for folder in folders)]
        if paths and not kept:
            raise UsageError(f"{text}: all images are in the output folder; choose another --out")
        for path in kept:
            found.setdefault(_absolute(path), path.relative_to(top))
    return [
        Source(path, name, number, partial(read_image, path, upright=True))
        for number, (path, name) in enumerate(zip(found, unique_names(found.values()), strict=True), 1)
    ]


def split_images(data: Any, limit: int | None = None) -> list[Source]:
    """Return the images of a split, with the names that the data set's evaluation expects."""
    items = list(enumerate(data.items[:limit]))
    if isinstance(data, InstanceData):
        given = [(item.name, item.id, None) for _, item in items]
    else:
        given = [(data.prediction_name(index), index + 1, item.mask) for index, item in items]
    names = unique_names(PurePath(name) for name, *_ in given)
    return [
        Source(item.image, name, number, partial(data.read, index), mask)
        for (index, item), (_, number, mask), name in zip(items, given, names, strict=True)
    ]


def check_not_overwritten(inputs: Iterable[Path], outputs: Iterable[Path]) -> None:
    """Raise an error if an output would overwrite a file that is read."""
    real = {os.path.realpath(path) for path in inputs}
    for path in outputs:
        if os.path.realpath(os.path.expanduser(path)) in real:
            raise UsageError(f"{path} is an input and would be overwritten; choose another --out")


def printable(name: str) -> str:
    """Replace the bytes of a file name that cannot be decoded."""
    return name.encode(errors="replace").decode()


def unique_names(paths: Iterable[PurePath]) -> list[str]:
    """Return a name for each path: without suffix, root and "..", and with a number if names are equal up to case."""
    names: list[str] = []
    taken: set[str] = set()
    repeated: Counter[str] = Counter()
    for path in paths:
        first = name = _safe_name(path.with_suffix(""))
        while name.casefold() in taken:
            repeated[first.casefold()] += 1
            name = _safe_name(PurePath(first), f"-{repeated[first.casefold()] + 1}")
        taken.add(name.casefold())
        names.append(name)
    return names


def _safe_name(path: PurePath, ending: str = "") -> str:
    """Return a path without root and "..", its last part truncated so that ``ending`` and ".png" fit."""
    *folders, name = [part for part in path.parts if part not in (path.anchor, "..")] or ["_"]
    while len(os.fsencode(f"{name}{ending}.png")) > MAX_NAME:
        name = name[:-1]
    return "/".join([*folders, name + ending])


@contextlib.contextmanager
def large_images() -> Iterator[None]:
    """Let Pillow open images of up to :data:`MAX_PIXELS` pixels."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _expand(text: str, recursive: bool) -> tuple[Path, list[Path]]:
    """Return the folder to which names are relative, and the images of one argument."""
    path = Path(os.path.expanduser(text))
    is_folder = os.path.isdir(path)
    if os.path.lexists(path) and not is_folder:
        return path.parent, [path]
    if not is_folder and not glob.has_magic(text):
        raise UsageError(f"{text} does not exist; expected images, folders of images, or patterns such as '*.jpg'")
    top, pattern = path, ["**", "*"] if recursive else ["*"]
    if not is_folder:
        fixed = next(index for index, part in enumerate(path.parts) if glob.has_magic(part))
        top, pattern = Path(*path.parts[:fixed]), list(path.parts[fixed:])
    if "**" in pattern and top.is_dir():  # glob would follow loops
        found = [each for each in walk(top) if _matches(each.relative_to(top).parts, pattern)]
    else:
        found = [Path(match) for match in glob.glob(os.path.join(glob.escape(str(top)), *pattern))]
    if is_folder:
        found = [each for each in found if each.suffix.lower() in IMAGE_SUFFIXES]
    found = sorted(each for each in found if not each.is_dir())  # a broken link or a pipe fails when it is read
    if not found and is_folder:
        raise UsageError(f"there is no image in {text}; for its sub-folders, give '{text.rstrip('/')}/**/*.jpg'")
    if not found:
        raise UsageError(f"no file matches {text!r}")
    return top, found


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path matches a pattern, both split into parts; ``**`` matches any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _absolute(path: Path) -> Path:
    """Return the absolute path of a file without following a link: two links to an image are two images."""
    return path.parent.resolve() / path.name
