"""``repgraph eval``."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from repgraph.cli import options
from repgraph.cli.options import option
from repgraph.errors import UsageError


@options.flatten
def evaluate(
    model: options.Model,
    data: options.Data,
    inference: options.Inference,
    split: Annotated[str | None, option("train, val, ...", show_default="the recipe's, else val")] = None,
    out: Annotated[Path | None, option("Folder for scores.json, classes.csv and further files.", metavar="DIR")] = None,
    as_json: Annotated[bool, option("Print the scores as JSON instead of a table.", "--json")] = False,
) -> int:
    """Evaluate a network on a data set.

    Examples:
      repgraph eval runs/voc-r50-rgnet --data VOC2012
      repgraph eval runs/ade20k-r50-rgnet --data ADEChallengeData2016 --mode slide --scales 0.5 0.75 1 1.25 --flip
      repgraph eval my-network --dataset folder --data my-data --split val --out scores --json
      repgraph eval my-mask-rcnn --data coco --split val --out scores
      torchrun --nproc-per-node 8 -m repgraph eval runs/cityscapes-r101-rgnet --data cityscapes

    The table is in percent; files and --json have fractions. The exit code is 0, or 2 for a mistake in the command or
    the data. See docs/inference.md and docs/detection.md.
    """
    from rich.console import Console

    from repgraph import files
    from repgraph.distributed import process_group, shard
    from repgraph.evaluation import evaluate, evaluate_detection, report
    from repgraph.inference import network
    from repgraph.inference.files import memory_hints_for
    from repgraph.progress import Progress

    with process_group(inference.device) as process:
        if out is not None and process.is_first:
            files.check_writable(out / report.SCORES)
        trained = network.load(model, process.device)
        settings = inference.settings(trained)
        images = trained.open_data(*data.source(split))
        if not images.labelled:
            raise UsageError(
                f"{images.name} {images.split} has no labels to compare with; "
                f"repgraph predict --split {images.split} writes predictions"
            )
        about = {"model": str(model), "dataset": images.name, "split": images.split}
        about["settings"] = settings.precision if trained.is_detector else str(settings)
        count = min(data.limit or len(images), len(images))
        with (
            Progress("evaluating", len(shard(count)), sys.stderr if process.is_first else None) as progress,
            network.memory_hints(memory_hints_for(trained, settings)),
        ):
            shared: dict[str, Any] = {"limit": count, "workers": inference.workers}
            shared["progress"] = lambda done, total: progress.update(done)
            if trained.is_detector:
                detection = evaluate_detection(trained.model, images, precision=settings.precision, **shared)
            else:
                segmentation = evaluate(trained.model, images, settings, **shared)
        if not process.is_first:
            return 0
    if trained.labels is not None and trained.labels.names != images.labels.names:
        print("repgraph eval: note: the network's class names differ from the data set's", file=sys.stderr)
    if trained.is_detector:
        found = report.detection_report({**about, "left_out": images.skipped}, detection)
        if images.skipped:
            counts = ", ".join(f"{kind}: {number}" for kind, number in images.skipped.items())
            print(f"repgraph eval: note: skipped in {images.path}: {counts}", file=sys.stderr)
    else:
        found = report.segmentation_report(about, segmentation, images.labels.names)
    if as_json:
        print(json.dumps(found.record, indent=2))
    else:
        console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=1000)  # no truncation
        found.show(console)
        rate = count / max(found.record["seconds"], 1e-3)
        console.print(f"{images.name} {images.split}, {count} images, {about['settings']}, {rate:.2f} images/s")
    if out is not None:
        written = ", ".join(map(str, found.write(out)))
        print(f"written: {written}", file=sys.stderr if as_json else sys.stdout)
    return 0
