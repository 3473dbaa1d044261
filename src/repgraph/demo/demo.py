"""The demo from beginning to end: train, test, show, and write the page."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from repgraph.data.scenes import LABELS, Scenes
from repgraph.demo import report, runs
from repgraph.demo.measure import Measured, measure
from repgraph.demo.runs import EXPLORER, REPORT
from repgraph.demo.training import Network, Stopped, network
from repgraph.engine.progress import Meter, duration
from repgraph.files import check_folder, write_text

__all__ = ["Plan", "Stopped", "demo"]


@dataclass(frozen=True)
class Plan:
    """What the demo is to do."""

    out: Path
    networks: tuple[str, ...] = ("baseline", "rgnet")
    seeds: int = 1
    settings: tuple[str, ...] = ()  # of all recipes, such as train.iterations=300
    pictures: int = 6
    tests: int = 400


def demo(plan: Plan, show: TextIO | None = None, out: TextIO | None = None) -> Path:
    """Train the networks, test them, and write a page about it, and one about the runs; the path of the first.

    ``show`` is where progress goes, ``out`` where scores go; None for nowhere. What is in the folder already is used.
    """
    from repgraph.demo.about import write

    check_folder(plan.out)
    start = time.perf_counter()
    trained = [
        _train(plan, name, seed, i * plan.seeds + seed, show)
        for i, name in enumerate(plan.networks)
        for seed in range(plan.seeds)
    ]
    ready = time.perf_counter()
    data = Scenes(None, "test", length=plan.tests)
    results: dict[str, list[Measured]] = {}
    for one in trained:
        with Meter(f"testing {one.title}, seed {one.seed}", len(data), show) as meter:
            results.setdefault(one.name, []).append(measure(one.model, data, meter))
    spent = time.perf_counter() - ready
    if out is not None:
        Console(file=out).print(report.terminal(results))
    write_text(plan.out / "scores.json", json.dumps(_scores(trained, results), indent=2) + "\n")
    write_text(plan.out / REPORT, runs.page(trained, results, data))
    explorer = runs.explorer(trained, data, plan.pictures)
    if explorer is not None:
        write_text(plan.out / EXPLORER, explorer)
    path = plan.out / "index.html"
    write_text(path, write(plan, trained, results, data, spent, explorer=explorer is not None))
    if show is not None:
        print(f"done in {duration(time.perf_counter() - start)}", file=show, flush=True)
    return path


def _train(plan: Plan, name: str, seed: int, done: int, show: TextIO | None) -> Network:
    if show is not None:
        total = len(plan.networks) * plan.seeds
        print(f"network {done + 1} of {total}: {name}, seed {seed}", file=show, flush=True)
    return network(name, seed, plan.settings, plan.out / "runs", show)


def _scores(trained: list[Network], results: dict[str, list[Measured]]) -> list[dict[str, object]]:
    found = []
    for one in trained:
        measured = results[one.name][one.seed]
        scores = measured.evaluation.scores.to_dict(LABELS.names)
        swap = {"right": measured.right, "changed": measured.changed}
        found.append({"network": one.name, "seed": one.seed, "seconds": one.seconds, "swapped": swap, **scores})
    return found
