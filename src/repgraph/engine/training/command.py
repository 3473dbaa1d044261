"""The options of ``repgraph train``, and what it says."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from repgraph import recipes
from repgraph.arguments import positive, whole
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.engine.train import Outcome

EPILOG = """\
examples:
  repgraph train --list                                             all recipes, and what the paper scored
  repgraph train scenes-rgnet --out runs/scenes                     a small network, on the CPU
  repgraph train voc-r50-rgnet --data VOC2012 --weights resnet50.safetensors
  repgraph train folder-r50-rgnet --data my-data --weights pretrained --set optim.lr=0.005 data.crop=384
  repgraph train voc_instances-r50-repgraph --data VOC2012 --weights resnet50.safetensors       Mask R-CNN
  repgraph train --resume runs/voc-r50-rgnet                        go on where it was stopped
  repgraph train voc-r50-rgnet --data VOC2012 --weights none --measure
  torchrun --nproc-per-node 8 -m repgraph train ade20k-r101-rgnet --data ADEChallengeData2016 --weights r101.pth

The exit code is 0 if all is well, 2 for a mistake in the command or the data, 3 if the loss, weights or a
test's logits are not finite, 130 or 143 if training was stopped by SIGINT or SIGTERM. docs/training.md says more.
"""
# Options that are short for settings.
SHORT = {
    "data": "data.root",
    "weights": "model.weights",
    "seed": "train.seed",
    "devices": "train.devices",
    "precision": "train.precision",
    "workers": "data.workers",
    "iterations": "train.iterations",
    "batch": "train.batch",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("recipe", nargs="?", metavar="RECIPE", help="the name of a recipe (see --list), or a JSON file with one")
    add("--data", metavar="ROOT", help="folder of the data set")
    add("--weights", metavar="FILE", help="where it starts: a file, 'pretrained', 'timm:NAME', or 'none'")
    add("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/RECIPE)")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings, such as optim.lr=0.02")
    add("--iterations", type=positive, metavar="N", help="how many (train.iterations)")
    add("--batch", type=positive, metavar="N", help="images in each, over all devices (train.batch)")
    add("--seed", type=whole(0, 2**63 - 1), metavar="N", help="of all chance (train.seed)")
    add(
        "--devices", type=positive, metavar="N", help="GPUs, or processes on the CPU (train.devices; default: all GPUs)"
    )
    add("--precision", choices=("fp32", "bf16", "fp16"), help="of the products (train.precision)")
    add("--workers", type=whole(0, 1024), metavar="N", help="processes that load images (data.workers)")
    add("--compile", action="store_true", help="through torch.compile (train.compile)")
    add("--resume", type=Path, metavar="RUN", help="go on with a run: its folder, or one of its checkpoints")
    add("--list", action="store_true", help="list the recipes and exit")
    add("--print", action="store_true", help="print the resolved recipe as JSON and exit")
    add("--measure", action="store_true", help="images/s with these data and with one batch in memory, then exit")


def run(arguments: argparse.Namespace) -> int:
    if arguments.list:
        print(listing())
        return 0
    settings = _settings(arguments)
    if arguments.resume is not None:
        if arguments.recipe or arguments.out or arguments.measure or arguments.print:
            raise UsageError("--resume takes recipe and folder from the run; leave the others out")
        from repgraph.engine.train import resume

        return _ended(resume(arguments.resume, settings, show=sys.stderr))
    if arguments.recipe is None:
        raise UsageError("give a recipe's name (repgraph train --list shows all) or file, or --resume RUN")
    recipe = recipes.with_settings(_recipe(arguments.recipe), settings)
    if arguments.print:
        print(recipes.to_json(recipe), end="")
        return 0
    if arguments.measure:
        from repgraph.engine.throughput import throughput
        from repgraph.engine.together import leave

        print(throughput(recipe, show=sys.stderr))
        leave()
        return 0
    from repgraph.engine.train import train

    return _ended(train(recipe, arguments.out or Path("runs") / recipe.name, show=sys.stderr))


def _ended(outcome: "Outcome") -> int:
    from repgraph.engine.together import leave

    leave()
    return _told(outcome)


def listing() -> str:
    """All recipes, a line each: what they train on what, and what the paper scored."""
    width = max(map(len, recipes.NAMES))
    lines = []
    for name in recipes.NAMES:
        title, _command, *paper = (line.strip() for line in recipes.get(name).description.splitlines())
        lines.append(f"{name:<{width}}  {' '.join([title, *paper])}")
    return "\n".join(lines)


def _recipe(text: str) -> recipes.AnyRecipe:
    is_file = text.endswith(".json") or os.sep in text
    return recipes.load(text) if is_file else recipes.get(text)


def _settings(arguments: argparse.Namespace) -> list[str]:
    given = [f"{name}={value}" for option, name in SHORT.items() if (value := getattr(arguments, option)) is not None]
    return [*given, *(["train.compile=true"] if arguments.compile else []), *arguments.set]


def _told(outcome: "Outcome") -> int:
    """Say how it ended; only the first of several processes has something to say, and a code of its own."""
    if not outcome.first:
        return 0
    if outcome.stop is not None:
        again = f"; go on with: repgraph train --resume {outcome.folder}" if outcome.stop.signal else ""
        print(f"repgraph train: {outcome.stop.reason}{again}", file=sys.stderr)
        return outcome.code
    if outcome.told:
        print(outcome.told)
    print(f"{outcome.folder / 'model'}: the network after {outcome.iteration} iterations")
    return 0
