"""The named recipes: one row for each data set, times backbone, times what stands between it and the classifier.

Rates, batches, iterations, crops and test scales of ADE20K, Cityscapes and PASCAL-Context are the paper's; what it
leaves open follows its authors' other work (docs/training.md). The others are short schedules for data of their size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, overload

from repgraph.errors import UsageError
from repgraph.recipes import coco, scenes
from repgraph.recipes.recipe import Context, Data, Model, Optim, Recipe, Test
from repgraph.recipes.sections import Train
from repgraph.recipes.settings import AnyRecipe, R, nearest, only

BACKBONES = {"r50": "resnet50", "r101": "resnet101"}
CONTEXTS: dict[str, Context] = {"baseline": "none", "nl": "non_local", "rgnet": "repgraph"}
_TITLES = {"baseline": "the backbone baseline", "nl": "the non-local baseline", "rgnet": "RGNet"}
_NETWORKS = {"r50": "ResNet-50", "r101": "ResNet-101"}


@dataclass(frozen=True)
class Row:
    """A data set: its recipe but for the network, and scores that the paper reports for some networks."""

    title: str
    data: Data
    optim: Optim
    train: Train
    test: Test
    paper: Mapping[str, str] = field(default_factory=dict)


def _slide(crop: int, *scales: float) -> Test:
    return Test(mode="slide", crop=(crop, crop), scales=scales, flip=True)


# Offsets learn as fast as the head that they are in.
_SHORT: dict[str, Any] = dict(optim=Optim(lr=0.01, head=10.0, offset=10.0), train=Train(batch=16, iterations=2_500))
_CITYSCAPES: dict[str, Any] = dict(
    optim=Optim(lr=0.01, weight_decay=5e-4),
    train=Train(batch=8, iterations=40_000, period=1_000, validate_every=5),
    test=_slide(769, 0.5, 0.75, 1.0, 1.5),
)

ROWS: dict[str, Row] = {
    "ade20k": Row(
        "ADE20K",
        Data("ade20k", crop=(520, 520)),
        Optim(lr=0.02, weight_decay=1e-4),
        Train(batch=16, iterations=100_000, period=1_000, validate_every=10),
        _slide(520, 0.5, 0.75, 1.0, 1.25),
        {
            "r50-baseline": "36.48 mIoU, 77.57 pixel accuracy, on val",
            "r50-nl": "40.97 mIoU, 80.01 pixel accuracy, on val",
            "r50-rgnet": "44.02 mIoU, 81.12 pixel accuracy, on val; 43.12 and 80.27 in its ablations",
            "r101-rgnet": "45.8 mIoU, 81.76 pixel accuracy, on val",
        },
    ),
    "cityscapes": Row("Cityscapes", Data("cityscapes", crop=(769, 769)), **_CITYSCAPES),
    "cityscapes_trainval": Row(
        "Cityscapes, train and val together, for its test server",
        Data("cityscapes", split="trainval", val_split="", crop=(769, 769)),
        **_CITYSCAPES,
        paper={"r101-rgnet": "81.5 mIoU, on test"},
    ),
    "pascal_context": Row(
        "PASCAL-Context, 59 classes",
        Data("pascal_context", crop=(520, 520)),
        Optim(lr=0.02, weight_decay=1e-4),
        Train(batch=16, iterations=80_000, period=1_000, validate_every=10),
        _slide(520, 0.5, 0.75, 1.0, 1.25),
        {"r101-rgnet": "53.9 mIoU, on val"},
    ),
    "voc": Row("PASCAL VOC 2012", Data("voc", crop=(320, 320)), test=Test(crop=(320, 320)), **_SHORT),
    "camvid": Row("CamVid", Data("camvid", crop=(360, 480)), test=Test(crop=(360, 480)), **_SHORT),
    "stanford": Row("Stanford Background", Data("stanford", crop=(240, 320)), test=Test(crop=(240, 320)), **_SHORT),
    "folder": Row(
        "a folder of images and masks",
        Data("folder", crop=(512, 512)),
        Optim(lr=0.01, head=10.0, offset=10.0),
        Train(batch=16, iterations=5_000),
        Test(mode="slide", crop=(512, 512)),
    ),
}


def _recipe(row: str, backbone: str, context: str) -> Recipe:
    name, said = f"{row}-{backbone}-{context}", ROWS[row]
    lines = [
        f"{_TITLES[context][0].upper()}{_TITLES[context][1:]}, {_NETWORKS[backbone]}, on {said.title}.",
        f"  repgraph train {name} --data ROOT --weights FILE --out runs/{name}",
    ]
    if paper := said.paper.get(f"{backbone}-{context}"):
        lines.append(f"  The paper: {paper}.")
    return Recipe(
        name=name,
        data=said.data,
        model=Model(backbone=BACKBONES[backbone], context=CONTEXTS[context]),
        optim=said.optim,
        train=said.train,
        test=said.test,
        description="\n".join(lines),
    )


def _all() -> dict[str, AnyRecipe]:
    found: list[AnyRecipe] = [_recipe(row, b, c) for row in ROWS for b in BACKBONES for c in CONTEXTS]
    found += [*scenes.RECIPES, *coco.RECIPES]
    return {recipe.name: recipe for recipe in found}


_RECIPES = _all()
NAMES: tuple[str, ...] = tuple(_RECIPES)


@overload
def get(name: str) -> AnyRecipe: ...
@overload
def get(name: str, kind: type[R]) -> R: ...
def get(name: str, kind: Any = None) -> Any:
    """The recipe of that name; with a ``kind``, such as :class:`~repgraph.recipes.Recipe`, no other will do.

    >>> get("ade20k-r101-rgnet").train.iterations
    100000
    """
    if name not in _RECIPES:
        raise UsageError(f"there is no recipe {name!r}{_nearest(name)} (repgraph train --list shows all)")
    return only(_RECIPES[name], kind, name)


def _nearest(name: str) -> str:
    found = nearest(name, NAMES)
    return found if "did you mean" in found else ""
