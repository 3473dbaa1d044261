"""The score on the validation images, in the course of training."""

import contextlib
from collections.abc import Iterator

import torch

from repgraph.engine.evaluate import Pairs, Progress, evaluate
from repgraph.engine.inference import Settings
from repgraph.engine.metrics import Scores
from repgraph.models import RGNet
from repgraph.recipes import Recipe


def validate(
    model: RGNet, data: Pairs, recipe: Recipe, rank: int = 0, world: int = 1, progress: Progress | None = None
) -> Scores:
    """Scores as the recipe tests, but at scale 1 and not flipped; ``world`` processes share the images.

    Every process has to call it.
    """
    test, limit = recipe.test, recipe.data.val_limit or None
    settings = Settings(mode=test.mode, crop=test.crop, stride=test.stride, precision=recipe.train.precision)
    with _any_size(recipe.train.compile):
        return evaluate(model, data, settings, rank=rank, world=world, limit=limit, progress=progress).scores


@contextlib.contextmanager
def _any_size(compiled: bool) -> Iterator[None]:
    """Images come in many sizes: none of them is worth compiling for, or a search for the fastest kernels."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        with torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext():
            yield
    finally:
        torch.backends.cudnn.benchmark = before
