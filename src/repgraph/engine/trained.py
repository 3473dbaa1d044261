"""A trained network from disk, with the recipe that it was trained by where there is one."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from repgraph import models, recipes
from repgraph.data.labels import Labels
from repgraph.errors import UsageError
from repgraph.models import MaskRCNN, RGNet

if TYPE_CHECKING:
    from repgraph.recipes import AnyRecipe

RECIPE = "recipe.json"


@dataclass(frozen=True)
class Trained:
    """A network, what its classes are, and its recipe; the latter two where they are known."""

    model: RGNet | MaskRCNN
    labels: Labels | None
    recipe: "AnyRecipe | None"

    @property
    def detects(self) -> bool:
        """Whether it finds objects, and does not label pixels."""
        return isinstance(self.model, MaskRCNN)


def load(path: Path, device: torch.device | str = "cpu") -> Trained:
    """The network in a folder or file that :func:`repgraph.models.load` takes, of either kind, on a device."""
    model = models.load(path).to(device).eval()
    labels = None if model.labels is None else Labels.from_dict(model.labels)
    return Trained(model, labels, recipe_of(path))


def recipe_of(path: Path) -> "AnyRecipe | None":
    """The recipe of the run that a network is in, if it is in one.

    The network may be given as the run's folder, as ``model`` in it, or as a file in ``model`` or ``checkpoints``.
    """
    path = Path(os.path.expanduser(path)).absolute()
    places = [path, path.parent] if path.is_dir() else [path.parent, path.parent.parent]
    found = next((place / RECIPE for place in places if (place / RECIPE).is_file()), None)
    if found is None:
        return None
    try:
        return recipes.load(found)
    except UsageError as error:
        raise UsageError(f"{error} (a network does without its recipe: move {found} away)") from error
