"""Options that several commands share."""

import contextlib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from repgraph.constants import DATASETS, INSTANCE_DATASETS, MODEL, RECIPE, SHIPPED, Precision
from repgraph.errors import UsageError
from repgraph.files import in_clone, parse_json

if TYPE_CHECKING:
    from repgraph.inference import Settings, Trained

_DATASETS = ", ".join(sorted(DATASETS + INSTANCE_DATASETS))
WORKERS = min(4, os.cpu_count() or 1)


def option(text: str, *names: str, **more: Any) -> Any:
    """Return a ``typer.Option`` with a help text, and with names if they differ from the parameter's."""
    return typer.Option(*names, help=text, **({"metavar": "N"} if "min" in more else {}) | more)


def _recipe_or(text: str, otherwise: str, **more: Any) -> Any:
    return option(text, show_default=f"the recipe's, else {otherwise}", **more)


_MODEL = "Folder of a run or a network, a checkpoint, or a .safetensors file."
_MEMORY = "Memory for the probabilities of --mode slide; larger images are processed in tiles."
Model = Annotated[Path, typer.Argument(help=_MODEL)]
ModelOption = Annotated[
    Path | None, option(_MODEL, "--model", metavar="RUN", show_default=f"{SHIPPED} in a clone, else required")
]
Device = Annotated[str, option("cpu, cuda or cuda:N; auto is cuda if it is available.", metavar="DEVICE")]
Workers = Annotated[int, option("Threads that read images.", min=0, max=256)]
Root = Annotated[str | None, option("Folder of the data.", "--data", metavar="ROOT", show_default="the recipe's")]
ReaderOptions = Annotated[
    list[str] | None, option("Options of the data set's reader, such as classes=3.", "--option", metavar="NAME=VALUE")
]
Limit = Annotated[int | None, option("Use only the first N images.", min=1)]
RecipeSettings = Annotated[
    list[str] | None, option("Settings of the recipe, such as optim.lr=0.02.", "--set", metavar="NAME=VALUE")
]


@dataclass(frozen=True)
class Data:
    """Options that select a data set and its images."""

    data: Root = None
    dataset: Annotated[str | None, _recipe_or(f"One of {_DATASETS}.", "coco for a Mask R-CNN", metavar="NAME")] = None
    split: Annotated[str | None, option("Split of the data set: train, val, test, ...", metavar="SPLIT")] = None
    reader_options: ReaderOptions = None
    limit: Limit = None

    def source(self) -> tuple[str | None, str | None, str | None, dict[str, Any]]:
        """Return the arguments of :meth:`repgraph.inference.Trained.open_data`."""
        return self.data, self.dataset, self.split, named_values("--option", self.reader_options)


@dataclass(frozen=True)
class Inference:
    """Options of inference; windows, scales and flip are for segmentation."""

    mode: Annotated[Literal["whole", "slide"] | None, _recipe_or("Whole images, or sliding windows.", "whole")] = None
    crop: Annotated[str | None, _recipe_or("Size of the windows in pixels.", "512", metavar="N|HxW")] = None
    stride: Annotated[float | None, _recipe_or("Window stride as a fraction of the crop.", "2/3", metavar="F")] = None
    scales: Annotated[list[float] | None, _recipe_or("Scales to average.", "1", metavar="F")] = None
    flip: Annotated[bool | None, _recipe_or("Average with the prediction for the mirrored image.", "no")] = None
    batch: Annotated[int | None, option("Windows per batch.", min=1, max=65536, show_default="4")] = None
    memory: Annotated[float | None, option(_MEMORY, min=0, metavar="GIB", show_default="2")] = None
    precision: Annotated[Precision | None, option("Precision.", show_default="the recipe's on a GPU, else fp32")] = None
    device: Device = "auto"
    workers: Workers = WORKERS

    def settings(self, trained: "Trained") -> "Settings":
        """Return the settings of inference: the given options, else those of the recipe."""
        from repgraph.inference import Settings

        given = {name: getattr(self, name) for name in ("mode", "stride", "flip", "batch")}
        given["scales"] = self.scales or None
        given["crop"] = None if self.crop is None else parse_size("--crop", self.crop)
        given["memory"] = None if self.memory is None else int(self.memory * 2**30)
        given = {name: value for name, value in given.items() if value is not None}
        if trained.is_detector and given:
            name = next(iter(given))
            raise UsageError(f"--{name} is for segmentation; a detector resizes images itself (min_size in its config)")
        return Settings.from_recipe(trained.recipe, precision=self.precision or trained.default_precision, **given)


def flatten(command: Callable[..., int]) -> Callable[..., int]:
    """Replace parameters of a command that are dataclasses by their fields, as options after its other parameters."""
    parameters = inspect.signature(command).parameters
    groups: dict[str, Any] = {key: each.annotation for key, each in parameters.items() if is_dataclass(each.annotation)}

    @functools.wraps(command)
    def run(**given: Any) -> int:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        return command(**given)

    flat = [each for name, each in parameters.items() if name not in groups]
    flat += [each for kind in groups.values() for each in inspect.signature(kind).parameters.values()]
    run.__signature__ = inspect.Signature([each.replace(kind=each.KEYWORD_ONLY) for each in flat])  # type: ignore[attr-defined]
    return run


def parse_size(option: str, text: str) -> tuple[int, int]:
    """Parse HEIGHTxWIDTH; a single number is both."""
    found = re.fullmatch(r"0*([1-9]\d{0,5})(?:x0*([1-9]\d{0,5}))?", text.lower())
    if not found:
        raise UsageError(f"{option} is {text[:60]!r}; expected a side or HEIGHTxWIDTH in pixels, such as 512x512")
    return int(found[1]), int(found[2] or found[1])


def model_or_shipped(model: Path | None, inputs: Sequence[str] | None = None) -> Path:
    """Return the given network, or else that of a clone; an error if one of ``inputs`` is a network, not an image."""
    if model is not None:
        return model
    for text in inputs or ():
        path = Path(text)
        is_run = any((path / name).exists() for name in (RECIPE, "config.json"))
        if is_run or path.suffix in (".ckpt", ".safetensors"):
            raise UsageError(f"{text} is a network, not an image; pass it as --model {text}")
    found = in_clone(SHIPPED)
    if found is None:
        raise UsageError(f"--model is required outside of a clone of the repository, which has {SHIPPED}")
    print(f"using {found}, trained on PASCAL VOC; --model names another network", file=sys.stderr)
    return found


def network_name(model: Path) -> str:
    """Return the name of a network: of its run, or of its file."""
    path = Path(os.path.abspath(os.path.expanduser(model)))
    path = path.parent if path.name == MODEL else path
    return path.stem if path.suffix in (".ckpt", ".safetensors") else path.name


def check_page(out: Path) -> None:
    """Raise an error if a page would be written to a file of another kind, such as the network itself."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out is {out}; expected a file name that ends in .html")


def named_values(option: str, words: Sequence[str] | None) -> dict[str, Any]:
    """Parse the NAME=VALUE words of an option; a value that is not valid JSON is a string."""
    found: dict[str, Any] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{option} is {word[:60]!r}; expected NAME=VALUE, such as classes=3")
        found[name] = value
        with contextlib.suppress(UsageError):
            found[name] = parse_json(value, word)
    return found
