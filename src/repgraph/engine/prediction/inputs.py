"""The images that files, folders and patterns name, and a name for what is predicted for each.

Two images never get one name: what lies in sub-folders stays in sub-folders, and where that is not enough, names grow
until they differ.
"""

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from repgraph.errors import UsageError


@dataclass(frozen=True)
class Source:
    """An image, and the name of its prediction: a relative path without ending."""

    path: Path
    name: str


def find(given: Sequence[str], *, recursive: bool | None = None, skip: Sequence[Path] = ()) -> list[Source]:
    """The images, in the order given, each once; those of a folder by name. A link to an image is one of its own.

    ``given`` are files, folders and patterns such as ``photos/*.jpg`` or ``photos/**/*.png``. Of a folder, files with
    an image's ending are taken, with ``recursive`` also those in folders below, but nothing that is hidden or in the
    folders ``skip``, where predictions go. A path that is not there, and a folder or pattern without images, is an
    error. ``recursive`` is None for commands that have no such option.
    """
    found: dict[Path, PurePath] = {}  # by the file's place: what it is called relative to what was given
    for text in given:
        for path, relative in _of(text, recursive, [folder.resolve() for folder in skip]):
            found.setdefault(_place(path), relative)
    paths = list(found)
    return [Source(path, name) for path, name in zip(paths, names(paths, list(found.values())), strict=True)]


def spare(sources: Iterable[Source], made: Iterable[Path]) -> None:
    """Refuse to write files over images that are read."""
    read = {source.path.resolve() for source in sources}
    for path in made:
        if path.expanduser().resolve() in read:
            raise UsageError(f"{path} is one of the images and would be written over; give another --out")


def text(name: str) -> str:
    """A name that can be written and printed, whatever bytes a file's name has.

    >>> text(os.fsdecode(b"a\\xff"))
    'a?'
    """
    return name.encode(errors="replace").decode()


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


def _of(text: str, recursive: bool | None, skip: Sequence[Path]) -> list[tuple[Path, PurePath]]:
    path = Path(os.path.expanduser(text))  # which leaves a user who is not known alone
    if path.is_dir():
        option = "--recursive" if recursive is not None else repr(f"{text.rstrip('/')}/**/*.jpg")
        below = "" if recursive else f"; {option} looks in folders below it too"
        files = _kept(_in_folder(path, bool(recursive)), skip, f"there is no image in {text}{below}")
        return [(file, file.relative_to(path)) for file in files]
    if path.is_file():
        return [(path, PurePath(path.name))]
    if path.exists():
        raise UsageError(f"{text} is no regular file; give images, or folders of images")
    if glob.has_magic(text):
        top = _fixed(path)
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        files = _kept([match for match in matches if _file(match)], skip, f"there is no file like {text!r}")
        return [(file, file.relative_to(top)) for file in files]
    raise UsageError(f"{text} is not there; give images, folders of images, or patterns such as 'photos/*.jpg'")


def _in_folder(folder: Path, recursive: bool) -> list[Path]:
    from repgraph.data.listing import IMAGES

    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if recursive and not name.startswith("."))
        for name in sorted(files):
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() in IMAGES and _file(path):
                found.append(path)
    return found


def _file(path: Path) -> bool:
    """Whether it is a file, or a link to one that is not there: that is told when it is read, and hides no image."""
    return path.is_file() or not path.exists()


def _kept(files: Sequence[Path], skip: Sequence[Path], none: str) -> list[Path]:
    """The files that are not in the folders ``skip``; an error if there are ``none``."""
    kept = [file for file in files if not any(_place(file).is_relative_to(folder) for folder in skip)]
    if files and not kept:
        raise UsageError(f"{files[0]} is where predictions go, as are all others there; give another --out")
    if not kept:
        raise UsageError(none)
    return kept


def _place(path: Path) -> Path:
    """Where a file is, by its own name: a link is not followed, so that two links to one image are two images."""
    return path.parent.resolve() / path.name


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
