"""Context layers of heads and backbones, by the names that recipes and configs use."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from repgraph.errors import UsageError, nearest
from repgraph.layers import BottleneckRepGraph, DualAttention, NonLocal, SimpleRepGraph, checks, insert, spread
from repgraph.layers.non_local import ContextLayer
from repgraph.layers.pointwise import Pointwise, fuse_input
from repgraph.layers.pooling import PyramidPooling
from repgraph.layers.pyramid import PyramidRepGraph


class Control(ContextLayer):
    """The convolutions of :class:`~repgraph.layers.BottleneckRepGraph` without its attention, as a baseline."""

    INSERTED: ClassVar[dict[str, Any]] = {}

    def __init__(
        self, channels: int, mid_channels: int | None = None, *, fusion: str = "sum", norm_expand: bool = True
    ) -> None:
        super().__init__(channels, mid_channels, 1, fusion, None)
        self.reduce = Pointwise(channels, self.mid_channels, bias=False)
        self.reduce_norm = nn.BatchNorm2d(self.mid_channels)
        self.act = nn.ReLU()
        self.expand = Pointwise(self.mid_channels, channels, bias=False)
        self.expand_norm = nn.BatchNorm2d(channels) if norm_expand else nn.Identity()
        self.final_act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        feature = self.act(self.reduce_norm(self.reduce(checks.check_map(x, self.channels))))
        return self.final_act(fuse_input(x, feature, self.expand, self.expand_norm, self.fusion))


class NoContext(nn.Identity):
    """No context layer: returns its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels


Layer = Callable[..., nn.Module]
Options = Mapping[str, Any] | None
LAYERS: dict[str, Layer] = {
    "repgraph": BottleneckRepGraph,
    "paper": BottleneckRepGraph,
    "simple": SimpleRepGraph,
    "non_local": NonLocal,
    "dual": DualAttention,
    "psp": PyramidPooling,
    "control": Control,
    "none": NoContext,
    "pyramid": PyramidRepGraph,
}
IMPORT = "REPGRAPH_IMPORT"  # environment variable: modules that register context layers, separated by commas
PRESETS = {"paper": ("repgraph", BottleneckRepGraph.PAPER)}  # names of a layer with options
INSERTABLE = ("repgraph", "paper", "simple", "non_local", "dual")  # layers that start as the identity
# Defaults of layers in a head (docs/nodes.md). Elsewhere layers have the defaults of their constructors.
HEAD: dict[str, dict[str, Any]] = {
    "repgraph": {"spread": "ring", "rounds": 3, "radius": 12.0, "norm_expand": False},
    "simple": {"spread": "ring", "radius": 8.0, "node_view": 15},
    "control": {"norm_expand": False},
}
# Options that were removed, with the values that had no effect: existing configs contain them.
REMOVED: dict[str, Any] = {"offset_view": 1, "offset_unit": "pixels", "learn_scale": False}
# Options that were added, with the value for configs without them, which may differ from the default.
ADDED: dict[str, Any] = {"rounds": 1}
# Arguments that are not options: set elsewhere, or not serializable.
_NO_OPTIONS = ("self", "channels", "fusion", "norm_layer", "act_layer", "device", "dtype")
# Options that a config does not record: they depend on where the layer is used.
_NOT_RECORDED = ("backend", "attention", "final_act", "map_size", "zero_init")


def register_context(name: str, layer: Layer | None = None) -> Any:
    """Register your own context layer under a name for networks, recipes and the command line.

    ``layer`` is a class or function: ``layer(channels, **options)`` returns a module for maps (B, channels, H, W), with
    an attribute ``out_channels``, the channels of its output. Its keyword arguments are the options in
    ``context_options``, and ``fusion`` ("concat" or "sum") if it takes it. Without ``layer``, this is a decorator.

    A saved network stores only the name, so register the layer before loading one. Commands import the modules in
    ``repgraph --import MODULE`` and in the environment variable ``REPGRAPH_IMPORT``.
    """
    if layer is None:
        return lambda given: register_context(name, given)
    known = LAYERS.get(name)
    if known is not None and _origin(known) != _origin(layer):
        raise UsageError(f"context {name!r} is already registered, by {_origin(known)}; choose another name")
    LAYERS[name] = layer
    return layer


def _origin(layer: Layer) -> str:
    return f"{getattr(layer, '__module__', '')}.{getattr(layer, '__qualname__', layer)}"


