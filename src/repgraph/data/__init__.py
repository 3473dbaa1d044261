"""Data sets; importing this package needs only the base install, opening one needs torchvision and Pillow."""

import inspect
from pathlib import Path
from typing import Any

from repgraph.constants import DATASETS as NAMES
from repgraph.constants import IGNORE
from repgraph.constants import INSTANCE_DATASETS as INSTANCES
from repgraph.data.labels import DataError, Labels
from repgraph.errors import UsageError, nearest

__all__ = ["IGNORE", "INSTANCES", "NAMES", "DataError", "Labels", "load"]


def load(name: str, root: str | Path | None, split: str = "train", /, **options: Any) -> Any:
    """Open one split of a data set in the layout of its release (``docs/data.md``).

    Missing files raise an error here, damaged files when they are read; ``repgraph data check`` finds both.

    Args:
        name: One of :data:`NAMES`, for a :class:`~repgraph.data.dataset.SegmentationData`, or of :data:`INSTANCES`, for
            an :class:`~repgraph.data.coco.InstanceData`.
        root: Folder of the data set; None for ``"scenes"``, which has no files.
        split: ``"train"``, ``"val"``, ``"trainval"`` or ``"test"``, if the data set has it.
        options: Options of the reader, such as ``classes=3`` for ``"folder"``.
    """
    data = open_split(name, root, split, **options)
    if data.missing:
        raise DataError(
            f"{data.missing[0]}: no such file ({len(data.missing)} missing in {name} {split}); "
            f"repgraph data check {name} {data.root} lists all"
        )
    return data


def open_split(name: str, root: str | Path | None, split: str, /, **options: Any) -> Any:
    """Open a split like :func:`load`, but allow missing files (``data.missing``)."""
    if name not in (*NAMES, *INSTANCES):
        raise UsageError(f"unknown data set {name!r}{nearest(name, (*NAMES, *INSTANCES))}")
    if not root and name != "scenes":
        raise UsageError(f"root is required for {name!r} (command line: --data ROOT)")
    from pydantic import TypeAdapter, ValidationError

    from repgraph.data.files import NotFound
    from repgraph.data.readers import READERS

    read, splits, layout = READERS[name]
    parameters = inspect.signature(read).parameters
    known = {option: each.annotation for option, each in parameters.items() if option not in ("root", "split")}
    for option, value in options.items():
        if option not in known:
            raise UsageError(f"{name} has no option {option!r}{nearest(option, known) if known else ''}")
        try:
            options[option] = TypeAdapter(known[option]).validate_python(value)
        except ValidationError as error:
            raise UsageError(f"{name}: {option} is {value!r:.100}; {error.errors()[0]['msg'].lower()}") from None
    if splits and split not in splits:
        raise NotFound(f"{name} has no split {split!r}{nearest(split, splits)}")
    try:
        return read(root, split, **options)
    except NotFound as error:
        raise NotFound(f"{error}; expected {layout}") from error
