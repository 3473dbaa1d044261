"""The score on the validation images, in the course of training."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from repgraph.engine.inference import Settings, predict
from repgraph.engine.metrics import Confusion, Scores
from repgraph.engine.training.loader import Pair, Pairs
from repgraph.models import RGNet
from repgraph.recipes import Recipe

AHEAD = 8


def validate(model: RGNet, data: Pairs, recipe: Recipe, rank: int = 0, world: int = 1) -> Scores:
    """Scores over all images, of which each of ``world`` processes does its share; scale 1, not flipped.

    Every process has to call it.
    """
    test = recipe.test
    settings = Settings(mode=test.mode, crop=test.crop, stride=test.stride, precision=recipe.train.precision)
    device = next(model.parameters()).device
    confusion = Confusion(model.classes, device)
    with torch.compiler.set_stance("force_eager") if recipe.train.compile else contextlib.nullcontext():
        for image, mask in _ahead(data, range(rank, len(data), world)):
            assert mask is not None
            confusion.update(predict(model, image, settings), mask)
    return confusion.reduce().scores()


def _ahead(data: Pairs, indices: range) -> Iterator[Pair]:
    """The images in order, read a few ahead."""
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(data.__getitem__, index) for index in indices[:AHEAD]]
        for at in range(len(indices)):
            yield waiting.pop(0).result()
            if at + AHEAD < len(indices):
                waiting.append(pool.submit(data.__getitem__, indices[at + AHEAD]))
