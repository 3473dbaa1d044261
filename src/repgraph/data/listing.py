"""Files of a data set by name, and the lists that say which names are in a split."""

import difflib
import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from repgraph.data.dataset import Item, SegmentationData
from repgraph.data.labels import DataError, Labels

IMAGES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2"})


class Missing(DataError):
    """A folder or file that the layout calls for is not there."""


class NoSplit(DataError):
    """A data set has no split of that name."""


class Opened(Protocol):
    """A split of a data set whose files were looked for."""

    name: str
    split: str
    root: Any
    missing: list[Path]


Data = TypeVar("Data", bound=Opened)


def need_all(data: Data) -> Data:
    """``data``, or an error that names the first of its files that are missing."""
    if data.missing:
        raise DataError(
            f"{data.missing[0]}: there is no such file, though {data.name} {data.split} needs it; {len(data.missing)} "
            f"missing in all, which repgraph data check {data.name} {data.root} lists"
        )
    return data


@dataclass(frozen=True)
class Files:
    """The files of a folder and those below it, by name.

    A file's name is its path in the folder, without ``ending``: what follows the name, such as ``_leftImg8bit.png``. An
    image may have any image's extension instead of the one in ``ending``, in large or small letters.
    """

    folder: Path
    ending: str
    found: dict[str, Path]

    @classmethod
    def list(cls, folder: Path, ending: str, layout: str) -> "Files":
        """What is in ``folder``; an error that shows the ``layout`` if it is not there. Hidden files are left out."""
        need_folder(folder, layout)
        before, dot, letters = ending.lower().rpartition(".")
        extension = dot + letters
        wanted = IMAGES if extension in IMAGES else {extension}
        found: dict[str, Path] = {}
        for parent, folders, files in os.walk(folder, followlinks=True):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for file in sorted(files):
                stem, kind = os.path.splitext(file)
                if file.startswith(".") or kind.lower() not in wanted or not stem.lower().endswith(before):
                    continue
                path = Path(parent, file)
                key = _key(path.relative_to(folder).as_posix()[: -len(before + kind)])
                if key in found:
                    raise DataError(f"{path} and {found[key].name} have one name; keep one of the two")
                found[key] = path
        return cls(folder, ending, dict(sorted(found.items())))

    @classmethod
    def masks(cls, folder: Path, ending: str, layout: str) -> "Files":
        """As :meth:`list`, for images that are there: a split without its masks is damaged, and not one less."""
        try:
            return cls.list(folder, ending, layout)
        except Missing as error:
            raise DataError(str(error)) from error

    def __contains__(self, name: str) -> bool:
        return _key(name) in self.found

    def path(self, name: str) -> Path:
        """The file of that name; where there is none, the path at which it should be."""
        return self.found.get(_key(name), self.folder / f"{name}{self.ending}")


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name)  # file systems differ in how they write an accent


@dataclass(frozen=True)
class Names:
    """The names of a split in order, each once, and those that its list repeats."""

    names: Sequence[str]
    repeated: Sequence[str] = ()


def need_folder(folder: Path, layout: str) -> Path:
    if not folder.is_dir():
        raise Missing(f"{folder}: there is no such folder; expected is {layout}")
    return folder


def find_root(root: str | Path, marker: str, places: Sequence[str], layout: str) -> Path:
    """The folder that holds ``marker``: ``root``, or one of the ``places`` in it where archives unpack to."""
    root = need_folder(Path(os.path.expanduser(root)), layout)
    found = [place for place in (root, *(root / p for p in places)) if (place / marker).is_dir()]
    if not found:
        raise Missing(f"{root / marker}: there is no such folder; expected is {layout}")
    return found[0]


def choose(split: str, splits: Sequence[str], name: str) -> str:
    """``split``, or an error that names those there are."""
    if split not in splits:
        close = difflib.get_close_matches(split, splits, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(splits)}"
        raise NoSplit(f"{name} has no split {split!r}; {hint}")
    return split


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text in UTF-8; save the list so") from error
    except OSError as error:
        raise Missing(f"{path}: cannot read the list ({error.strerror})") from error


def read_list(path: Path) -> Names:
    """The names in a text file, one in each line."""
    return once(read_lines(path), path)


def once(names: Sequence[str], where: Path) -> Names:
    """Each of ``names`` once; an error that names the list ``where`` they come from if there are none."""
    if not names:
        raise DataError(f"{where}: no names in it; give one in each line")
    counts = Counter(_key(name) for name in names)
    return Names(list(counts), [name for name, count in counts.items() if count > 1])


def read_split(folder: Path, split: str, layout: str) -> Names:
    """The names in ``folder/split.txt``; those of train and val for trainval, where it has no list of its own."""
    path = folder / f"{split}.txt"
    if path.is_file():
        return read_list(path)
    if split == "trainval":
        parts = [read_list(folder / f"{part}.txt") for part in ("train", "val")]
        return once([name for part in parts for name in (*part.names, *part.repeated)], folder)
    lists = sorted(p.stem for p in folder.glob("*.txt")) if folder.is_dir() else []
    there = f"lists there: {', '.join(lists)}" if lists else f"expected is {layout}"
    raise Missing(f"{path}: there is no such list; {there}")


def pair(
    name: str,
    root: Path,
    split: str,
    labels: Labels,
    images: Sequence[Files],
    masks: Sequence[Files] | None,
    names: Names | None = None,
    prediction_ending: str = ".png",
) -> SegmentationData:
    """The set of images and masks that have the same names: those in ``names``, else of all images.

    Images and masks can lie in several folders, one of each for every part of the split; ``masks`` is None in a split
    without labels.
    """
    items: list[Item] = []
    missing: list[Path] = []
    strays: list[Path] = []
    for part, files in enumerate(images):
        truth = masks[part] if masks is not None else None
        wanted = names.names if names else list(files.found)
        for each in wanted:
            items.append(Item(each, files.path(each), truth.path(each) if truth else None))
            missing += [kind.path(each) for kind in (files, truth) if kind and each not in kind]
        known = files.found.keys() | set(wanted)
        strays += [path for key, path in truth.found.items() if key not in known] if truth else []
    if not items:
        raise DataError(f"{', '.join(str(files.folder) for files in images)}: no images there")
    return SegmentationData(
        name, root, split, labels, items, missing=missing, strays=strays,
        repeated=names.repeated if names else (), prediction_ending=prediction_ending,
    )  # fmt: skip
