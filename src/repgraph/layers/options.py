"""What the layers' constructors accept; every refusal says what was given and what is needed."""

import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

Norm = Callable[..., nn.Module]  # called with the number of channels (and device, dtype)
Activation = Callable[[], nn.Module]

FUSIONS = ("sum", "concat")
MOST = 2**16  # channels, nodes, classes and the like: far more than is of use
_BY_STATISTICS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # what they are given decides their scale


def whole(name: str, value: Any, least: int = 1) -> int:
    """``value`` as a whole number of at least ``least`` and at most MOST, of which a layer may have some.

    >>> whole("nodes", 9)
    9
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):  # numpy's whole numbers too
        raise TypeError(f"{name} is {value!r}; a whole number is needed")
    value = operator.index(value)
    if value < least:
        raise ValueError(f"{name} is {value}; at least {least} is needed")
    if value > MOST:
        raise ValueError(f"{name} is {value}; at most {MOST} is possible")
    return value


def mid(channels: int, mid_channels: int | None, groups: int = 1) -> int:
    """The inner width C': as given, or half of the channels."""
    whole("channels", channels)
    width = max(1, channels // 2) if mid_channels is None else whole("mid_channels", mid_channels)
    if width % whole("groups", groups):
        raise ValueError(
            f"groups={groups} does not divide the {width} inner channels; give mid_channels or other groups"
        )
    return width


def fusion(value: Any) -> str:
    return choice("fusion", value, FUSIONS)


def scale(value: Any, usual: float) -> float:
    """A factor on logits; None for the ``usual`` one of the layer."""
    if value is None:
        return float(usual)
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise TypeError(f"scale is {value!r}; a finite number is needed, or None for the layer's own")
    return float(value)


def grid(value: Any) -> Any:
    if isinstance(value, str):
        if value != "map":
            raise ValueError(f"grid is {value!r}; a whole number or 'map' is needed")
        return value
    return whole("grid", value)


def view(value: Any) -> Any:
    if value == "map":
        return value
    if isinstance(value, str):
        raise ValueError(f"offset_view is {value!r}; an odd number or 'map' is needed")
    return odd("offset_view", value)


def odd(name: str, value: Any) -> int:
    if whole(name, value) % 2 == 0:
        raise ValueError(f"{name} is {value}; an odd number is needed, with the position in the middle")
    return int(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; True or False is needed")
    return value


def choice(name: str, value: Any, among: Sequence[str]) -> Any:
    if value not in among:
        raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(map(repr, among))}")
    return value


def given(**options: Any) -> str:
    """Options as they stand in a ``repr``."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def norm(layer: Norm | None, channels: int, **placed: Any) -> nn.Module:
    """A normalisation layer, on its device if it takes one; nothing for None."""
    if layer is None:
        return nn.Identity()
    try:
        return layer(channels, **placed)
    except TypeError:  # its constructor knows no device and dtype
        return _placed(layer(channels), **placed)


def norm_act(wanted: bool, layer: Norm, act: Activation, channels: int, **placed: Any) -> nn.Module:
    """Normalisation and activation, or nothing."""
    return nn.Sequential(norm(layer, channels, **placed), activation(act, **placed)) if wanted else nn.Identity()


def activation(layer: Activation, **placed: Any) -> nn.Module:
    """An activation; one with parameters goes where the layer is."""
    act = layer()
    if not isinstance(act, nn.Module):
        raise TypeError(f"act_layer gives a {type(act).__name__}; a class such as nn.ReLU is needed, or what makes one")
    return _placed(act, **placed)


def _placed(module: nn.Module, **placed: Any) -> nn.Module:
    given = {name: value for name, value in placed.items() if value is not None}
    return module.to(**given) if given else module


def zero_(last: nn.Module, last_norm: nn.Module | None = None) -> None:
    """Zero what ends a residual branch: its normalisation if that has parameters, else its convolution."""
    parts = [] if last_norm is None else list(last_norm.modules())
    learned = [part for part in parts if isinstance(getattr(part, "weight", None), nn.Parameter)]
    end = learned[-1] if learned else last
    if not learned and isinstance(last_norm, _BY_STATISTICS):
        raise ValueError(
            f"{last_norm} has no weight and bias to start from zero, and to zero the convolution before it would make "
            "its variance zero; take a norm_layer with them, or none"
        )
    for parameter in (end.weight, end.bias):
        if parameter is not None:
            nn.init.zeros_(parameter)  # type: ignore[arg-type]


def check(x: Any, channels: int) -> Tensor:
    """``x``, if it is a map of so many channels."""
    if not isinstance(x, Tensor):
        raise TypeError(f"the input is a {type(x).__name__}; a torch.Tensor (B, {channels}, H, W) is needed")
    if x.dim() != 4 or x.shape[1] != channels or x.shape[2] < 1 or x.shape[3] < 1:
        raise ValueError(f"the input has shape {tuple(x.shape)}; (B, {channels}, H, W) is needed")
    return x
