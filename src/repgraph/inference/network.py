"""Trained networks: loading them with their labels and recipe, opening their data, and running them safely."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repgraph import data as datasets
from repgraph import models, recipes
from repgraph.constants import CHECKPOINTS, MODEL, RECIPE
from repgraph.data.labels import Labels, spread_palette
from repgraph.distributed import all_reduce
from repgraph.errors import UsageError, out_of_memory
from repgraph.models import MaskRCNN, RGNet
from repgraph.recipes import AnyRecipe


class NotFinite(UsageError):
    """The network's outputs are not finite."""


@dataclass(frozen=True)
class Trained:
    """A network with its labels and its recipe, or None where they are unknown."""

    model: RGNet | MaskRCNN
    labels: Labels | None
    recipe: AnyRecipe | None

    @property
    def is_detector(self) -> bool:
        return isinstance(self.model, MaskRCNN)

    @property
    def memory_hints(self) -> list[str]:
        """Options of a command to try if memory runs out."""
        if self.is_detector:
            return ["smaller images", "--precision bf16", "--device cpu"]
        return ["--mode slide", "a smaller --crop, --batch or --memory", "--precision bf16"]

    @property
    def default_precision(self) -> str:
        """The precision of the recipe's training on a GPU, and fp32 elsewhere."""
        on_gpu = next(self.model.parameters()).is_cuda
        return self.recipe.train.precision if self.recipe is not None and on_gpu else "fp32"

    def labels_or_numbers(self) -> Labels:
        """Return the labels; if they are unknown, "class 0" and so on (from 1 for a detector)."""
        if self.labels is not None:
            return self.labels
        ids = tuple(range(self.is_detector, self.model.classes + self.is_detector))
        return Labels(tuple(f"class {number}" for number in ids), spread_palette(len(ids)), ids)

    def open_data(self, root: str | None, dataset: str | None, split: str | None, options: dict[str, Any]) -> Any:
        """Open a split of a data set; None means the recipe's value, or without a recipe "coco" and "val"."""
        settings = self.recipe.data if self.recipe is not None else None
        name = dataset or (settings.name if settings else "coco" if self.is_detector else None)
        allowed = datasets.INSTANCES if self.is_detector else datasets.NAMES
        choices = f"one of {', '.join(allowed)}"
        if name is None:
            raise UsageError(f"the data set of this network is unknown (it has no recipe); pass --dataset, {choices}")
        if name not in allowed:
            kind = "detector" if self.is_detector else "segmentation network"
            raise UsageError(f"--dataset is {name!r}, but this is a {kind}; choose {choices}")
        if settings is None or settings.name != name:
            return datasets.load(name, root, split or "val", **options)
        training = ("crowds", "empty")  # options that skip objects and images in training only
        known = {key: value for key, value in settings.options.items() if key not in training}
        return datasets.load(name, root or settings.root, split or settings.val_split or "val", **(known | options))


def load(path: str | Path, device: torch.device | str = "cpu") -> Trained:
    """Load a network for inference, from any path that :func:`repgraph.models.load` accepts."""
    model = models.load(path).to(device).eval()
    try:
        labels = None if model.labels is None else Labels.from_dict(model.labels)
    except UsageError as error:
        raise UsageError(f"labels in the config of {path}: {error}") from error
    path = Path(os.path.expanduser(path)).absolute()
    folder = path if path.is_dir() else path.parent
    folders = [folder, folder.parent] if folder.name in (MODEL, CHECKPOINTS) else [folder]  # of a run
    recipe = next((recipes.load(each / RECIPE) for each in folders if (each / RECIPE).is_file()), None)
    return Trained(model, labels, recipe)


def check_classes(classes: int | None, labels: Labels) -> None:
    """Raise an error if the network and the data set differ in their number of classes; None is unknown."""
    if classes is not None and classes != len(labels):
        counts = f"the network has {classes} classes, but the data set has {len(labels)}"
        raise UsageError(f"{counts}; use the data set it was trained on")


def device_and_dtype(model: nn.Module, image: Tensor) -> tuple[torch.device, torch.dtype]:
    """Return device and dtype for the network's inputs; without parameters, the image's device and dtype or float32."""
    tensors = (*model.parameters(), *model.buffers(), image)
    tensor = next((tensor for tensor in tensors if tensor.is_floating_point()), image)
    return tensor.device, tensor.dtype if tensor.is_floating_point() else torch.float32


@contextlib.contextmanager
def memory_hints(hints: Sequence[str], subject: str = "") -> Iterator[None]:
    """Turn out-of-memory errors into a :class:`~repgraph.errors.UsageError` with these hints."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UsageError(f"{subject}out of memory; try {', '.join(hints)}") from error


def not_finite(what: str, precision: str) -> NotFinite:
    hint = "" if precision == "fp32" else f", or they overflow in {precision}; try --precision fp32"
    return NotFinite(f"the network's {what} are not finite: its weights or the image are not finite{hint}")


@contextlib.contextmanager
def not_finite_in_all_processes() -> Iterator[None]:
    """Raise :class:`NotFinite` in every process if one of them raises it; every process has to enter the context."""
    found: NotFinite | None = None
    try:
        yield
    except NotFinite as error:
        found = error
    if all_reduce(torch.tensor(float(found is not None))) > 0:
        raise found or NotFinite("the network's outputs are not finite in another process")
