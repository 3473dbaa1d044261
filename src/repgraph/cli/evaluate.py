"""``repgraph eval``."""

import json
import sys
import time
from functools import partial
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

    Without --split, the recipe's validation split is used, else val. Files and --json contain fractions; the table
    shows percentages. Exit codes: 0 success; 2 invalid options or data. See docs/inference.md and docs/detection.md.
    """
    from rich.console import Console

    from repgraph import files
    from repgraph.distributed import process_group, rank, shard
    from repgraph.evaluation import evaluate, evaluate_detection, report
    from repgraph.inference import network
    from repgraph.progress import Progress

    with process_group(inference.device) as device:
        if out is not None and rank() == 0:
            files.check_writable(out / report.SCORES)
        trained = network.load(model, device)
        settings = inference.settings(trained)
        images = trained.open_data(*data.source())
        if not images.labelled:
            raise UsageError(
                f"{images.name} {images.split} has no labels to compare with; "
                f"repgraph predict --split {images.split} writes predictions"
            )
        used = settings.precision if trained.is_detector else str(settings)
        about: dict[str, Any] = dict(model=str(model), dataset=images.name, split=images.split, settings=used)
        count = min(data.limit or len(images), len(images))
        evaluation: Any
        start = time.perf_counter()
        with (
            Progress("evaluating", len(shard(count)), sys.stderr if rank() == 0 else None) as progress,
            network.memory_hints(trained.memory_hints),
        ):
            shared: Any = dict(limit=count, workers=inference.workers, progress=lambda done, _: progress.update(done))
            if trained.is_detector:
                evaluation = evaluate_detection(trained.model, images, precision=settings.precision, **shared)
            else:
                evaluation = evaluate(trained.model, images, settings, **shared)
        about["seconds"] = round(time.perf_counter() - start, 3)
        if rank() > 0:
            return 0
    note = partial(print, "repgraph eval: note:", file=sys.stderr)
    if trained.labels is not None and trained.labels.names != images.labels.names:
        note("the network's class names differ from the data set's")
    if trained.is_detector:
        found = report.detection_report({**about, "left_out": len(images.problems)}, evaluation)
        if images.problems:
            note(f"{len(images.problems)} annotations of {images.path} cannot be used; repgraph data check lists them")
    else:
        found = report.segmentation_report(about, evaluation, images.labels.names)
    if as_json:
        print(json.dumps(found.record, indent=2))
    else:
        console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=1000)  # no truncation
        found.show(console)
        rate = count / max(about["seconds"], 1e-3)
        console.print(f"{images.name} {images.split}, {count} images, {used}, {rate:.2f} images/s")
    if out is not None:
        print(f"wrote {', '.join(map(str, found.write(out)))}", file=sys.stderr if as_json else sys.stdout)
    return 0
