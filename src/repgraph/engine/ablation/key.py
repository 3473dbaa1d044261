"""What tells one run from another: a hash of all in its recipe that decides what is learned and what is scored.

Recipes that mean the same have the same key: an option that is left out counts as its default, options of layers that
are not there do not count, weights go by the name of their file, and folders of one's own images by theirs. Settings
that came after the first results, and stand at their default, are left out: results stay valid when a version brings
new ones.
"""

import hashlib
import inspect
import json
from pathlib import PurePath
from typing import Any

from repgraph.recipes import Data, Recipe, to_dict

GENERATION = 1  # raise it when the same recipe learns something else than before: no earlier result counts then
# Where and how often, not what. The test at the end is at scale 1 and not flipped.
LEFT_OUT = """
    name description data.root data.workers data.cache train.period train.validate_every train.log_every
    train.accelerator train.devices train.graph test.scales test.flip
"""
# The settings of the first version: these count whatever their value.
FIRST = """
    model.backbone model.weights model.output_stride model.context model.channels model.auxiliary model.dropout
    data.name data.split data.val_split data.options data.crop data.scales data.flip data.limit data.val_limit
    optim.lr optim.head optim.offset optim.momentum optim.weight_decay optim.no_decay optim.power
    optim.auxiliary_weight optim.ohem optim.ohem_least optim.class_weights train.batch train.iterations
    train.accumulate train.seed train.precision train.norm train.compile train.channels_last train.deterministic
    test.mode test.crop test.stride
"""
_POSITIONS = ("spread", "radius", "offset_view", "offset_unit")
_NODES = ("mid_channels", "nodes", "grid", "groups", "scale", "learn_scale", *_POSITIONS)
OPTIONS: dict[str, tuple[str, ...]] = {
    "repgraph": _NODES,
    "simple": (*_NODES, "norm_qk"),
    "non_local": ("mid_channels", "groups", "scale", "share_query_key", "norm_qk"),
    "dual": (),
    "control": ("mid_channels",),
    "none": (),
}
_NO_MATTER = ("backend", "attention")  # which kernels compute it
_SAMPLING = ("repgraph", "simple")


def key(recipe: Recipe) -> str:
    """12 hexadecimal digits.

    >>> from repgraph import recipes
    >>> recipe = recipes.get("voc-r50-rgnet", Recipe)
    >>> key(recipe) == key(recipes.with_settings(recipe, ["data.workers=3", "model.context_options.nodes=9"]))
    True
    >>> key(recipe) == key(recipes.with_settings(recipe, ["train.seed=1"]))
    False
    """
    text = json.dumps([GENERATION, content(recipe)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def content(recipe: Recipe) -> dict[str, Any]:
    """What counts, by setting; numbers are floats and tuples are lists."""
    from repgraph.models.context import in_a_head, spelled_out

    given, usual = _flat(to_dict(recipe)), _flat(to_dict(Recipe("", Data(""))))
    model, out, always = recipe.model, LEFT_OUT.split(), FIRST.split()
    found = {
        name: value for name, value in given.items() if name not in out and (name in always or value != usual.get(name))
    }
    for name in ("context_options", "fusion", "inserted", "inserted_options"):
        found.pop(f"model.{name}", None)
    found["model.weights"] = weights_name(model.weights)
    if recipe.data.name == "folder" and recipe.data.root:  # whose images: as for weights, the name tells
        found["data.folder"] = PurePath(recipe.data.root).name
    context, own = spelled_out(model.context, in_a_head(model.context, model.context_options))
    kinds, found["model.context"] = {context}, context
    if context != "none":
        found["model.fusion"] = _fusion(context, model.fusion)
        found["model.context_options"] = effective(context, own)
    if model.inserted:
        inserted = dict(model.inserted_options)
        layer, own = spelled_out(str(inserted.pop("layer", "repgraph")), inserted)
        kinds.add(layer)
        found["model.inserted"] = dict(model.inserted)
        found["model.inserted_options"] = {"layer": layer, **effective(layer, own)}
    if not kinds & set(_SAMPLING):
        found.pop("optim.offset", None)
    return _plain(found)


def differences(recipe: Recipe, base: Recipe) -> str:
    """The settings that count and are not the base's, such as ``model.context="none"; train.seed=1``."""
    ours, theirs = content(recipe), content(base)
    names = sorted(name for name in ours if ours[name] != theirs.get(name))
    parts = []
    for name in names:
        value, other = ours[name], theirs.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            layer = ours["model.context"] if name == "model.context_options" else value.get("layer", "")
            usual = _defaults(layer)  # an option that stands at its default may not be among ours
            value = {
                option: inner
                for option, inner in {**usual, **value}.items()
                if inner != other.get(option, usual.get(option))
            }
        parts.append(f"{name}={json.dumps(_short(value))}")
    return "; ".join(parts)


def weights_name(weights: str) -> str:
    """Weights without the folder that they are in.

    >>> weights_name("/data/resnet50.safetensors"), weights_name("timm:resnet50.tv_in1k")
    ('resnet50.safetensors', 'timm:resnet50.tv_in1k')
    """
    return weights if weights.startswith("timm:") else PurePath(weights).name


def effective(layer: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of a layer that count: those given, and the defaults of the rest."""
    from repgraph.models.context import explicit

    usual = _defaults(layer)
    always = OPTIONS.get(layer, ())
    return {
        name: value
        for name, value in explicit(layer, given).items()
        if name in always or (name not in _NO_MATTER and value != usual.get(name))
    }


def _defaults(layer: str) -> dict[str, Any]:
    """Those of a layer's constructor."""
    from repgraph.models.context import LAYERS

    parameters = inspect.signature(LAYERS[layer]).parameters if layer in LAYERS else {}
    return {name: _plain(p.default) for name, p in parameters.items() if p.default is not p.empty}


def _fusion(context: str, fusion: str) -> str:
    return fusion if fusion != "auto" else ("sum" if context == "dual" else "concat")


def _flat(recipe: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section, value in recipe.items():
        if isinstance(value, dict):
            found |= {f"{section}.{name}": inner for name, inner in value.items()}
        else:
            found[section] = value
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and float(value) == value else value  # some large seeds are no floats


def _short(value: Any) -> Any:
    """Whole numbers as such, for people."""
    if isinstance(value, dict):
        return {name: _short(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_short(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
