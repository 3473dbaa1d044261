"""Data sets for semantic segmentation: readers, transforms, and a check of the files.

``load("voc", "data/VOC2012", "train")`` opens a set; :class:`~repgraph.data.dataset.SegmentationData` says what it is.
Importing this package needs no more than the base install; torchvision and Pillow come in with the first set.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repgraph.data.labels import IGNORE, DataError, Labels

if TYPE_CHECKING:
    from repgraph.data.dataset import SegmentationData

NAMES = ("ade20k", "camvid", "cityscapes", "folder", "pascal_context", "scenes", "stanford", "voc")
INSTANCES = ("coco",)  # sets of objects, for detection: repgraph.data.coco.load

__all__ = ["IGNORE", "INSTANCES", "NAMES", "DataError", "Labels", "load"]


def load(name: str, root: str | Path | None, split: str = "train", **options: Any) -> "SegmentationData":
    """One split of a data set, from its layout as released (``docs/data.md``).

    Parameters
    ----------
    name:
        One of :data:`NAMES`.
    root:
        The folder of the set; None for ``"scenes"``, which have no files.
    split:
        ``"train"``, ``"val"``, ``"trainval"`` or ``"test"``, as far as the set has it.
    options:
        What the reader of the set takes besides, such as ``classes=3`` for ``"folder"``.

    Files that are missing are an error here; what is wrong inside files shows when they are read, or all at once with
    ``repgraph data check``.

    >>> load("vocc", "data")
    Traceback (most recent call last):
    repgraph.data.labels.DataError: unknown data set 'vocc'; did you mean 'voc'?
    """
    if name in INSTANCES:
        raise DataError(f"{name} has objects and no label maps; repgraph.data.{name}.load opens it")
    from repgraph.data.listing import need_all

    return need_all(open_set(name, root, split, **options))


def open_set(name: str, root: str | Path | None, split: str = "train", **options: Any) -> "SegmentationData":
    """As :func:`load`, but files may be missing: the set's ``missing`` names them."""
    return opener(name, root, **options)(split)


def opener(name: str, root: str | Path | None, **options: Any) -> Callable[[str], Any]:
    """What opens a split of the set, of :data:`INSTANCES` too; wrong names and options are found out at once."""
    read = reader(name)
    if root is None and name != "scenes":
        raise DataError(f"{name} needs the folder that its files are in")
    parameters = inspect.signature(read).parameters
    known = [option for option in parameters if option not in ("root", "split")]
    wrong = [option for option in options if option not in known]
    if wrong and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        there = f"its options are {', '.join(known)}" if known else "it has none"
        raise DataError(f"{name} has no option {wrong[0]!r}; {there}")
    for option, value in options.items():
        _check_kind(name, option, value, parameters)
    return lambda split: read(root, split, **options)


def _check_kind(name: str, option: str, value: object, parameters: Mapping[str, inspect.Parameter]) -> None:
    """Options that are texts or yes and no are looked at here; readers look at all others."""
    kinds = parameters[option].annotation if option in parameters else None
    for kind, needed in ((str, "a text"), (bool, "true or false")):
        if kinds in (kind, kind | None) and not isinstance(value, kind) and not (value is None and kinds != kind):
            raise DataError(f"{name}: {option}={value!r}; give {needed}")


def reader(name: str) -> Callable[..., Any]:
    """What opens the data set of that name: called with its folder, a split and options."""
    match name:  # one import for each, so that a set brings in no other's module
        case "ade20k":
            from repgraph.data import ade20k

            return ade20k.read
        case "camvid":
            from repgraph.data import camvid

            return camvid.read
        case "cityscapes":
            from repgraph.data import cityscapes

            return cityscapes.read
        case "coco":
            from repgraph.data import coco

            return coco.open_split
        case "folder":
            from repgraph.data import folder

            return folder.read
        case "pascal_context":
            from repgraph.data import pascal_context

            return pascal_context.read
        case "scenes":
            from repgraph.data import scenes

            return scenes.Scenes
        case "stanford":
            from repgraph.data import stanford

            return stanford.read
        case "voc":
            from repgraph.data import voc

            return voc.read
    close = difflib.get_close_matches(name, (*NAMES, *INSTANCES), n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join((*NAMES, *INSTANCES))}"
    raise DataError(f"unknown data set {name!r}; {hint}")
