"""Options that several commands share."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from repgraph.errors import UsageError
from repgraph.files import parse_json

RECIPE = "the recipe's"
NOT_FOR_DETECTORS = "is for segmentation; a detector resizes images by itself (min_size in its config)"
WORKERS = min(4, os.cpu_count() or 1)

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Folder of a run or a network, a checkpoint, or a .safetensors file.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N; auto is cuda if it is available.")]
Workers = Annotated[int, typer.Option(min=0, max=256, help="Threads that read images.")]
Precision = Annotated[
    Literal["fp32", "bf16", "fp16"] | None,
    typer.Option(help="Precision of the network.", show_default="the recipe's on a GPU, else fp32"),
]

# A split of a data set.
Root = Annotated[str | None, typer.Option("--data", metavar="ROOT", help="Folder of the data.", show_default=RECIPE)]
Dataset = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Data set: ade20k, camvid, cityscapes, coco, folder, pascal_context, scenes, stanford or voc.",
        show_default=f"{RECIPE}, or coco for a Mask R-CNN",
    ),
]
ReaderOptions = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Options of the data set's reader, such as classes=3; several at once."),
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="Use only the first N images.")]

# How images run through a segmentation network.
Mode = Annotated[
    Literal["whole", "slide"] | None,
    typer.Option(help="Whole images, or overlapping windows.", show_default=f"{RECIPE}, else whole"),
]
Crop = Annotated[
    str | None, typer.Option(metavar="N|HxW", help="Size of the windows in pixels.", show_default=f"{RECIPE}, else 512")
]
Stride = Annotated[
    float | None,
    typer.Option(help="Distance between windows, as a fraction of the crop.", show_default=f"{RECIPE}, else 2/3"),
]
Scales = Annotated[
    list[float] | None,
    typer.Option(metavar="F", help="Average over these scales; several at once.", show_default=f"{RECIPE}, else 1"),
]
Flip = Annotated[
    bool | None, typer.Option("--flip/--no-flip", help="Also mirror images.", show_default=f"{RECIPE}, else no")
]
Batch = Annotated[int | None, typer.Option(min=1, help="Windows per batch.", show_default="4")]
Memory = Annotated[
    float | None,
    typer.Option(
        metavar="GIB", help="Memory for probabilities with --mode slide; larger maps use tiles.", show_default="2"
    ),
]


def window_settings(
    mode: str | None,
    crop: str | None,
    stride: float | None,
    scales: Sequence[float] | None,
    flip: bool | None,
    batch: int | None,
    memory: float | None,
) -> dict[str, Any]:
    """Return the options that were given, as fields of :class:`repgraph.inference.Settings`."""
    given = {
        "mode": mode,
        "crop": None if crop is None else parse_size("--crop", crop, square=True),
        "stride": stride,
        "scales": scales or None,
        "flip": flip,
        "batch": batch,
        "memory": None if memory is None else max(0, int(memory * 2**30)),
    }
    return {name: value for name, value in given.items() if value is not None}


def reject(given: Mapping[str, Any], reason: str) -> None:
    """Raise an error if one of the options was given; ``reason`` follows its name."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name} {reason}")


def parse_size(option: str, text: str, *, square: bool = False) -> tuple[int, int]:
    """Parse HEIGHTxWIDTH; with ``square``, a single number is both."""
    words = text.lower().split("x")
    words = words * 2 if square and len(words) == 1 else words
    if len(words) != 2 or not all(word.isdecimal() and len(word) < 7 and int(word) > 0 for word in words):
        expected = "a side or HEIGHTxWIDTH" if square else "HEIGHTxWIDTH"
        raise UsageError(f"{option} is {text[:60]!r}; expected {expected} in pixels, such as 512x512")
    return int(words[0]), int(words[1])


def named_values(option: str, words: Sequence[str] | None) -> dict[str, Any]:
    """Parse the NAME=VALUE words of an option; a value is JSON if it can be, otherwise a string."""
    found: dict[str, Any] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} is {word[:60]!r}; expected NAME=VALUE, such as classes=3")
        found[name] = value
        with contextlib.suppress(UsageError):
            found[name] = parse_json(value, word)
    return found
