"""Annotation files in COCO's format: images, categories and objects, each checked when the file is opened.

What is wrong with the file as a whole is an error that names it. What is wrong with single objects is noted, and they
are left out: no object that is left can end a training run later.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repgraph.data.coco.objects import Object, Unusable, parse
from repgraph.data.labels import DataError, Labels, spread_palette
from repgraph.data.listing import Missing
from repgraph.data.problem import Problem

NO_OBJECT = "annotations that cannot be read"
NO_IMAGE, NO_CATEGORY = "annotations of images that are not in the file", "annotations of unknown categories"
REPEATED = "annotations whose id is taken by another"
PIXELS = 2**30  # of an image: no program here opens larger ones, and a mask of theirs would not fit into memory


@dataclass
class Picture:
    """An image as the file lists it: its own id, file name and size, and its objects."""

    id: int
    file: str
    height: int
    width: int
    objects: list[Object] = field(default_factory=list)


@dataclass(frozen=True)
class Annotations:
    """What an annotation file says. ``labels`` has the categories in the order of their ids: label k is class k - 1."""

    path: Path
    labels: Labels
    pictures: list[Picture]
    labelled: bool  # whether it has annotations at all: files of test splits have none
    problems: list[Problem]


def read_annotations(path: Path) -> Annotations:
    """Reads an annotation file."""
    content = _parsed(path)
    labels = _categories(content, path)
    pictures = _pictures(content, path)
    entries = content.get("annotations")
    if entries is not None and not isinstance(entries, list):
        raise DataError(f"{path}: 'annotations' is a {type(entries).__name__}; a list is needed")
    found = Annotations(path, labels, list(pictures.values()), entries is not None, [])
    label_of = {number: k for k, number in enumerate(labels.ids, 1)}
    seen: set[int] = set()
    for place, entry in enumerate(entries or []):
        try:
            _add(entry, pictures, label_of, seen)
        except Unusable as error:
            number = entry.get("id") if isinstance(entry, Mapping) else None
            about = f"annotation {number}" if isinstance(number, int) else f"the entry at place {place}"
            about += f" of image {pictures[entry['image_id']].file}" if _known(entry, pictures) else ""
            found.problems.append(Problem(error.kind, about, error.detail))
    return found


def _add(entry: Any, pictures: Mapping[int, Picture], label_of: Mapping[int, int], seen: set[int]) -> None:
    if not isinstance(entry, Mapping) or not all(_whole(entry.get(k)) for k in ("id", "image_id", "category_id")):
        raise Unusable(NO_OBJECT, "id, image_id and category_id are needed, as whole numbers")
    if entry["id"] in seen:
        raise Unusable(REPEATED, "the first one counts")
    seen.add(entry["id"])
    picture = pictures.get(entry["image_id"])
    if picture is None:
        raise Unusable(NO_IMAGE, f"image_id {entry['image_id']}")
    if entry["category_id"] not in label_of:
        raise Unusable(NO_CATEGORY, f"category_id {entry['category_id']}")
    picture.objects.append(parse(entry, label_of[entry["category_id"]], picture.height, picture.width))


def _known(entry: Any, pictures: Mapping[int, Picture]) -> bool:
    return isinstance(entry, Mapping) and _whole(entry.get("image_id")) and entry["image_id"] in pictures


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise Missing(f"{path}: there is no such annotation file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot read it ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot read it as JSON ({error}); it is damaged or cut short") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: a {type(content).__name__}; an object with images, annotations, categories is needed")
    return content


def _listed(content: Mapping[str, Any], key: str, path: Path) -> list[Mapping[str, Any]]:
    """The entries of a list that has to be there, each with an id of its own."""
    entries = content.get(key)
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: {key!r} has to be a list with something in it")
    ids: set[int] = set()
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not _whole(entry.get("id")):
            raise DataError(f"{path}: {key}[{place}] has no id that is a whole number")
        if entry["id"] in ids:
            raise DataError(f"{path}: two of {key!r} have the id {entry['id']}; give each its own")
        ids.add(entry["id"])
    return entries


def _categories(content: Mapping[str, Any], path: Path) -> Labels:
    entries = sorted(_listed(content, "categories", path), key=lambda entry: entry["id"])
    for entry in entries:
        if not isinstance(entry.get("name"), str):
            raise DataError(f"{path}: category {entry['id']} has no name")
    ids = tuple(entry["id"] for entry in entries)
    try:
        return Labels(tuple(entry["name"] for entry in entries), spread_palette(len(ids)), ids)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _pictures(content: Mapping[str, Any], path: Path) -> dict[int, Picture]:
    pictures = {}
    for entry in _listed(content, "images", path):
        file, height, width = entry.get("file_name"), _size(entry, "height"), _size(entry, "width")
        if not isinstance(file, str) or not file:
            raise DataError(f"{path}: image {entry['id']} has no file_name")
        if not height or not width:
            raise DataError(f"{path}: image {entry['id']} ({file}) has no height and width above 0")
        if height * width > PIXELS:
            raise DataError(f"{path}: image {entry['id']} ({file}) has a height and width of more than {PIXELS} pixels")
        pictures[entry["id"]] = Picture(entry["id"], file, height, width)
    return pictures


def _size(entry: Mapping[str, Any], key: str) -> int:
    """A side of an image; 0 if it is none."""
    value = entry.get(key)
    return max(0, value) if isinstance(value, int) and not isinstance(value, bool) else 0


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
