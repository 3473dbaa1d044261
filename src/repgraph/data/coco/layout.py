"""Where the images and the annotation file of a split are."""

import os
from pathlib import Path

from repgraph.data.coco.annotations import Annotations, read_annotations
from repgraph.data.coco.dataset import InstanceData
from repgraph.data.labels import DataError
from repgraph.data.listing import Missing, need_folder

LAYOUT = "annotations/instances_SPLIT2017.json (or instances_SPLIT.json) and a folder SPLIT2017, images or JPEGImages"
_FILES = ("instances_{}2017", "instances_{}2014", "instances_{}", "image_info_{}2017", "image_info_{}-dev2017", "{}")
_FOLDERS = ("{name}", "images/{name}", "{split}", "images/{split}", "images", "JPEGImages")


def open_split(
    root: str | Path,
    split: str = "train",
    *,
    images: str | None = None,
    annotations: str | None = None,
    crowds: bool = True,
    empty: bool = True,
) -> InstanceData:
    """As :func:`repgraph.data.coco.load`, but images may be missing: the set's ``missing`` names them."""
    top = need_folder(Path(os.path.expanduser(root)), LAYOUT)
    path = _annotations(top, split, annotations)
    content = read_annotations(path)
    folder = _images(top, split, path, images)
    return InstanceData(split, top, content, folder, missing=_missing(content, folder), crowds=crowds, empty=empty)


def _annotations(top: Path, split: str, given: str | None) -> Path:
    if given is not None:
        return top / given.replace("{split}", split)
    places = [top / "annotations" / f"{pattern.format(split)}.json" for pattern in _FILES]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise Missing(f"{places[0]}: there is no such file; expected is {LAYOUT}, or give annotations=FILE")
    return found


def _images(top: Path, split: str, annotations: Path, given: str | None) -> Path:
    if given is not None:
        return need_folder(top / given.replace("{split}", split), LAYOUT)
    name = annotations.stem.removeprefix("instances_").removeprefix("image_info_").replace("-dev", "")
    places = [top / pattern.format(name=name, split=split) for pattern in _FOLDERS]
    found = next((folder for folder in places if folder.is_dir()), None)
    if found is None:
        raise DataError(f"{places[0]}: there is no such folder; expected is {LAYOUT}, or give images=FOLDER")
    return found


def _missing(content: Annotations, folder: Path) -> list[Path]:
    """Images that are not there; the folder is listed once, for it may hold a hundred thousand."""
    there = set(os.listdir(folder))
    files = [picture.file for picture in content.pictures]
    return [folder / file for file in files if file not in there and not (folder / file).is_file()]
