"""The context layers that a head or a backbone can have, by the names that recipes and configs use."""

import difflib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch  # noqa: F401 - of the examples
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, DualAttention, NonLocal, SimpleRepGraph, options, spread
from repgraph.layers.fusion import fuse
from repgraph.layers.pointwise import Pointwise


class Control(nn.Module):
    """The convolutions of :class:`~repgraph.layers.BottleneckRepGraph` without its sampling: what they do alone.

    ``reduce`` (1 x 1, C -> C'), ``reduce_norm``, ReLU, ``expand`` (1 x 1, C' -> C), ``expand_norm``, fusion, ReLU.

    Args:
        channels: C, of the input.
        mid_channels: C', inside; half of C by default.
        fusion: "sum" (out C) or "concat" (out 2C).
        norm_expand: whether there is a normalisation after ``expand``.

    Example:
        >>> layer = Control(64, fusion="concat")
        >>> layer(torch.randn(2, 64, 17, 23)).shape, layer.out_channels
        (torch.Size([2, 128, 17, 23]), 128)
    """

    def __init__(
        self, channels: int, mid_channels: int | None = None, *, fusion: str = "sum", norm_expand: bool = True
    ) -> None:
        super().__init__()
        self.channels = options.whole("channels", channels)
        self.mid_channels = options.mid(channels, mid_channels)
        self.fusion = options.fusion(fusion)
        self.reduce = Pointwise(channels, self.mid_channels, bias=False)
        self.reduce_norm = nn.BatchNorm2d(self.mid_channels)
        self.act = nn.ReLU()
        self.expand = Pointwise(self.mid_channels, channels, bias=False)
        self.expand_norm = nn.BatchNorm2d(channels) if options.flag("norm_expand", norm_expand) else nn.Identity()
        self.final_act = nn.ReLU()

    @property
    def out_channels(self) -> int:
        return self.channels if self.fusion == "sum" else 2 * self.channels

    def forward(self, x: Tensor) -> Tensor:
        feature = self.act(self.reduce_norm(self.reduce(options.check(x, self.channels))))
        return self.final_act(fuse(x, feature, self.expand, self.expand_norm, self.fusion))

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.mid_channels}, {options.given(fusion=self.fusion)}"


