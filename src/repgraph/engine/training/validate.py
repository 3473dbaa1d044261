"""The score on the validation images, in the course of training."""

import contextlib

import torch

from repgraph.engine.evaluate import Pairs, evaluate
from repgraph.engine.inference import Settings
from repgraph.engine.metrics import Scores
from repgraph.models import RGNet
from repgraph.recipes import Recipe


def validate(model: RGNet, data: Pairs, recipe: Recipe, rank: int = 0, world: int = 1) -> Scores:
    """Scores as the recipe tests, but at scale 1 and not flipped; ``world`` processes share the images.

    Every process has to call it. A compiled network runs as it was written: images come in many sizes.
    """
    test = recipe.test
    settings = Settings(mode=test.mode, crop=test.crop, stride=test.stride, precision=recipe.train.precision)
    eager = torch.compiler.set_stance("force_eager") if recipe.train.compile else contextlib.nullcontext()
    with eager:
        return evaluate(model, data, settings, rank=rank, world=world, limit=recipe.data.val_limit or None).scores
