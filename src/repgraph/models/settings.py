"""What the networks' constructors accept in common; every refusal says what was given and what is needed."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from repgraph.errors import UsageError
from repgraph.layers import insert
from repgraph.models import context as contexts

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's colours, red, green, blue, from 0 to 1
STD = (0.229, 0.224, 0.225)


def insert_layers(body: nn.Module, where: Mapping[str, int], name: str, given: Mapping[str, Any], what: str) -> None:
    """Put the layers called ``name`` into stages of a backbone; ``what`` is the argument that the options came in."""
    try:
        insert(body, where, contexts.LAYERS[name], **contexts.checked(what, name, given))
    except (TypeError, ValueError) as error:
        raise UsageError(f"inserted layers: {error}") from error


def check_labels(labels: Any, classes: int) -> None:
    if labels is None:
        return
    if not isinstance(labels, dict):
        raise UsageError(f"labels is a {type(labels).__name__}; a dict is needed, such as Labels.to_dict() gives")
    names = labels.get("names")
    if names is not None and len(names) != classes:
        raise UsageError(f"labels has {len(names)} names for {classes} classes")


def colour(name: str, value: Any) -> tuple[float, float, float]:
    numbers = tuple(value) if isinstance(value, (list, tuple)) else ()
    fine = len(numbers) == 3 and all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in numbers)
    if not fine or (name == "std" and min(numbers) <= 0):
        kind = "positive numbers" if name == "std" else "numbers"
        raise UsageError(f"{name} is {value!r}; three {kind} are needed, for red, green and blue")
    return float(numbers[0]), float(numbers[1]), float(numbers[2])


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}; True or False is needed")
    return value


def number(name: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise UsageError(f"{name} is {value!r}; a number from {least:g} to {most:g} is needed")
    return float(value)
