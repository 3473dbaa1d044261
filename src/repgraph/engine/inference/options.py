"""The command-line options that say how images go through a network; a run's recipe has the defaults."""

import argparse
import os
from typing import Any

import torch

from repgraph.arguments import above_zero, positive, short, whole
from repgraph.engine.inference.settings import BATCH, MEMORY, MODES, PRECISIONS, STRIDE, Settings
from repgraph.recipes import Recipe

WORKERS = min(4, os.cpu_count() or 1)
OF_RECIPE = "default: as the run's recipe tests"


def add(parser: argparse.ArgumentParser) -> None:
    """The options that :func:`settings` reads, and ``--device`` and ``--workers``."""
    group = parser.add_argument_group("inference")
    put = group.add_argument
    put("--mode", choices=MODES, help=f"the whole image at once, or windows of it ({OF_RECIPE}, else whole)")
    put("--crop", type=_crop, metavar="N|HxW", help=f"the windows' size ({OF_RECIPE})")
    put("--stride", type=_stride, metavar="F", help=f"windows are F x crop apart ({OF_RECIPE}, else {STRIDE:.3g})")
    put("--scales", type=above_zero, nargs="+", metavar="F", help=f"average over these scales ({OF_RECIPE}, else 1)")
    put("--flip", action=argparse.BooleanOptionalAction, help=f"average with mirror images ({OF_RECIPE}, else no)")
    put("--batch", type=positive, default=BATCH, metavar="N", help="windows at once")
    put(
        "--memory",
        type=above_zero,
        default=MEMORY / 2**30,
        metavar="GIB",
        help="for maps of probabilities in mode slide; larger images are done in parts, with the same result",
    )
    put("--precision", choices=tuple(PRECISIONS), help="default: on a GPU that of the recipe's training, else fp32")
    put("--device", default="auto", help="cpu, cuda or cuda:1; auto is cuda where there is one")
    put("--workers", type=whole(0, 256), default=WORKERS, metavar="N", help="threads that read images ahead")


def settings(arguments: argparse.Namespace, recipe: Recipe | None, device: torch.device) -> Settings:
    """What the options say, and the recipe where they say nothing."""
    found: dict[str, Any] = {"batch": arguments.batch, "memory": max(1, int(arguments.memory * 2**30))}
    if recipe is not None:
        test = recipe.test
        found |= dict(mode=test.mode, crop=test.crop, stride=test.stride, scales=test.scales, flip=test.flip)
        found["precision"] = recipe.train.precision if device.type == "cuda" else "fp32"
    for name in ("mode", "crop", "stride", "scales", "flip", "precision"):
        given = getattr(arguments, name)
        if given is not None:
            found[name] = tuple(given) if isinstance(given, list) else given
    return Settings(**found)


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
