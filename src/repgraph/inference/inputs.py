"""Images to predict, from files, folders, patterns or a split; each has a unique name for its prediction."""

import contextlib
import fnmatch
import glob
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from PIL import Image
from torch import Tensor

from repgraph.data.coco import InstanceData
from repgraph.data.files import IMAGE_SUFFIXES, read_image
from repgraph.errors import UsageError
from repgraph.files import walk

Warn = Callable[[str], None]
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


def find_images(
    given: Sequence[str], *, recursive: bool = False, skip: Sequence[Path] = (), warn: Warn = lambda text: None
) -> list[Source]:
    """Find images in the order given, each one once; images in a folder are sorted by name.

    In folders (and subfolders, if ``recursive``), files with the suffix of an image are taken, except hidden ones. A
    symbolic link counts as an image. Folders in ``skip``, for predictions, are not searched. ``warn`` is called for
    each link that is not followed, because it leads back to a folder that is searched.
    """
    folders = [os.path.realpath(folder) for folder in skip]
    found: dict[Path, PurePath] = {}  # path, and path relative to the argument
    for text in given:
        top, paths = _expand(text, recursive, warn)
        kept = [path for path in paths if not any(_absolute(path).is_relative_to(folder) for folder in folders)]
        if paths and not kept:
            raise UsageError(f"{text}: all images are in the output folder; choose another --out")
        for path in kept:
            found.setdefault(_absolute(path), path.relative_to(top))
    names = unique_names(list(found), list(found.values()))
    return [
        Source(path, name, number, partial(read_image, path, upright=True))
        for number, (path, name) in enumerate(zip(found, names, strict=True), 1)
    ]


def split_images(data: Any, limit: int | None = None) -> list[Source]:
    """Return the images of a split, with the names that the data set's evaluation expects."""
    sources = []
    for index, item in enumerate(data.items[:limit]):
        if isinstance(data, InstanceData):
            sources.append(Source(item.image, item.name, item.id, partial(data.read, item)))
        else:
            drawn = data.name == "scenes"  # which has no files
            read = partial(lambda index: data[index][0], index) if drawn else partial(read_image, item.image)
            sources.append(Source(item.image, data.prediction_name(index), index + 1, read, item.mask))
    names = [PurePath(source.name) for source in sources]
    return [replace(source, name=name) for source, name in zip(sources, unique_names(names, names), strict=True)]


def check_not_overwritten(inputs: Iterable[Path], outputs: Iterable[Path]) -> None:
    """Raise an error if an output would overwrite a file that is read."""
    real = {os.path.realpath(path) for path in inputs}
    for path in outputs:
        if os.path.realpath(os.path.expanduser(path)) in real:
            raise UsageError(f"{path} is an input and would be overwritten; choose another --out")


def printable(name: str) -> str:
    """Replace the bytes of a file name that cannot be decoded."""
    return name.encode(errors="replace").decode()


def unique_names(paths: Sequence[PurePath], relative: Sequence[PurePath]) -> list[str]:
    """Return a name for each path: a relative path without suffix and without "..".

    Names are unique even if case is ignored: if they clash, folders are added, then suffixes, then numbers.
    """
    names = [_safe_name(path.with_suffix("")) for path in relative]
    for group in _clashes(names):
        folders = {paths[index].parent for index in group}
        for index in group if len(folders) > 1 else ():
            names[index] = _safe_name(paths[index].relative_to(os.path.commonpath(folders)).with_suffix(""))
    for group in _clashes(names):
        suffixes = {paths[index].suffix.lower() for index in group}
        for index in group if len(suffixes) > 1 else ():
            names[index] = _safe_name(PurePath(names[index] + paths[index].suffix))
    taken: Counter[str] = Counter()
    for index, name in enumerate(names):
        while taken[names[index].casefold()]:
            taken[name.casefold()] += 1
            names[index] = _safe_name(PurePath(name), f"-{taken[name.casefold()]}")
        taken[names[index].casefold()] += 1
    return names


def _safe_name(path: PurePath, ending: str = "") -> str:
    """Return a path without root and "..", its last part truncated so that ``ending`` and ".png" fit."""
    *folders, name = [part for part in path.parts if part not in (path.anchor, "..")] or ["_"]
    while len(os.fsencode(f"{name}{ending}.png")) > MAX_NAME:
        name = name[:-1]
    return "/".join([*folders, name + ending])


def _clashes(names: Sequence[str]) -> list[list[int]]:
    """Return the indices of names that are equal up to case, in groups."""
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name.casefold(), []).append(index)
    return [group for group in groups.values() if len(group) > 1]


@contextlib.contextmanager
def large_images() -> Iterator[None]:
    """Let Pillow open images of up to :data:`MAX_PIXELS` pixels."""
    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2  # Pillow warns above the limit, and refuses twice the limit
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _expand(text: str, recursive: bool, warn: Warn) -> tuple[Path, list[Path]]:
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
        found, loops = walk(top)
        found = [each for each in found if _matches(each.relative_to(top).parts, pattern)]
        for loop in loops:
            warn(f"{loop} is a link to a folder that is searched already; it is not followed")
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
