"""The score on the validation images, in the course of training."""

import contextlib
from collections.abc import Iterator

import torch

from repgraph.engine.evaluate import Pairs, Progress, evaluate
from repgraph.engine.inference import Settings
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.metrics import Confusion, Scores
from repgraph.engine.together import summed
from repgraph.models import RGNet
from repgraph.recipes import Recipe

TOGETHER = 8  # images of one size that go through a GPU at once


def validate(
    model: RGNet, data: Pairs, recipe: Recipe, rank: int = 0, world: int = 1, progress: Progress | None = None
) -> Scores:
    """Scores as the recipe tests, but at scale 1 and not flipped; ``world`` processes share the images.

    Every process has to call it. Where the logits of any of them are not finite, all of them raise NotFinite.
    """
    test, limit = recipe.test, recipe.data.val_limit or None
    settings = Settings(mode=test.mode, crop=test.crop, stride=test.stride, precision=recipe.train.precision)
    many = TOGETHER if next(model.parameters()).is_cuda else 1
    with _any_size(recipe.train.compile):
        scores = None
        try:
            found = evaluate(
                model, data, settings, rank=rank, world=world, limit=limit, together=many, progress=progress
            )
            scores = found.scores
        except NotFinite:
            Confusion(len(data.labels)).reduce()  # the others wait to sum theirs
    bad = summed(torch.tensor(float(scores is None), device=next(model.parameters()).device))
    if scores is None or bad:
        raise NotFinite("the network's logits are not finite")
    return scores


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
