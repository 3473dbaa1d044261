"""A minimal benchmark, the square of a map, with candidates that are right, wrong or fail."""

import csv
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from repgraph.bench.table import BACKWARD, FORWARD, Candidate, Leaves, Setting, Table


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def square(x: Tensor) -> Tensor:
    return x * x


def wrong_gradient(x: Tensor) -> Tensor:
    y = x * x
    y.register_hook(lambda gradient: 1.00005 * gradient)
    return y


class SquareTable(Table):
    name = "squares"
    passes = (FORWARD, BACKWARD)
    checked = (BACKWARD,)
    small_size = (3, 5)
    candidates = (
        Candidate("plain", lambda setting: square),
        Candidate("power", lambda setting: partial(torch.pow, exponent=2)),
        Candidate("cube", lambda setting: partial(torch.pow, exponent=3)),
        Candidate("nan", lambda setting: lambda x: x * x * float("nan")),
        Candidate("wrong-gradient", lambda setting: wrong_gradient),
        Candidate("absent", lambda setting: square, why_not=lambda setting: "it is not installed"),
    )
    baselines: ClassVar = {"plain": ["plain"]}

    def inputs(self, setting: Setting) -> Leaves:
        generator = torch.Generator().manual_seed(0)
        return {"x": torch.randn((setting.height, setting.width), generator=generator).requires_grad_()}

    def versions(self, candidate: Candidate, setting: Setting, pass_: str):
        return candidate.build(setting), square, square
