"""The options of ``repgraph eval``, and what it prints."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repgraph.engine.evaluation.sets import add_data, open_data
from repgraph.engine.inference import options
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.data.dataset import SegmentationData
    from repgraph.engine.inference import Settings
    from repgraph.engine.processes import Place
    from repgraph.engine.trained import Trained

EPILOG = """\
examples:
  repgraph eval runs/voc-r50-rgnet --data VOC2012
  repgraph eval runs/ade20k-r50-rgnet --data ADEChallengeData2016 --mode slide --scales 0.5 0.75 1 1.25 --flip
  repgraph eval my-network --dataset folder --data my-data --split val --out scores --json
  repgraph eval my-mask-rcnn --data coco --split val --out scores
  torchrun --nproc-per-node 8 -m repgraph eval runs/cityscapes-r101-rgnet --data cityscapes

The table is in per cent; files and --json have fractions. For networks that label pixels, the scores are those of one
confusion matrix over the whole split; for a Mask R-CNN, average precision of boxes and masks by COCO's protocol.

The exit code is 0, 2 for a mistake in the command or the data, and 1 if pycocotools is not installed, which scores
objects: what was found is written all the same. docs/inference.md and docs/detection.md say more.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    put = parser.add_argument
    put("model", metavar="MODEL", type=Path, help="folder of a run or of a network, a checkpoint or .safetensors")
    add_data(parser, "default: the recipe's, else val")
    put(
        "--out",
        type=Path,
        metavar="DIR",
        help="write scores.json, classes.csv, and confusion.csv or what was found there",
    )
    put("--json", action="store_true", help="print the scores as JSON instead of a table")
    options.add(parser)


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from repgraph import files
    from repgraph.engine import trained
    from repgraph.engine.evaluation import report
    from repgraph.engine.processes import joined

    with joined(arguments.device) as place:
        if arguments.out is not None and place.first:
            files.check_writable(arguments.out / report.SCORES)  # else found out when all is done
        network = trained.load(arguments.model, place.device)
        if network.detects:
            from repgraph.engine.evaluation import objects

            return objects.run(arguments, network, place)
        settings = options.settings(arguments, network.recipe, place.device)
        data = open_data(arguments, network.recipe)
        if not data.labelled:
            raise UsageError(f"{data.name} {data.split} has no labels to compare with; see repgraph predict --split")
        evaluation = _evaluate(network, data, settings, place, arguments)
        if not place.first:
            return 0
    names = data.labels.names
    if network.labels is not None and network.labels.names != names:
        print("repgraph eval: note: the network's class names differ from the data set's", file=sys.stderr)
    about: dict[str, Any] = {
        "model": str(arguments.model),
        "dataset": data.name,
        "split": data.split,
        "settings": options.described(settings),
    }
    record = report.as_record(evaluation, names, about)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=1000)  # nothing is cut
        report.show(evaluation, names, console)
        rate = evaluation.images / max(evaluation.seconds, 1e-9)
        console.print(f"{data.name} {data.split}, {evaluation.images} images, {about['settings']}, {rate:.2f} images/s")
    if arguments.out is not None:
        written = report.write(record, evaluation, arguments.out)
        print("written: " + ", ".join(map(str, written)), file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _evaluate(
    network: "Trained", data: "SegmentationData", settings: "Settings", place: "Place", arguments: argparse.Namespace
) -> Any:
    from repgraph.engine.evaluate import evaluate
    from repgraph.engine.inference.memory import explained
    from repgraph.engine.progress import Meter

    count = len(data) if arguments.limit is None else min(arguments.limit, len(data))
    own = len(range(place.rank, count, place.world))
    with Meter("evaluating", own, sys.stderr if place.first else None) as meter, explained(settings):
        return evaluate(
            network.model,
            data,
            settings,
            rank=place.rank,
            world=place.world,
            limit=count,
            workers=arguments.workers,
            progress=lambda done, total: meter.at(done),
        )
