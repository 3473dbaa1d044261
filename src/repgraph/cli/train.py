"""``repgraph train``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repgraph.cli import options
from repgraph.cli.options import option
from repgraph.constants import Precision
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.train import Outcome


def train(
    recipe: Annotated[str | None, typer.Argument(help="Name of a recipe (see --list), or a JSON file.")] = None,
    data: Annotated[str | None, option("Folder of the data set.", metavar="ROOT")] = None,
    weights: Annotated[
        str | None, option("Initial weights: a file, a run, 'pretrained', 'timm:NAME', or 'none'.", metavar="FILE")
    ] = None,
    out: Annotated[Path | None, option("The run's folder.", metavar="DIR", show_default="runs/RECIPE")] = None,
    settings: options.RecipeSettings = None,
    iterations: Annotated[int | None, option("Number of iterations (train.iterations).", min=1)] = None,
    batch: Annotated[int | None, option("Images per iteration, over all devices (train.batch).", min=1)] = None,
    seed: Annotated[int | None, option("Random seed (train.seed).", min=0, max=2**63 - 1)] = None,
    devices: Annotated[
        int | None, option("Number of GPUs, or of CPU processes (train.devices).", min=1, show_default="all GPUs")
    ] = None,
    precision: Annotated[Precision | None, option("Precision of the network (train.precision).")] = None,
    workers: Annotated[int | None, option("Processes that load images (data.workers).", min=0, max=1024)] = None,
    compiled: Annotated[bool, option("Use torch.compile (train.compile).", "--compile")] = False,
    resume: Annotated[Path | None, option("Folder or checkpoint of a run to resume.", metavar="RUN")] = None,
    list_recipes: Annotated[bool, option("List the recipes and exit.", "--list")] = False,
    print_recipe: Annotated[bool, option("Print the resolved recipe as JSON and exit.", "--print")] = False,
    measure: Annotated[bool, option("Measure images/s with and without data loading, and exit.", "--measure")] = False,
) -> int:
    """Train a network from a recipe, or resume a run.

    Examples:
      repgraph train --list                                     all recipes, and the paper's scores
      repgraph train scenes-rgnet --out runs/scenes             a small network, on the CPU
      repgraph train voc-r50-rgnet --data VOC2012 --weights resnet50.safetensors
      repgraph train folder-r50-rgnet --data my-data --weights pretrained --set optim.lr=0.005 data.crop=384
      repgraph train laptop-r50-pyramid --data my-photos --weights pretrained       a short schedule that runs on a CPU
      repgraph train folder-r50-rgnet --data my-data --weights runs/voc-r50-rgnet      from a run with other classes
      repgraph train --resume runs/voc-r50-rgnet
      repgraph train --resume runs/voc-r50-rgnet --iterations 5000      train a finished run further
      torchrun --nproc-per-node 8 -m repgraph train ade20k-r101-rgnet --data ADE20K --weights r101.pth

    Exit codes: 0 success; 2 invalid options or data; 3 losses, weights or a validation that are not finite; 130 or 143
    stopped by SIGINT or SIGTERM. See docs/training.md.
    """
    if list_recipes:
        from repgraph import recipes

        width = max(map(len, recipes.NAMES))
        for name in recipes.NAMES:
            title, _command, *paper = (line.strip() for line in recipes.get(name).description.splitlines())
            print(f"{name:<{width}}  {' '.join([title, *paper])}")
        return 0
    given = {
        "data.root": data,
        "model.weights": weights,
        "train.seed": seed,
        "train.devices": devices,
        "train.precision": precision,
        "data.workers": workers,
        "train.iterations": iterations,
        "train.batch": batch,
        "train.compile": "true" if compiled else None,
    }
    changes = [f"{name}={value}" for name, value in given.items() if value is not None] + (settings or [])
    if resume is not None:
        if recipe or out or measure or print_recipe:
            raise UsageError("--resume cannot be combined with a recipe, --out, --print or --measure")
        from repgraph.train import resume as resume_run

        return _finish(resume_run(resume, changes, show=sys.stderr))
    if recipe is None:
        raise UsageError("pass the name of a recipe (repgraph train --list shows all), a JSON file, or --resume RUN")

    from repgraph import recipes

    is_file = recipe.endswith(".json") or "/" in recipe
    resolved = recipes.with_settings(recipes.load(recipe) if is_file else recipes.get(recipe), changes)
    if print_recipe:
        print(recipes.to_json(resolved), end="")
        return 0

    from repgraph import train as training
    from repgraph.distributed import destroy_process_group, rank

    if not measure:
        return _finish(training.train(resolved, out or Path("runs") / resolved.name, show=sys.stderr))
    throughput = training.measure(resolved, show=sys.stderr)
    if rank() == 0:
        print(throughput)
    destroy_process_group()
    return 0


def _finish(outcome: "Outcome") -> int:
    """Print how a run ended, and return the exit code; of several processes, only the first prints."""
    from repgraph.distributed import destroy_process_group

    destroy_process_group()
    if not outcome.is_first:
        return 0
    if outcome.stop is not None:
        again = f"; resume with: repgraph train --resume {outcome.folder}" if outcome.stop.signal else ""
        print(f"repgraph train: {outcome.stop.reason}{again}", file=sys.stderr)
        return outcome.exit_code
    if outcome.validation is not None:
        print(outcome.validation.summary)
    print(f"{outcome.folder / 'model'}: the network after {outcome.iteration} iterations")
    return 0
