"""Validation of constructor arguments and inputs.

A wrong type raises ``TypeError``; a wrong value raises :class:`~repgraph.errors.UsageError`, which is a ``ValueError``.
"""

import math
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from repgraph.errors import UsageError

FUSIONS = ("sum", "concat")
MAX_SIZE = 2**16  # upper limit for channels, nodes, classes and the like


def check_int(name: str, value: Any, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
    """Return ``value`` as an int within the limits; NumPy integers are accepted."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; expected an integer")
    value = operator.index(value)
    if not minimum <= value <= maximum:
        raise UsageError(f"{name} is {value}; expected an integer from {minimum} to {maximum}")
    return value


def check_number(name: str, value: Any, minimum: float = -math.inf, maximum: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; expected a number")
    number = float(value)
    if not math.isfinite(number) or not minimum <= number <= maximum:
        limits = "" if minimum == -math.inf else f" from {minimum:g} to {maximum:g}"
        raise UsageError(f"{name} is {value!r}; expected a finite number{limits}")
    return number


def check_size(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise UsageError(f"{name} is {value!r}; expected a height and a width")
    return check_int(name, value[0]), check_int(name, value[1])


def check_choice(name: str, value: Any, choices: Iterable[str]) -> Any:
    names = list(choices)
    if not isinstance(value, str) or value not in names:
        raise UsageError(f"{name} is {value!r}; expected one of {', '.join(map(repr, names))}")
    return value


def check_map(x: Any, channels: int) -> Tensor:
    """Return ``x`` if it is a tensor (B, channels, H, W) with H, W >= 1."""
    if not isinstance(x, Tensor):
        raise TypeError(f"input is a {type(x).__name__}; expected a torch.Tensor of shape (B, {channels}, H, W)")
    # In a trace, each comparison would warn.
    if not torch.jit.is_tracing() and (x.dim() != 4 or x.shape[1] != channels or x.shape[2] < 1 or x.shape[3] < 1):
        raise UsageError(f"input has shape {tuple(x.shape)}; expected (B, {channels}, H, W)")
    return x


def check_maps(maps: Sequence[Any], channels: Sequence[Any]) -> list[Tensor]:
    """Return the maps if they have these channels and one batch size."""
    if len(maps) != len(channels):
        raise UsageError(f"got {len(maps)} maps; expected {len(channels)} ({', '.join(map(str, channels))} channels)")
    found = [check_map(x, each) for x, each in zip(maps, channels, strict=True)]
    if not torch.jit.is_tracing() and any(x.shape[0] != found[0].shape[0] for x in found):
        raise UsageError(f"the maps have batch sizes {', '.join(str(x.shape[0]) for x in found)}; expected the same")
    return found
