"""A trained network from disk, with the recipe that it was trained by where there is one."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from repgraph import models, recipes
from repgraph.data.labels import Labels
from repgraph.models import RGNet
from repgraph.recipes import Recipe

RECIPE = "recipe.json"


@dataclass(frozen=True)
class Trained:
    """A network, what its classes are, and its recipe; the latter two where they are known."""

    model: RGNet
    labels: Labels | None
    recipe: Recipe | None


def load(path: Path, device: torch.device | str = "cpu") -> Trained:
    """The network in a folder or file that :func:`repgraph.models.load` takes, on a device."""
    model = models.load(path, RGNet).to(device).eval()
    labels = None if model.labels is None else Labels.from_dict(model.labels)
    return Trained(model, labels, recipe_of(path))


def recipe_of(path: Path) -> Recipe | None:
    """The recipe of the run that a network is in, if it is in one.

    The network may be given as the run's folder, as ``model`` in it, or as a file in ``model`` or ``checkpoints``.
    """
    path = Path(os.path.expanduser(path)).absolute()
    places = [path, path.parent] if path.is_dir() else [path.parent, path.parent.parent]
    found = next((place / RECIPE for place in places if (place / RECIPE).is_file()), None)
    return None if found is None else recipes.load(found)
