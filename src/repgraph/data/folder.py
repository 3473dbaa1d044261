"""Your own images and masks, in a folder.

``images/SPLIT`` and ``masks/SPLIT``, or ``images`` and ``masks`` with the splits in ``train.txt``, ``val.txt``, ...;
and the classes in ``classes.txt`` or ``classes.json``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repgraph.data.dataset import SegmentationData
from repgraph.data.labels import IGNORE, DataError, Labels, hex_palette, spread_palette, whole
from repgraph.data.listing import IMAGES, Files, Missing, Names, find_root, once, pair, read_lines, read_list

LAYOUT = "images/SPLIT/NAME.jpg and masks/SPLIT/NAME.png, or images, masks and SPLIT.txt; and classes.txt"
IGNORED = (255,)
HOW_MANY = "give the number of classes, 1 to 255, or their names"


def read(
    root: str | Path,
    split: str = "train",
    *,
    classes: int | Sequence[str] | None = None,
    ignored: int | Sequence[int] | None = None,
    images: str = "images",
    masks: str = "masks",
    mask_ending: str = ".png",
) -> SegmentationData:
    """Images and masks of the same names, in any folders below.

    Parameters
    ----------
    classes:
        How many classes there are, or their names: 0, 1, ... in the masks. Default: what ``classes.json`` or
        ``classes.txt`` says.
    ignored:
        Values in masks that mean "not labelled"; default 255, or what ``classes.json`` says.
    images, masks:
        The names of the two folders.
    mask_ending:
        What follows the image's name in the mask's: ``"_mask.png"`` if the mask of ``a.jpg`` is ``a_mask.png``.
    """
    top = find_root(root, images, [], LAYOUT)
    labels = read_labels(top, classes, ignored)
    parted = any((top / images / part).is_dir() for part in ("train", "val", "test", split))
    where = (lambda kind: top / kind / split) if parted else (lambda kind: top / kind)
    if parted and split == "trainval" and not where(images).is_dir():
        pictures = [Files.list(top / images / part, ".jpg", LAYOUT) for part in ("train", "val")]
        truth = [Files.masks(top / masks / part, mask_ending, LAYOUT) for part in ("train", "val")]
        return pair("folder", top, split, labels, pictures, truth)
    found = Files.list(where(images), ".jpg", LAYOUT)
    labelled = split != "test" or where(masks).is_dir()
    names = None if parted or not found.found else _names(top, split, found)
    return pair(
        "folder",
        top,
        split,
        labels,
        [found],
        [Files.masks(where(masks), mask_ending, LAYOUT)] if labelled else None,
        names,
    )


def _names(top: Path, split: str, found: Files) -> Names | None:
    """The split's names where all images lie in one folder."""
    lists = {p.stem: p for p in sorted(top.glob("*.txt")) if p.name != "classes.txt"}
    if split in lists:
        return _listed(lists[split], found)
    if split == "trainval" and {"train", "val"} <= lists.keys():
        parts = [_listed(lists[part], found) for part in ("train", "val")]
        return once([name for part in parts for name in (*part.names, *part.repeated)], top)
    if split == "train":  # what no other list claims
        others = {name for path in lists.values() for name in _listed(path, found).names}
        return once([name for name in found.found if name not in others], top)
    there = f"lists there: {', '.join(lists)}" if lists else "write the names of its images there, one in each line"
    raise Missing(f"{top / f'{split}.txt'}: there is no such list; {there}")


def _listed(path: Path, found: Files) -> Names:
    """The names in a list, which may also give them as file names."""
    listed = read_list(path)

    def bare(name: str) -> str:
        stem, dot, extension = name.rpartition(".")
        return stem if name not in found and f"{dot}{extension}".lower() in IMAGES else name

    return once([bare(name) for name in (*listed.names, *listed.repeated)], path)


def read_labels(
    top: Path, classes: int | Sequence[str] | None = None, ignored: int | Sequence[int] | None = None
) -> Labels:
    """The classes as given, or as ``classes.json`` or ``classes.txt`` in ``top`` has them."""
    table, text = top / "classes.json", top / "classes.txt"
    left = None if ignored is None else _values(ignored, f"ignored={ignored!r}")
    if isinstance(classes, int):
        if isinstance(classes, bool) or not 1 <= classes <= IGNORE:
            raise DataError(f"classes={classes}: {HOW_MANY}")
        entries: list[Any] = [f"class {k}" for k in range(classes)]
    elif classes is not None and not isinstance(classes, Sequence):
        raise DataError(f"classes={classes!r}: {HOW_MANY}")
    elif classes is not None:
        entries = [classes] if isinstance(classes, str) else list(classes)
    elif table.is_file():
        return _from_json(table, left)
    elif text.is_file():
        entries = read_lines(text)
    else:
        raise Missing(f"{text}: no such file, and no classes.json; name one class in each line, or give classes=NUMBER")
    return _labels(entries, left, text if classes is None else "classes")


def _from_json(path: Path, ignored: Sequence[int] | None) -> Labels:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: cannot read it as JSON ({error})") from error
    if isinstance(content, Mapping):
        own = content.get("ignored")
        if ignored is None and own is not None:
            ignored = _values(own, f'{path}: "ignored" is {own!r}')
        content = content.get("classes")
    if not isinstance(content, list):
        raise DataError(
            f'{path}: expected is a list of names, or of {{"name": ..., "id": ..., "colour": [r, g, b]}}, '
            'or {"classes": that list, "ignored": [255]}'
        )
    return _labels(content, ignored, path)


def _labels(entries: Sequence[Any], ignored: Sequence[int] | None, where: object) -> Labels:
    """Labels from names, or mappings with a name and perhaps id and colour."""
    names, colours, ids = [], list(spread_palette(len(entries))), []
    for k, entry in enumerate(entries):
        given = entry if isinstance(entry, Mapping) else {"name": entry}
        unknown = given.keys() - {"name", "id", "colour", "color"}
        if unknown or not isinstance(given.get("name"), str):
            raise DataError(f"{where}: class {k} is {entry!r}; give its name, or name, id and colour")
        colour = given.get("colour", given.get("color"))
        ids.append(given.get("id", k))
        try:
            if colour is not None:
                colours[k] = hex_palette(colour.lstrip("#"))[0] if isinstance(colour, str) else tuple(colour)
            right = whole(ids[k])
        except (TypeError, ValueError, IndexError):
            right = False
        if not right:
            raise DataError(f"{where}: class {k} is {entry!r}; its id is a whole number, its colour [r, g, b]")
        names.append(given["name"])
    left = tuple(value for value in IGNORED if value not in ids) if ignored is None else tuple(ignored)
    try:
        return Labels(tuple(names), tuple(colours), tuple(ids), left)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _values(ignored: Any, about: str) -> tuple[int, ...]:
    """Label values, of which one may stand alone; the error begins with what it is ``about``."""
    values = [ignored] if whole(ignored) else ignored
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(whole(value) for value in values):
        raise DataError(f"{about}; give label values that are whole numbers, such as 255 or [0, 255]")
    return tuple(values)