class NoContext(nn.Identity):
    """No layer: its input as it is."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "repgraph": BottleneckRepGraph,
    "paper": BottleneckRepGraph,
    "simple": SimpleRepGraph,
    "non_local": NonLocal,
    "dual": DualAttention,
    "control": Control,
    "none": NoContext,
}
# What suits a layer in a head, where it is the only one and nothing was trained with it: docs/results.md. In other
# places layers have the defaults of their constructors.
HEAD: dict[str, dict[str, Any]] = {
    "repgraph": {"spread": "ring", "radius": 8.0, "node_view": 15, "norm_expand": False},
    "simple": {"spread": "ring", "radius": 8.0, "node_view": 15},
    "control": {"norm_expand": False},
}
PRESETS = {"paper": ("repgraph", BottleneckRepGraph.PAPER)}  # names for another layer with options
INSERTABLE = ("repgraph", "paper", "simple", "non_local", "dual")  # those that start as the identity
# Not what a config file could hold, or said elsewhere.
_NOT_OPTIONS = ("self", "channels", "fusion", "norm_layer", "act_layer", "device", "dtype")
# Of the time when not all options were written to config.json.
_BEFORE: dict[str, dict[str, Any]] = {
    "repgraph": {"scale": 1.0, "spread": "ring", "node_view": 1, "norm_expand": True},
    "simple": {"scale": 1.0, "spread": "ring", "node_view": 1},
    "control": {"norm_expand": True},
}
_OF_THE_PLACE = ("backend", "attention", "final_act", "zero_init")  # decided where the layer stands and runs


def make(
    name: str, channels: int, *, fusion: str | None = None, layer_options: Mapping[str, Any] | None = None
) -> nn.Module:
    """A context layer of a head, for maps of so many channels, which knows its ``out_channels``.

    Args:
        name: "repgraph", "paper" (the same in the paper's plain form), "simple", "non_local", "dual", "control" or
            "none".
        channels: of its input.
        fusion: "sum" or "concat"; None for "concat" where the layer has it: dual attention has "sum" only.
        layer_options: more of the layer's own, such as ``{"nodes": 27, "radius": 4}``, before those of :data:`HEAD`.

    Example:
        >>> layer = make("repgraph", 512, layer_options={"nodes": 27})
        >>> layer
        BottleneckRepGraph(
          512, 256, nodes=27, grid=1, groups=1, fusion='concat', scale=0.0039..., spread='ring', node_view=15...
        >>> make("none", 512).out_channels
        512
    """
    layer = LAYERS[choice("context", name, LAYERS)]
    given = checked("context_options", name, in_a_head(name, layer_options))
    if "fusion" in inspect.signature(layer).parameters:
        given["fusion"] = fusion or ("sum" if name == "dual" else "concat")
    try:
        return layer(channels, **given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"context {name!r}: {error}") from error


def choice(what: str, value: Any, among: Iterable[str]) -> str:
    """``value``, if it is one of the names; else an error that has them all and the nearest."""
    names = list(among)
    if value in names:
        return value
    close = difflib.get_close_matches(str(value), names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(map(repr, names))}"
    raise UsageError(f"unknown {what} {value!r}; {hint}")


def checked(what: str, name: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options for the layer of that name, if it has all that are given, with those that the name stands for."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"{what} of {name!r} is {given!r}; a dict of the layer's options is needed")
    own = [option for option in inspect.signature(LAYERS[name]).parameters if option not in _NOT_OPTIONS]
    for option in given or ():
        if option not in own:
            close = difflib.get_close_matches(str(option), own, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(own) or 'none'}"
            raise UsageError(f"{what} of {name!r}: there is no option {option!r}; {hint}")
    return spelled_out(name, given)[1]


def in_a_head(name: str, given: Mapping[str, Any] | None) -> Any:
    """Options of a head's layer: those given, and what suits it there.

    >>> in_a_head("repgraph", {"node_view": 1})
    {'spread': 'ring', 'radius': 8.0, 'node_view': 1, 'norm_expand': False}
    >>> in_a_head("repgraph", {"spread": "grid"})
    {'spread': 'grid', 'node_view': 15, 'norm_expand': False}
    """
    if given is not None and not isinstance(given, Mapping):
        return given
    found = {**HEAD.get(name, {}), **(given or {})}
    if "radius" not in (given or {}) and not spread.has_radius(found.get("spread"), found.get("grid", 1)):
        found.pop("radius", None)
    return found


def spelled_out(name: str, given: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """A layer's name and options, where the name may stand for another with options.

    >>> spelled_out("paper", {"spread": "ring"})
    ('repgraph', {'scale': 1.0, 'spread': 'ring'})
    """
    layer, preset = PRESETS.get(name, (name, {}))
    return layer, {**preset, **(given or {})}


def explicit(name: str, given: Mapping[str, Any] | None, layer: nn.Module | None = None) -> dict[str, Any]:
    """Options with the defaults of the rest: a later version, whose defaults are others, makes the same of them.

    Width and scale are those of the ``layer``. Without one they may be None, what suits the channels: inserted layers
    are of several widths.

    >>> explicit("non_local", {"groups": 2}, NonLocal(8, groups=2))
    {'mid_channels': 4, 'groups': 2, 'scale': 0.7071..., 'share_query_key': False, 'norm_qk': False}
    """
    parameters = inspect.signature(LAYERS[name]).parameters.items()
    usual = {option: p.default for option, p in parameters if option not in (*_NOT_OPTIONS, *_OF_THE_PLACE)}
    found = {**usual, **spelled_out(name, given)[1]}
    if "spread" in found and found["radius"] is None and spread.has_radius(found["spread"], found["grid"]):
        found["radius"] = spread.RADIUS
    return {option: getattr(layer, option, value) if value is None else value for option, value in found.items()}


def of_a_file(name: Any, given: Any) -> Any:
    """Options as a config has them; for those that it was written without, what they were then.

    >>> of_a_file("control", {"mid_channels": 8})
    {'norm_expand': True, 'mid_channels': 8}
    """
    if not isinstance(name, str) or name not in _BEFORE or (given is not None and not isinstance(given, Mapping)):
        return given
    found = {**_BEFORE[name], **(given or {})}
    if "spread" in found and "radius" not in found and spread.has_radius(found["spread"], found.get("grid", 1)):
        found["radius"] = 4.0
    return found


def plain(what: str, value: Any) -> Any:
    """A copy of ``value`` as a config file gives it back: tuples are lists.

    >>> plain("mean", (0.5, 0.5))
    [0.5, 0.5]
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} cannot be written to config.json: {error}") from error
