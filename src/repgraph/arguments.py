"""How the values of command-line options are read: numbers in bounds, devices that are here."""

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from repgraph.errors import UsageError

DEVICES = ("cpu", "cuda")


def parse_device(text: str) -> torch.device:
    """The device of that name, if it is here; ``auto`` is cuda where there is one.

    >>> parse_device("cpu")
    device(type='cpu')
    """
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device {text!r} is not a device; give cpu, cuda or cuda:1") from None
    if device.type not in DEVICES:
        raise UsageError(f"--device {text!r} is not one that can be used; give cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise UsageError(f"--device {text!r} is not here (CUDA devices: {count}); see repgraph info")
    return device


def whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes whole numbers in these bounds."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= integer(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{short(text)} is not a whole number of at least {least} and at most {most}"
            )
        return int(text)

    return convert


positive = whole(1, 2**31 - 1)


def above_zero(text: str) -> float:
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{short(text)} is not a number above 0")
    return value


def not_negative(text: str) -> float:
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{short(text)} is not a number of at least 0")
    return value


def fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a number from 0 to 1")
    return value


def named_values(option: str, given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs of an option; a value is JSON, or else a text as it stands.

    >>> named_values("--option", ["classes=3", "masks=labels"])
    {'classes': 3, 'masks': 'labels'}
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} {short(text)}: give it as NAME=VALUE, such as classes=3")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def integer(text: str) -> float:
    """The number that decimal digits say; infinity for more of them than ``int`` takes from text."""
    return int(text) if len(text) <= 1000 else float("inf")


def short(text: str) -> str:
    """A mistake, quoted such that it fits on a line."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a number") from None
