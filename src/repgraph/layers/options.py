"""What the layers' constructors accept; every refusal says what was given and what is needed."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Norm = Callable[..., nn.Module]  # called with the number of channels (and device, dtype)
Activation = Callable[[], nn.Module]

FUSIONS = ("sum", "concat")


def whole(name: str, value: Any, least: int = 1) -> int:
    """``value`` as a whole number of at least ``least``.

    >>> whole("nodes", 9)
    9
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; a whole number is needed")
    if value < least:
        raise ValueError(f"{name} is {value}; at least {least} is needed")
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
    if value not in FUSIONS:
        raise ValueError(f"unknown fusion {value!r}: choose one of {', '.join(map(repr, FUSIONS))}")
    return value


def scale(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"scale is {value!r}; a finite number is needed")
    return float(value)


def grid(value: Any) -> Any:
    if isinstance(value, str):
        if value != "map":
            raise ValueError(f"grid is {value!r}; a whole number or 'map' is needed")
        return value
    return whole("grid", value)


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
        return layer(channels).to(**placed)


def norm_act(wanted: bool, layer: Norm, act: Activation, channels: int, **placed: Any) -> nn.Module:
    """Normalisation and activation, or nothing."""
    return nn.Sequential(norm(layer, channels, **placed), act()) if wanted else nn.Identity()


def zero_(last: nn.Module, last_norm: nn.Module | None = None) -> None:
    """Zero what ends a residual branch: its normalisation if that has a weight, else its convolution."""
    weight = getattr(last_norm, "weight", None)
    end = last if last_norm is None or weight is None else last_norm
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
