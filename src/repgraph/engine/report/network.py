"""The network of a run, what is known of it alone, and the images that the run tests on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repgraph import models
from repgraph.engine import sight, tasks
from repgraph.engine.report.log import Log, Points, network_of
from repgraph.errors import UsageError
from repgraph.models import RGNet

SIDE = 128  # of the image that tells how far apart positions are
REACH, STEPS = "reach_", "steps_"  # columns: in pixels of the image, and in positions of the layer's map


def load(log: Log, device: torch.device | str = "cpu") -> nn.Module:
    """The run's network at its end, or at its last checkpoint."""
    path = network_of(log)
    if path is None:
        raise UsageError("there was no checkpoint yet")
    return models.load(path).to(device).eval()


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def steps(log: Log, model: nn.Module | None) -> dict[str, float]:
    """Pixels of an image from one position to the next in the map of each RepGraph layer, by its path, where known."""
    if isinstance(model, RGNet):
        try:
            found = sight.look(model, torch.full((3, SIDE, SIDE), 127, dtype=torch.uint8))
            return {layer.path: layer.step[0] for layer in found.layers}
        except UsageError:  # it has no such layer, or its numbers are not finite
            pass
    stride = getattr(log.recipe.model, "output_stride", None) if log.recipe is not None else None
    return {"head.context": float(stride)} if stride else {}


def in_pixels(series: Mapping[str, Points], known: Mapping[str, float]) -> dict[str, Points]:
    """The columns of a log with the reach of nodes in pixels of the image; others keep positions, and say so.

    >>> in_pixels({"reach_mean/a": [(1.0, 2.0)], "reach_mean/b": [(1.0, 2.0)], "loss": []}, {"a": 8.0})
    {'reach_mean/a': [(1.0, 16.0)], 'steps_mean/b': [(1.0, 2.0)], 'loss': []}
    """
    found: dict[str, Points] = {}
    for name, line in series.items():
        kind, slash, path = name.partition("/")
        if not slash or not kind.startswith(REACH):
            found[name] = line
        elif path in known:
            found[name] = [(iteration, known[path] * value) for iteration, value in line]
        else:
            found[STEPS + name.removeprefix(REACH)] = line
    return found


def validation(log: Log, root: str | None = None) -> Any:
    """The images that the run tests on in the course of training; ``root`` is where they are now.

    A run that tests on nothing, or data that are not there, are errors.
    """
    if log.recipe is None:
        raise UsageError("the recipe cannot be used")
    data = log.recipe.data if root is None else replace(log.recipe.data, root=root)
    if data.root and not Path(data.root).expanduser().is_dir():
        raise UsageError(f"the data are not there: {data.root} is no folder; give another with --data ROOT")
    task = tasks.of(replace(log.recipe, data=data))
    if data.hold_out:
        return task.splits()[1]
    if not data.val_split:
        raise UsageError("it has no validation images: data.val_split is empty")
    images = task.open(data.val_split, False)
    if not images.labelled:
        raise UsageError(f"{data.name} {data.val_split} has no labels to compare with")
    return images
