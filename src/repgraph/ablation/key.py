"""The key of a run: a hash of everything in its recipe that changes its scores.

Equivalent recipes have the same key: an option that is left out counts as its default, options of absent layers do not
count, weights count by their file name, and a folder of images by its name. Settings that were introduced after the
first results only count if they differ from their default, which keeps those results valid.
"""

import functools
import hashlib
import inspect
import json
from pathlib import PurePath
from typing import Any

from repgraph.constants import DECODERS
from repgraph.models.context import LAYERS, REMOVED, context_name, full_options, head_options, resolve_preset
from repgraph.recipes import Data, Recipe, to_dict

GENERATION = 1  # increase it if a change alters the results of a recipe: this invalidates all earlier results
# Settings that do not change the result. Validation is at scale 1 without flip; `content` adds the options of layers.
LEFT_OUT = """
    name description data.root data.workers data.cache train.period train.validate_every train.log_every
    train.accelerator train.devices train.graph test.scales test.flip
    model.context_options model.fusion model.inserted model.inserted_options
"""
# The settings of the first version, which always count.
FIRST = """
    model.backbone model.weights model.output_stride model.context model.channels model.auxiliary model.dropout
    data.name data.split data.val_split data.options data.crop data.scales data.flip data.limit data.val_limit
    optim.lr optim.head optim.offset optim.momentum optim.weight_decay optim.no_decay optim.power
    optim.auxiliary_weight optim.ohem optim.ohem_least optim.class_weights train.batch train.iterations
    train.accumulate train.seed train.precision train.norm train.compile train.channels_last train.deterministic
    test.mode test.crop test.stride
"""
_NODES = ("mid_channels", "nodes", "grid", "groups", "scale", "spread", "radius")
OPTIONS: dict[str, tuple[str, ...]] = {
    "repgraph": _NODES,
    "simple": (*_NODES, "norm_qk"),
    "non_local": ("mid_channels", "groups", "scale", "share_query_key", "norm_qk"),
    "control": ("mid_channels",),
}
KERNELS = ("backend", "attention")  # options that choose a kernel and do not count
SAMPLING = ("repgraph", "simple")
OFFSETS = (*SAMPLING, "pyramid")  # layers with an offset convolution


def key(recipe: Recipe) -> str:
    """Return the key of a recipe, 12 hexadecimal digits."""
    text = json.dumps([GENERATION, content(recipe)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def content(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that count, by name; numbers are floats and tuples are lists."""
    usual = _flat(Recipe(name="usual", data=Data(name="")))
    found = {
        name: value
        for name, value in _flat(recipe).items()
        if name not in LEFT_OUT.split() and (name in FIRST.split() or value != usual[name])
    }
    model, fusion = recipe.model, recipe.model.fusion
    stride, channels = DECODERS[model.decoder]
    found["model.output_stride"], found["model.channels"] = model.output_stride or stride, model.channels or channels
    found["model.weights"] = weights_name(model.weights)
    if recipe.data.name == "folder" and recipe.data.root:  # by name, like weights
        found["data.folder"] = PurePath(recipe.data.root).name
    name = context_name(model.context, model.decoder)
    context, options = resolve_preset(name, head_options(name, model.context_options))
    layers, found["model.context"] = {context}, context
    if context != "none":
        found["model.fusion"] = fusion if fusion != "auto" else ("sum" if context == "dual" else "concat")
        found["model.context_options"] = _effective(context, options)
    if model.inserted:
        given = dict(model.inserted_options)
        layer, options = resolve_preset(str(given.pop("layer", "repgraph")), given)
        layers.add(layer)
        found["model.inserted"] = model.inserted
        found["model.inserted_options"] = {"layer": layer, **_effective(layer, options)}
    if not layers & set(OFFSETS):
        found.pop("optim.offset", None)
    return _plain(found)


def differences(recipe: Recipe, base: Recipe) -> str:
    """Return how a recipe differs from another, such as ``model.context="none"; train.seed=1``."""
    ours, theirs = content(recipe), content(base)
    parts = []
    for name in sorted(name for name in ours if ours[name] != theirs.get(name)):
        value, other = ours[name], theirs.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            usual = _defaults(value.get("layer", ours["model.context"]))  # ours may lack options at their default
            full = {**usual, **value}
            value = {option: full[option] for option in full if full[option] != other.get(option, usual.get(option))}
        whole = json.loads(json.dumps(value), parse_float=lambda text: _number(float(text), int))
        parts.append(f"{name}={json.dumps(whole)}")
    return "; ".join(parts)


def weights_name(weights: str) -> str:
    """Return weights without their folder."""
    return weights if weights.startswith("timm:") else PurePath(weights).name


def _effective(layer: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a layer that count: the given ones, and the defaults of the rest."""
    usual, always = _defaults(layer), OPTIONS.get(layer, ())
    found = {
        name: value
        for name, value in full_options(layer, given).items()
        if name in always or (name not in KERNELS and value != usual.get(name))
    }
    return {**REMOVED, **found} if layer in SAMPLING else found  # removed options keep earlier results valid


@functools.cache
def _defaults(layer: str) -> dict[str, Any]:
    parameters = inspect.signature(LAYERS[layer]).parameters
    return {name: _plain(p.default) for name, p in parameters.items() if p.default is not p.empty}


def _flat(recipe: Recipe) -> dict[str, Any]:
    sections = ((section, values) for section, values in to_dict(recipe).items() if isinstance(values, dict))
    return {f"{section}.{name}": value for section, values in sections for name, value in values.items()}


def _plain(value: Any) -> Any:
    """Return a value as read from JSON, with floats for integers."""
    return json.loads(json.dumps(value, default=str), parse_int=lambda text: _number(int(text), float))


def _number(value: Any, kind: type) -> Any:
    """Convert a number to ``kind`` if that is exact: a large seed may not be a float, nor a float an integer."""
    return kind(value) if kind(value) == value else value
