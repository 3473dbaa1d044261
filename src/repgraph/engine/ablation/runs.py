"""From entries of tables to runs: a recipe and a key for each seed."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repgraph import recipes
from repgraph.engine.ablation.key import differences, key
from repgraph.engine.ablation.tables import KINDS, Entry, Table
from repgraph.errors import UsageError
from repgraph.recipes import Recipe
from repgraph.recipes.settings import nearest, only

STAGES = {"res2": "layer1", "res3": "layer2", "res4": "layer3", "res5": "layer4"}  # the paper's and timm's names
NODES = 9  # of layers in the backbone
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One training: ``key`` is the name of its folder; ``settings`` is how it differs from the data set's recipe."""

    label: str
    recipe: Recipe
    key: str
    settings: str

    @property
    def seed(self) -> int:
        return self.recipe.train.seed


@dataclass(frozen=True)
class Line:
    """An entry with its runs, one for each seed; or why it does not fit these data."""

    entry: Entry
    runs: tuple[Run, ...]
    misfit: str = ""


def datasets() -> list[str]:
    """The names of data sets that have a recipe with an RGNet, and images to test on.

    >>> datasets()
    ['ade20k', 'cityscapes', 'pascal_context', 'voc', 'camvid', 'stanford', 'folder', 'scenes']
    """
    found = [_dataset(name) for name in recipes.NAMES if name.endswith("-rgnet")]
    return [name for name in dict.fromkeys(found) if recipes.get(_recipe(name), Recipe).data.val_split]


def base(dataset: str, settings: Sequence[str] = ()) -> Recipe:
    """The recipe that entries start from: RGNet on a data set, tested at the end only, with images in memory."""
    known = datasets()
    if dataset not in known:
        raise UsageError(f"--dataset {dataset!r} has no recipe to start from{nearest(dataset, known)}")
    given = ["data.cache=true", "train.validate_every=0", *settings]
    return recipes.with_settings(recipes.get(_recipe(dataset), Recipe), given)


def _dataset(recipe: str) -> str:
    return recipe.removesuffix("-rgnet").removesuffix("-r50").removesuffix("-r101")


def _recipe(dataset: str) -> str:
    return f"{dataset}-r50-rgnet" if f"{dataset}-r50-rgnet" in recipes.NAMES else f"{dataset}-rgnet"


def lines(table: Table, start: Recipe, seeds: Sequence[int], tuned: Mapping[str, Settings] | None = None) -> list[Line]:
    """All runs of a table; an entry that these data's network cannot have says why. None that fits is an error."""
    found = [_line(entry, start, seeds, tuned) for entry in table.entries]
    own = [line for line in found if line.entry.name not in (table.reference, "baseline", "control")]
    if all(line.misfit for line in own or found):
        raise UsageError(f"table {table.name} does not fit {start.data.name}: {(own or found)[0].misfit}")
    return found


def _line(entry: Entry, start: Recipe, seeds: Sequence[int], tuned: Mapping[str, Settings] | None) -> Line:
    recipe, misfit = resolve(entry, start, (tuned or {}).get(entry.kind))
    if misfit:
        return Line(entry, (), misfit)
    each = [replace(recipe, train=replace(recipe.train, seed=seed)) for seed in seeds]
    usual = recipes.get(_recipe(start.data.name), Recipe)  # seed and weights have columns of their own
    usual = replace(usual, model=replace(usual.model, weights=start.model.weights))
    told = differences(replace(recipe, train=replace(recipe.train, seed=usual.train.seed)), usual)
    return Line(entry, tuple(Run(entry.label, one, key(one), told) for one in each))


def resolve(entry: Entry, start: Recipe, tuned: Settings | None = None) -> tuple[Recipe, str]:
    """The entry's recipe, and why the network cannot be built, if so: checked without building it."""
    settings = {**KINDS[entry.kind], **(tuned or {}), **entry.settings}
    stages = settings.get("model.inserted")
    if stages:
        if not _is_resnet(start.model.backbone):
            place = ", ".join(stages)
            return start, f"its backbone {start.model.backbone!r} is no ResNet, and has no stage called {place}"
        settings["model.inserted"] = {STAGES[name]: count for name, count in stages.items()}
        settings["model.inserted_options"] = {**start.model.context_options, "nodes": NODES}
    norm = start.model.context_options.get("norm_expand")
    if entry.kind == "control" and norm is not None:  # the convolutions of the layer that the recipe has
        settings = {**settings, "model.context_options.norm_expand": norm}
    recipe = applied(start, settings)
    recipe = replace(recipe, name=f"{start.data.name}-{entry.name}", description="")
    return recipe, _misfit(recipe)


def _is_resnet(backbone: str) -> bool:
    return any(name in backbone for name in ("resnet", "resnext"))


def _misfit(recipe: Recipe) -> str:
    model = recipe.model
    groups = model.context_options.get("groups", 1)
    inner = model.context_options.get("mid_channels") or model.channels // 2
    for name, value in (("groups", groups), ("mid_channels", inner)):
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"model.context_options.{name} is {value!r}; a whole number above 0 is needed")
    return f"groups={groups} does not divide the layer's {inner} inner channels" if inner % groups else ""


def applied(recipe: Recipe, settings: Settings) -> Recipe:
    """The recipe with settings as values; None takes an option out.

    >>> applied(recipes.get("scenes-rgnet", Recipe), {"model.context_options.radius": None}).model.context_options
    {'spread': 'ring', 'scale': 0.125, 'node_view': 1, 'norm_expand': True}
    """
    found = recipes.to_dict(recipe)
    for name, value in settings.items():
        *path, last = name.split(".")
        inner = found
        for part in path:
            inner = inner[part]
        if value is None:
            inner.pop(last, None)
        else:
            inner[last] = copy.deepcopy(value)  # later settings may go into it
    origin = f"the settings {', '.join(settings)}"
    return only(recipes.from_dict(found, origin), Recipe, origin)


def check_settings(settings: Iterable[str], tables: Iterable[Table], others: Mapping[str, str]) -> None:
    """Refuse settings that a table is there to vary, and ``others``, by who else says them."""
    varied = {name: table.name for table in tables for entry in table.entries for name in entry.settings}
    if "model.inserted" in varied:
        varied["model.inserted_options"] = varied["model.inserted"]
    varied |= {"model.context": "every table", "train.seed": "--seeds", "data.name": "--dataset", **others}
    for setting in settings:
        name = setting.partition("=")[0].strip()
        for other, who in varied.items():
            if name == other or other.startswith(f"{name}.") or name.startswith(f"{other}."):
                raise UsageError(f"--set {name}: {who} says that; leave it out")


def unique(found: Iterable[Line]) -> list[Run]:
    """Every run once, those of the first seeds first, so that tables fill evenly."""
    runs: dict[str, Run] = {}
    for line in found:
        for run in line.runs:
            runs.setdefault(run.key, run)
    order = {seed: i for i, seed in enumerate(dict.fromkeys(run.seed for run in runs.values()))}
    return sorted(runs.values(), key=lambda run: order[run.seed])
