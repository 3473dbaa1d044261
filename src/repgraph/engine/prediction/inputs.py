"""The images that files, folders and patterns name, and a name for what is predicted for each.

Two images never get one name: what lies in sub-folders stays in sub-folders, and where that is not enough, names grow
until they differ.
"""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from repgraph.errors import UsageError


@dataclass(frozen=True)
class Source:
    """An image, and the name of its prediction: a relative path without ending."""

    path: Path
    name: str


def find(given: Sequence[str], *, recursive: bool = False, out: Path | None = None) -> list[Source]:
    """The images, in the order given, each once; those of a folder by name.

    ``given`` are files, folders and patterns such as ``photos/*.jpg`` or ``photos/**/*.png``. Of a folder, files with
    an image's ending are taken, with ``recursive`` also those in folders below, but nothing that is hidden or in
    ``out``. A path that is not there, and a folder or pattern without images, is an error.
    """
    found: dict[Path, PurePath] = {}  # by the file itself: what it is called relative to what was given
    for text in given:
        for path, relative in _of(text, recursive, out):
            found.setdefault(path.resolve(), relative)
    paths = list(found)
    return [Source(path, name) for path, name in zip(paths, names(paths, list(found.values())), strict=True)]


def names(paths: Sequence[Path], relative: Sequence[PurePath]) -> list[str]:
    """A name for each path, different also where large and small letters count as one.

    >>> names([Path("/a/x.jpg"), Path("/a/y.jpg")], [PurePath("x.jpg"), PurePath("y.jpg")])
    ['x', 'y']
    >>> names([Path("/a/x.jpg"), Path("/b/x.jpg")], [PurePath("x.jpg"), PurePath("x.jpg")])
    ['a/x', 'b/x']
    >>> names([Path("/a/x.jpg"), Path("/a/x.png")], [PurePath("x.jpg"), PurePath("x.png")])
    ['x.jpg', 'x.png']
    """
    found = [path.with_suffix("").as_posix() for path in relative]
    for group in _alike(found):
        members = [paths[i] for i in group]
        if len({path.parent for path in members}) > 1:
            top = _common(members)
            for i in group:
                found[i] = paths[i].relative_to(top).with_suffix("").as_posix()
    for group in _alike(found):
        for i in group:
            found[i] += paths[i].suffix
    if _alike(found):  # names of one group met those of another
        top = _common(paths)
        found = [path.relative_to(top).as_posix() for path in paths]
    for group in _alike(found):
        both = " and ".join(str(paths[i]) for i in group[:2])
        raise UsageError(f"{both} differ in large and small letters only; predict them into two folders")
    return found


def _of(text: str, recursive: bool, out: Path | None) -> list[tuple[Path, PurePath]]:
    path = Path(text).expanduser()
    if path.is_dir():
        files = _in_folder(path, recursive, out)
        if not files:
            below = "" if recursive else "; --recursive looks in folders below it too"
            raise UsageError(f"there is no image in {text}{below}")
        return [(file, file.relative_to(path)) for file in files]
    if path.exists():
        return [(path, PurePath(path.name))]
    if glob.has_magic(text):
        top = _fixed(path)
        files = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        files = [file for file in files if file.is_file() and not _inside(file, out)]
        if not files:
            raise UsageError(f"there is no file like {text!r}")
        return [(file, file.relative_to(top)) for file in files]
    raise UsageError(f"{text} is not there; give images, folders of images, or patterns such as 'photos/*.jpg'")


def _in_folder(folder: Path, recursive: bool, out: Path | None) -> list[Path]:
    from repgraph.data.listing import IMAGES

    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if recursive and not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() in IMAGES and not _inside(path, out):
                found.append(path)
    return found


def _inside(path: Path, out: Path | None) -> bool:
    return out is not None and path.resolve().is_relative_to(out.resolve())


def _fixed(pattern: Path) -> Path:
    """The folder before the first part that is a pattern."""
    parts = pattern.parts
    first = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:first])


def _alike(found: Sequence[str]) -> list[list[int]]:
    """Groups of names that are one name."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(found):
        groups.setdefault(name.casefold(), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _common(paths: Sequence[Path]) -> Path:
    """The folder that all of the paths are in."""
    try:
        return Path(os.path.commonpath([path.parent for path in paths]))
    except ValueError as error:  # on several drives
        raise UsageError(f"images of one name on several drives ({paths[0]} ...); predict them separately") from error