def context_name(context: Any, decoder: str = "dilated") -> str:
    """Return the name of a context layer given by name or class; "repgraph" in a pyramid is RepGraph over its maps.

    Modules in ``REPGRAPH_IMPORT`` are imported if the name is unknown. A class is registered by its name.
    """
    if callable(context):
        own = getattr(context, "__name__", "context")
        name = next((name for name, layer in LAYERS.items() if layer is context), own)
        register_context(name, context)
        return name
    if isinstance(context, str) and context not in LAYERS:
        _import_modules()
    if not isinstance(context, str) or context not in LAYERS:
        known = f"; choose one of {', '.join(LAYERS)}, or register it (register_context, repgraph --import MODULE)"
        raise UsageError(f"context is {context!r}{nearest(context, LAYERS, known)}")
    if context == "pyramid" and decoder != "pyramid":
        raise UsageError("context 'pyramid' attends to several maps; it needs decoder='pyramid'")
    return "pyramid" if (decoder, context) == ("pyramid", "repgraph") else context


def _import_modules() -> None:
    modules = [module for module in os.environ.get(IMPORT, "").split(",") if module]
    if modules and os.getcwd() not in sys.path and "" not in sys.path:  # as for a script in this folder
        sys.path.append(os.getcwd())
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(f"cannot import {module!r} ({IMPORT}, --import): {error}") from error


def make_context(
    name: str, channels: int, *, fusion: str | None = None, options: Options = None, decoder: str = "dilated"
) -> Any:
    """Build the context layer of a head.

    ``fusion`` is "concat" by default, and "sum" for dual attention; ``options`` take precedence over :data:`HEAD`.
    """
    name = context_name(name, decoder)
    layer = LAYERS[name]
    check_options("context_options", name, options)
    resolved = resolve_preset(name, head_options(name, options))[1]
    if "fusion" in inspect.signature(layer).parameters:
        resolved["fusion"] = fusion or ("sum" if name == "dual" else "concat")
    try:
        made = layer(channels, **resolved)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"context {name!r}: {error}") from error
    if not isinstance(getattr(made, "out_channels", None), int):
        raise UsageError(f"context {name!r} has no attribute out_channels, the number of channels of its output")
    return made


def insert_context(
    body: nn.Module, where: dict[str, int], name: str, options: Options, argument: str
) -> dict[str, Any]:
    """Insert context layers into stages of a backbone, and return all their options; ``argument`` is for messages."""
    check_options(argument, name, options)
    try:
        insert(body, where, LAYERS[name], **resolve_preset(name, options)[1])
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"inserted layers: {error}") from error
    return full_options(name, options)


def check_options(argument: str, name: str, options: Options) -> None:
    """Raise if the layer does not have all of the options."""
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"{argument} of {name!r} is {options!r}; expected a dict")
    known = [option for option in inspect.signature(LAYERS[name]).parameters if option not in _NO_OPTIONS]
    for option in options or ():
        if option not in known:
            hint = nearest(option, known, f"; expected {', '.join(known) or 'none'}")
            raise UsageError(f"{argument} of {name!r} has no option {option!r}{hint}")


def head_options(name: str, options: Options) -> dict[str, Any]:
    """Return options of a layer in a head: the given ones, and the defaults of :data:`HEAD`."""
    given = options or {}
    found = {**HEAD.get(name, {}), **given}
    if "radius" not in given and not spread.has_radius(found.get("spread"), found.get("grid", 1)):
        found.pop("radius", None)
    return found


def resolve_preset(name: str, options: Options) -> tuple[str, dict[str, Any]]:
    """Return name and options of a layer; a preset is replaced by its layer and options."""
    layer, preset = PRESETS.get(name, (name, {}))
    return layer, {**preset, **(options or {})}


def full_options(name: str, options: Options, layer: nn.Module | None = None) -> dict[str, Any]:
    """Return all options with their values: a config must not depend on defaults.

    Values None are replaced by those of ``layer``. (Widths and scales of inserted layers differ, and stay None.)
    """
    parameters = inspect.signature(LAYERS[name]).parameters.items()
    defaults = {option: p.default for option, p in parameters if option not in (*_NO_OPTIONS, *_NOT_RECORDED)}
    found = {**defaults, **resolve_preset(name, options)[1]}
    if "spread" in found and found["radius"] is None and spread.has_radius(found["spread"], found["grid"]):
        found["radius"] = spread.RADIUS
    found.pop("backend", None)  # of this machine
    return {option: getattr(layer, option, value) if value is None else value for option, value in found.items()}


def stored_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of an existing config to this version (:data:`REMOVED`, :data:`ADDED`)."""
    kept = {option: value for option, value in options.items() if option not in REMOVED or value != REMOVED[option]}
    return {**ADDED, **kept} if "nodes" in kept else kept
