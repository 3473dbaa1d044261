"""``repgraph eval`` of a network that finds objects: average precision by COCO's protocol."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console

from repgraph.engine.detection import CocoEvaluation, evaluate
from repgraph.engine.detection import report as of_objects
from repgraph.engine.detection.files import helps
from repgraph.engine.detection.scores import NEEDED, available
from repgraph.engine.detection.split import check_classes
from repgraph.engine.evaluation.sets import open_objects
from repgraph.engine.inference import options
from repgraph.engine.inference.memory import advised
from repgraph.engine.processes import Place
from repgraph.engine.progress import Meter
from repgraph.engine.trained import Trained
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.engine.detection import Detected

WHY = "is for networks that label pixels; this one finds objects, and resizes images itself (min_size in its config)"


def run(arguments: argparse.Namespace, network: Trained, place: Place) -> int:
    """Evaluates; every process has to call it, and the first prints and writes."""
    options.refuse(arguments, options.OF_PIXELS, WHY)
    data = open_objects(arguments, network.recipe)
    check_classes(network.model, data)
    if not data.labelled:
        raise UsageError(
            f"{data.annotations.path} has no annotations to compare with; "
            f"repgraph predict --split {data.split} writes results for COCO's server"
        )
    if not available() and arguments.out is None:
        raise UsageError(f"{NEEDED} (without it, --out DIR writes what is found all the same)")
    precision = options.precision(arguments, network.recipe, place.device)
    count = len(data) if arguments.limit is None else min(arguments.limit, len(data))
    own = len(range(place.rank, count, place.world))
    with (
        Meter("evaluating", own, sys.stderr if place.first else None) as meter,
        advised(helps(precision, place.device)),
    ):
        found = evaluate(
            network.model,
            data,
            rank=place.rank,
            world=place.world,
            limit=count,
            workers=arguments.workers,
            precision=precision,
            progress=lambda done, total: meter.at(done),
        )
    return _tell(arguments, network, found, precision) if place.first else 0


def _tell(arguments: argparse.Namespace, network: Trained, found: "Detected", precision: str) -> int:
    evaluation: CocoEvaluation = found.results
    data = evaluation.data
    if network.labels is not None and network.labels.names != data.labels.names:
        print("repgraph eval: note: the network's class names differ from the data set's", file=sys.stderr)
    if data.skipped:
        said = ", ".join(f"{kind}: {count}" for kind, count in data.skipped.items())
        print(f"repgraph eval: note: left out of {data.annotations.path} are {said}", file=sys.stderr)
    about: dict[str, Any] = {
        "model": str(arguments.model),
        "dataset": data.name,
        "split": data.split,
        "settings": precision,
        "left_out": data.skipped,
    }
    record = of_objects.as_record(found, about)
    if found.scores is None:
        print(f"repgraph eval: {NEEDED}", file=sys.stderr)
    elif arguments.json:
        print(json.dumps(record, indent=2))
    else:
        console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=1000)  # nothing is cut
        of_objects.show(found.scores, record, console)
        rate = found.images / max(found.seconds, 1e-9)
        console.print(f"{data.name} {data.split}, {found.images} images, {precision}, {rate:.2f} images/s")
    if arguments.out is not None:
        written = of_objects.write(record, found, arguments.out)
        print("written: " + ", ".join(map(str, written)), file=sys.stderr if arguments.json else sys.stdout)
    return 1 if found.scores is None else 0
