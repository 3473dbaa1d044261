"""Images to predict, from files, folders, patterns or a split; each has a unique name for its prediction."""

import contextlib
import fnmatch
import glob
import os
import warnings
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

ORIENTATION = 0x0112  # EXIF tag; its values as quarter turns to the left, followed by a reflection
ORIENTATIONS = {2: (0, True), 3: (2, False), 4: (2, True), 5: (3, True), 6: (3, False), 7: (1, True), 8: (1, False)}
Warn = Callable[[str], None]
MAX_PIXELS = 2**30  # of an image; Pillow's own limit is 2**27


@dataclass(frozen=True)
class Source:
    """An image to predict."""

    path: Path
    name: str  # of its prediction: a relative path without suffix
    id: int  # in COCO files
    read: Callable[[], Tensor] = field(compare=False, repr=False)  # returns uint8 RGB (3, H, W)


def find_images(
    given: Sequence[str], *, recursive: bool = False, skip: Sequence[Path] = (), warn: Warn = lambda text: None
) -> list[Source]:
    """Find images in the order given, each one once; those of a folder are sorted by name.

    In folders (and those below, if ``recursive``), files with the suffix of an image are taken, except for hidden ones.
    Symbolic links are images of their own. ``skip`` has folders for predictions, which are no inputs. ``warn`` gets a
    line about each link that is not followed, since it leads back to a folder that is searched.
    """
    skip = [folder.resolve() for folder in skip]
    found: dict[Path, PurePath] = {}  # path, and path relative to what was given
    for text in given:
        top, paths = _expand(text, recursive, warn)
        kept = [path for path in paths if not any(_absolute(path).is_relative_to(folder) for folder in skip)]
        if paths and not kept:
            raise UsageError(f"{text}: all images are in the output folder; choose another --out")
        for path in kept:
            found.setdefault(_absolute(path), path.relative_to(top))
    names = unique_names(list(found), list(found.values()))
    return [
        Source(path, name, number, partial(read_upright, path))
        for number, (path, name) in enumerate(zip(found, names, strict=True), 1)
    ]


def split_images(data: Any, limit: int | None = None) -> list[Source]:
    """Return the images of a split, with the names that the data set's evaluation expects."""
    items = data.items[:limit]
    if isinstance(data, InstanceData):
        # Annotation files may name any path: keep it below the folder.
        parts = [[part for part in PurePath(item.name).parts if part not in ("/", "..")] for item in items]
        names = unique_names([item.image for item in items], [PurePath(*each) for each in parts])
        return [
            Source(item.image, name, item.id, partial(data.read, item)) for item, name in zip(items, names, strict=True)
        ]
    sources = []
    for index, item in enumerate(items):
        drawn = data.name == "scenes"  # which has no files
        read = partial(lambda index: data[index][0], index) if drawn else partial(read_image, item.image)
        sources.append(Source(item.image, data.prediction_name(index).removesuffix(".png"), index + 1, read))
    return sources


def check_not_overwritten(sources: Iterable[Source], outputs: Iterable[Path]) -> None:
    """Raise an error if an output would overwrite an image that is read."""
    inputs = {source.path.resolve() for source in sources}
    for path in outputs:
        if path.expanduser().resolve() in inputs:
            raise UsageError(f"{path} is an input and would be overwritten; choose another --out")


def printable(name: str) -> str:
    """Replace the bytes of a file name that are no text."""
    return name.encode(errors="replace").decode()


def unique_names(paths: Sequence[Path], relative: Sequence[PurePath]) -> list[str]:
    """Return a name for each path; names differ even if case is ignored."""
    names = [path.with_suffix("").as_posix() for path in relative]
    for group in _clashes(names):
        folders = {paths[index].parent for index in group}
        for index in group if len(folders) > 1 else ():
            names[index] = paths[index].relative_to(os.path.commonpath(folders)).with_suffix("").as_posix()
    for group in _clashes(names):
        for index in group:
            names[index] += paths[index].suffix
    for group in _clashes(names):
        both = " and ".join(str(paths[index]) for index in group[:2])
        raise UsageError(f"the predictions of {both} would have the same name; predict them into two folders")
    return names


def _clashes(names: Sequence[str]) -> list[list[int]]:
    """Return the indices of names that are equal up to case, in groups."""
    groups: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        groups.setdefault(name.casefold(), []).append(index)
    return [group for group in groups.values() if len(group) > 1]


def read_upright(path: Path) -> Tensor:
    """Read a photo as uint8 RGB (3, H, W), rotated by its EXIF orientation.

    Data sets are read without rotation (:func:`repgraph.data.files.read_image`): their masks match the stored pixels.
    """
    image = read_image(path).as_subclass(Tensor)
    with Image.open(path) as picture:
        # In a PNG file Pillow would decode the whole image to look for EXIF data after it.
        known = picture.format != "PNG" or bool({"exif", "Raw profile type exif"} & picture.info.keys())
        orientation = picture.getexif().get(ORIENTATION, 1) if known else 1
    quarters, mirrored = ORIENTATIONS.get(orientation, (0, False))
    image = image.rot90(quarters, (-2, -1))
    return image.flip(-1) if mirrored else image


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
    """Return the images that one argument names, and the folder that their names start from."""
    path = Path(os.path.expanduser(text))
    loops: list[Path] = []
    if path.is_file():
        return path.parent, [path]
    if path.is_dir():
        found = [each for each in path.iterdir() if not each.name.startswith(".")]
        if recursive:
            found, loops = walk(path)
        found = [each for each in found if each.suffix.lower() in IMAGE_SUFFIXES]
        top, empty = path, f"there is no image in {text}; for its sub-folders, give '{text.rstrip('/')}/**/*.jpg'"
    elif glob.has_magic(text) and not path.exists():
        fixed = next(index for index, part in enumerate(path.parts) if glob.has_magic(part))
        top, empty = Path(*path.parts[:fixed]), f"no file matches {text!r}"
        if "**" in path.parts and top.is_dir():  # glob would follow loops
            found, loops = walk(top)
            found = [each for each in found if _matches(each.relative_to(top).parts, path.parts[fixed:])]
        else:
            found = [Path(match) for match in glob.glob(str(path))]
    else:
        raise UsageError(f"{text} is no image; expected images, folders of images, or patterns such as 'photos/*.jpg'")
    for loop in loops:
        warn(f"{loop} is a link to a folder that is searched already; it is not followed")
    # A broken link is reported as an image that cannot be read.
    found = sorted(each for each in found if each.is_file() or not each.exists())
    if not found:
        raise UsageError(empty)
    return top, found


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern, in which ``**`` stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _absolute(path: Path) -> Path:
    """Return the absolute path of a file; a link is not followed, so that two links to an image are two images."""
    return path.parent.resolve() / path.name
