"""The demo's networks: trained here, or taken from where an earlier call left them."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from repgraph import recipes
from repgraph.engine.train import Outcome, resume, train
from repgraph.engine.training.folder import MODEL, RECIPE
from repgraph.errors import UsageError
from repgraph.files import write_text
from repgraph.models import RGNet
from repgraph.recipes import Recipe

NOTE = "demo.json"


class Stopped(Exception):
    """Training ended before its end, as by an interrupt; ``code`` is the exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Network:
    """A trained network, and the seconds that its training took (None where that was in parts)."""

    name: str
    seed: int
    recipe: Recipe
    folder: Path
    model: RGNet
    seconds: float | None

    @property
    def title(self) -> str:
        return TITLES[self.name]


TITLES = {
    "baseline": "without the layer",
    "control": "the layer without nodes",
    "nl": "with a non-local block",
    "rgnet": "RGNet",
}


def network(name: str, seed: int, settings: Sequence[str], runs: Path, show: TextIO | None) -> Network:
    """The network of recipe ``scenes-NAME`` with some settings, in a folder of its own in ``runs``."""
    recipe = recipes.with_settings(recipes.get(f"scenes-{name}", Recipe), [*settings, f"train.seed={seed}"])
    folder = runs / f"{name}-{seed}"
    if not (folder / RECIPE).exists():
        start = time.perf_counter()
        _check(train(recipe, folder, show=show))
        write_text(folder / NOTE, json.dumps({"seconds": time.perf_counter() - start}) + "\n")
    else:
        _check_same(recipe, folder)
        if not (folder / MODEL).exists():
            _check(resume(folder, show=show))
        elif show is not None:
            print(f"trained before: {folder}", file=show, flush=True)
    model = RGNet.from_pretrained(folder / MODEL)
    return Network(name, seed, recipe, folder, model.eval(), _noted(folder))


def _check(outcome: Outcome) -> None:
    if outcome.stop is not None:
        again = "; call it once more to go on" if outcome.stop.signal else ""
        raise Stopped(outcome.stop.reason + again, outcome.code)


def _check_same(recipe: Recipe, folder: Path) -> None:
    if recipes.load(folder / RECIPE) != recipe:
        raise UsageError(
            f"{folder} has a network of another recipe, perhaps of other --iterations; remove it, or give another --out"
        )


def _noted(folder: Path) -> float | None:
    try:
        found = json.loads((folder / NOTE).read_text(encoding="utf-8"))["seconds"]
        return None if found is None else float(found)
    except (OSError, ValueError, KeyError, TypeError):
        return None
