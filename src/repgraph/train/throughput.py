"""Throughput of training with the data and with one batch in memory: the difference is the time spent on loading."""

import contextlib
import itertools
import time
from dataclasses import dataclass
from typing import TextIO

import torch

from repgraph.recipes import AnyRecipe, with_values
from repgraph.train import cuda_graphs, devices
from repgraph.train.loop import step
from repgraph.train.session import make_stream, prepare, set_up


@dataclass(frozen=True)
class Throughput:
    """Images per second, with the data (``real``) and with one batch in memory (``fixed``).

    >>> print(Throughput(real=399.0, fixed=420.0))
    399 images/s with the data, 420 images/s with one batch in memory: 95 %
    """

    real: float
    fixed: float

    def __str__(self) -> str:
        fixed = f"{self.fixed:.3g} images/s with one batch in memory: {100 * self.real / self.fixed:.0f} %"
        return f"{self.real:.3g} images/s with the data, {fixed}"


def measure(recipe: AnyRecipe, *, iterations: int = 100, warmup: int = 20, show: TextIO | None = None) -> Throughput:
    """Time training with the data and with a fixed batch, after some iterations to warm up; nothing is written."""
    total = iterations + warmup
    recipe = with_values(recipe, {"train.iterations": total})
    where = devices.find(recipe.train)
    session, rates = prepare(recipe, where), []
    with devices.backend_settings(recipe.train, where, session.task.fixed_size):
        fabric = devices.make_fabric(recipe.train, where)
        fabric.launch()
        model, optimizer = set_up(fabric, session)
        for name in ("one batch in memory", "the data"):
            if show is not None and where.is_first:
                print(f"timing {total} iterations with {name}", file=show, flush=True)
            with contextlib.closing(make_stream(session)) as stream:
                batches = stream if name == "the data" else itertools.repeat(next(stream), total)
                for number, batch in enumerate(batches):
                    if number == warmup:
                        begin = _synchronized_time(where)
                    step(fabric, session, model, optimizer, fabric.to_device(batch._replace(iteration=number)))
                rates.append(iterations * recipe.train.batch / (_synchronized_time(where) - begin))
        cuda_graphs.discard(session.model)
    return Throughput(real=rates[1], fixed=rates[0])


def _synchronized_time(where: devices.Devices) -> float:
    if where.kind == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
