"""A minimal benchmark, the square of a map, with candidates that are right, wrong or fail."""

import csv
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from repgraph.bench import gate
from repgraph.bench.table import Baseline, Candidate, Row, Setting, Table


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
    passes = ("forward", "backward")
    candidates = (
        Candidate("plain", lambda setting: square, "right"),
        Candidate("power", lambda setting: partial(torch.pow, exponent=2), "right"),
        Candidate("cube", lambda setting: partial(torch.pow, exponent=3), "wrong"),
        Candidate("nan", lambda setting: lambda x: x * x * float("nan"), "wrong"),
        Candidate("wrong-gradient", lambda setting: wrong_gradient, "wrong"),
        Candidate("absent", lambda setting: square, why_not=lambda setting: "it is not installed"),
    )
    baselines = (Baseline("plain", "plain", ["plain"]),)

    def inputs(self, setting: Setting) -> Tensor:
        generator = torch.Generator().manual_seed(setting.seed)
        return torch.randn((setting.height, setting.width), generator=generator).requires_grad_()

    def call(self, row: Row, inputs: Tensor):
        function = row.candidate.build(row.setting)
        if row.pass_ == "forward":
            return lambda: function(inputs)
        y = function(inputs)
        return lambda: torch.autograd.grad(y, inputs, torch.ones_like(y), retain_graph=True)

    def small(self, setting: Setting) -> Setting:
        return replace(setting, height=3, width=5)

    def check(self, candidate: Candidate, setting: Setting) -> str | None:
        x = self.inputs(setting)
        found = []
        for function, given in ((candidate.build(setting), x), (square, x), (square, x.detach().double())):
            given.requires_grad_()
            found.append(gate.results(partial(function, given), {"x": given}, setting))
        return gate.mistake(gate.PRECISIONS[setting.dtype_name], *found)
