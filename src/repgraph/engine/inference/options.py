"""The command-line options that say how images go through a network; a run's recipe has the defaults."""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from repgraph.arguments import above_zero, positive, short, whole
from repgraph.engine.inference.settings import BATCH, MEMORY, MODES, PRECISIONS, STRIDE, Settings
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.recipes import AnyRecipe

WORKERS = min(4, os.cpu_count() or 1)
OF_RECIPE = "default: as the run's recipe tests"
OF_PIXELS = ("mode", "crop", "stride", "scales", "flip", "batch", "memory")  # how windows become maps of labels
OF_RECIPES = OF_PIXELS[:5]  # those of them that a recipe for such networks has


def add(parser: argparse.ArgumentParser) -> None:
    """The options that :func:`settings` reads, and ``--device`` and ``--workers``."""
    group = parser.add_argument_group("inference")
    put = group.add_argument
    put("--mode", choices=MODES, help=f"the whole image at once, or windows of it ({OF_RECIPE}, else whole)")
    put("--crop", type=_crop, metavar="N|HxW", help=f"the windows' size ({OF_RECIPE})")
    put("--stride", type=_stride, metavar="F", help=f"windows are F x crop apart ({OF_RECIPE}, else {STRIDE:.3g})")
    put("--scales", type=above_zero, nargs="+", metavar="F", help=f"average over these scales ({OF_RECIPE}, else 1)")
    put("--flip", action=argparse.BooleanOptionalAction, help=f"average with mirror images ({OF_RECIPE}, else no)")
    put("--batch", type=positive, metavar="N", help=f"windows at once (default: {BATCH})")
    put(
        "--memory",
        type=above_zero,
        metavar="GIB",
        help="for maps of probabilities in mode slide; larger images are done in parts, with the same result "
        f"(default: {MEMORY / 2**30:g})",
    )
    put("--precision", choices=tuple(PRECISIONS), help="default: on a GPU that of the recipe's training, else fp32")
    put("--device", default="auto", help="cpu, cuda or cuda:1; auto is cuda where there is one")
    put("--workers", type=whole(0, 256), default=WORKERS, metavar="N", help="threads that read images ahead")


def settings(arguments: argparse.Namespace, recipe: "AnyRecipe | None", device: torch.device) -> Settings:
    """What the options say, and the recipe where they say nothing."""
    found: dict[str, Any] = {"precision": precision(arguments, recipe, device)}
    test = getattr(recipe, "test", None)
    found |= {name: getattr(test, name) for name in OF_RECIPES if hasattr(test, name)}
    for name in OF_PIXELS:
        given = getattr(arguments, name)
        if given is not None:
            found[name] = tuple(given) if isinstance(given, list) else given
    if "memory" in found:
        found["memory"] = max(1, int(found["memory"] * 2**30))
    return Settings(**found)


def precision(arguments: argparse.Namespace, recipe: "AnyRecipe | None", device: torch.device) -> str:
    """The precision that the options or the recipe say."""
    usual = recipe.train.precision if recipe is not None and device.type == "cuda" else "fp32"
    return arguments.precision or usual


def refuse(arguments: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """An error for the first of these options that was given."""
    for name in names:
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name} {why}")


def described(settings: Settings) -> str:
    """The settings in words, as they stand under scores.

    >>> described(Settings(mode="slide", crop=520, scales=(0.5, 1), flip=True))
    'windows of 520 x 520, scales 0.5 1, flipped, fp32'
    """
    crop = settings.crop if isinstance(settings.crop, tuple) else (0, 0)
    parts = ["whole images" if settings.mode == "whole" else f"windows of {crop[0]} x {crop[1]}"]
    parts.append(f"scale{'s' * (len(settings.scales) > 1)} " + " ".join(f"{scale:g}" for scale in settings.scales))
    return ", ".join([*parts, *(["flipped"] if settings.flip else []), settings.precision])


def _crop(text: str) -> tuple[int, int]:
    height, times, width = text.lower().partition("x")
    sides = [height, width if times else height]
    if not all(side.isdecimal() and len(side) < 7 and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f"{short(text)} is not a size; give a side in pixels, or height x width")
    return int(sides[0]), int(sides[1])


def _stride(text: str) -> float:
    value = above_zero(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{short(text)} is more than 1; windows would leave gaps")
    return value
