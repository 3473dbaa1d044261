"""How fast a recipe trains with its data, and with one batch in memory: the share of time that goes into waiting."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import lightning.pytorch as pl
import torch

from repgraph.engine import train as training
from repgraph.engine.training import places
from repgraph.engine.training.module import Training
from repgraph.recipes import AnyRecipe, with_settings


@dataclass(frozen=True)
class Throughput:
    """Images in a second: with the data as training has them (``real``), and with one batch in memory (``fixed``).

    >>> print(Throughput(real=399.0, fixed=420.0))
    399 images/s with the data, 420 images/s with one batch in memory: 95 %
    """

    real: float
    fixed: float

    @property
    def share(self) -> float:
        return self.real / self.fixed

    def __str__(self) -> str:
        with_data = f"{self.real:.3g} images/s with the data"
        return f"{with_data}, {self.fixed:.3g} images/s with one batch in memory: {100 * self.share:.0f} %"


class _Timer(pl.Callback):
    """Takes the time from iteration ``warm`` on, when the device has done all before it."""

    def __init__(self, warm: int) -> None:
        self.warm = warm
        self.begin = self.end = 0.0

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if module.iteration == self.warm:
            _wait(module.device)
            self.begin = time.perf_counter()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        _wait(module.device)
        self.end = time.perf_counter()


class _Same:
    """One batch again and again."""

    def __init__(self, batch: Any, count: int) -> None:
        self.batch, self.count = batch, count

    def __iter__(self) -> Iterator[Any]:
        for iteration in range(self.count):
            yield self.batch._replace(iteration=iteration)


def throughput(recipe: AnyRecipe, *, iterations: int = 100, warm: int = 20, show: TextIO | None = None) -> Throughput:
    """Train for a moment with the data, and with a fixed batch; nothing is written.

    Args:
        recipe: as for training; its schedule and its number of iterations do not matter.
        iterations: how many are timed.
        warm: how many come before, in which caches fill and kernels are chosen.
        show: where to say what is being done.
    """
    total = iterations + warm
    recipe = with_settings(recipe, [f"train.iterations={total}", f"train.period={total}", "train.log_every=1000000"])
    place = places.find(recipe.train)
    first, images, _ = training.prepare(recipe, place, None)
    found = []
    with places.settled(recipe.train, place), contextlib.ExitStack() as streams:
        some, real = (
            streams.enter_context(contextlib.closing(training.stream(first, place, images))) for _ in range(2)
        )
        fixed = _Same(next(iter(some)), total)
        some.close()
        for name, source in (("one batch in memory", fixed), ("the data", real)):
            if show is not None and place.first:
                print(f"{total} iterations with {name}", file=show, flush=True)
            module, timer = Training(first.model, first.task), _Timer(warm)
            training.fit(module, place, source, timer)
            found.append(iterations * recipe.train.batch / (timer.end - timer.begin))
    return Throughput(real=found[1], fixed=found[0])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
