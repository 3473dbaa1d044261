"""The options that say which images of which data set; the recipe of the network's run has the defaults."""

import argparse
from typing import TYPE_CHECKING, Any

from repgraph.arguments import named_values, positive
from repgraph.data import INSTANCES, NAMES
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.data.coco import InstanceData
    from repgraph.data.dataset import SegmentationData
    from repgraph.recipes import AnyRecipe

OF_TRAINING = ("crowds", "empty")  # options of a recipe's data that leave out what counts in a test


def add_data(parser: argparse.ArgumentParser, split: str) -> None:
    """The options that :func:`open_data` and :func:`open_objects` read."""
    put = parser.add_argument
    names = sorted((*NAMES, *INSTANCES))
    put("--data", metavar="ROOT", help="folder of the data set (default: the recipe's)")
    put(
        "--dataset",
        choices=names,
        metavar="NAME",
        help=f"which one: {', '.join(names)} (default: the recipe's; coco for a Mask R-CNN)",
    )
    put("--split", metavar="SPLIT", help=f"train, val, test ... ({split})")
    put("--option", action="append", metavar="NAME=VALUE", help="of the set's reader, such as classes=3")
    put("--limit", type=positive, metavar="N", help="only the first N images")


def open_data(arguments: argparse.Namespace, recipe: "AnyRecipe | None") -> "SegmentationData":
    """The images with label maps that the options name, or the recipe where they say nothing."""
    from repgraph import data as sets

    name = arguments.dataset or (recipe.data.name if recipe else None)
    if name is None:
        raise UsageError(f"--dataset is needed: there is no recipe beside the network; one of {', '.join(sets.NAMES)}")
    if name in INSTANCES:
        raise UsageError(f"the network labels pixels, and {name} has objects; give one of {', '.join(sets.NAMES)}")
    root, split, options = _where(arguments, recipe, name)
    return sets.load(name, root, split, **options)


def open_objects(arguments: argparse.Namespace, recipe: "AnyRecipe | None") -> "InstanceData":
    """The images with objects that the options name, or the recipe where they say nothing."""
    from repgraph import data as sets
    from repgraph.data.listing import need_all

    name = arguments.dataset or (recipe.data.name if recipe else "coco")
    if name not in INSTANCES:
        raise UsageError(f"the network finds objects, and {name} has label maps; give --dataset coco and --data")
    root, split, options = _where(arguments, recipe, name, leave=OF_TRAINING)
    return need_all(sets.opener(name, root, **options)(split))


def _where(
    arguments: argparse.Namespace, recipe: "AnyRecipe | None", name: str, leave: tuple[str, ...] = ()
) -> tuple[str | None, str, dict[str, Any]]:
    """Folder, split and options of the reader."""
    own = recipe if recipe is not None and recipe.data.name == name else None
    root = arguments.data or (own.data.root if own else None) or None
    if root is None and name != "scenes":
        raise UsageError(f"--data is needed: the folder of {name}")
    known = {key: value for key, value in (own.data.options if own else {}).items() if key not in leave}
    split = arguments.split or (own.data.val_split if own else "") or "val"
    return root, split, known | named_values("--option", arguments.option or [])
