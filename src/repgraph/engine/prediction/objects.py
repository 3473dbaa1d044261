"""``repgraph predict`` of a network that finds objects: pictures of them, and COCO's JSON."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from torch import Tensor

from repgraph import files
from repgraph.data.coco import InstanceData
from repgraph.data.labels import Labels
from repgraph.engine.detection.files import OVERLAYS, Collected, Numbered, Style, detect_files, write_all
from repgraph.engine.detection.report import BOXES, MASKS
from repgraph.engine.detection.split import check_classes
from repgraph.engine.evaluation.objects import WHY
from repgraph.engine.evaluation.sets import open_objects
from repgraph.engine.inference import options
from repgraph.engine.prediction import inputs, reading
from repgraph.engine.prediction.inputs import Source
from repgraph.engine.processes import Place
from repgraph.engine.progress import Meter
from repgraph.engine.trained import Trained
from repgraph.pictures.detections import OPACITY, SCORE, colours

DETECTIONS = "detections.json"


@dataclass(frozen=True)
class Work:
    """The images, with their numbers, what reads them, what the classes are, and what is written about all of them."""

    jobs: list[Source]
    numbers: dict[Source, Numbered]
    read: Callable[[Source], Tensor]
    labels: Labels
    contents: Callable[[Collected], dict[str, bytes]]


def run(arguments: argparse.Namespace, sources: list[Source], network: Trained, place: Place) -> int:
    """Finds objects in images that were named, or in those of a split; every process has to call it."""
    options.refuse(arguments, options.OF_PIXELS, WHY)
    options.refuse(arguments, ("plain", "legend"), "is for label maps, and this network finds objects")
    work = _files(sources, network) if sources else _split(arguments, network)
    wanted = arguments.overlays if arguments.overlays is not None else bool(sources)
    first = arguments.out / (f"{OVERLAYS}/0.png" if wanted else DETECTIONS)
    files.check_writable(first)  # else found out when the first image is done
    opacity = OPACITY if arguments.opacity is None else arguments.opacity
    score = SCORE if arguments.score is None else arguments.score
    own = work.jobs[place.rank :: place.world]
    with reading.large_images(), Meter("predicting", len(own), sys.stderr if place.first else None) as meter:
        outcome, collected = detect_files(
            network.model,
            own,
            work.numbers,
            work.labels,
            arguments.out,
            read=work.read,
            precision=options.precision(arguments, network.recipe, place.device),
            style=Style(score, opacity if wanted else None, arguments.side),
            workers=arguments.workers,
            progress=lambda done, total: meter.at(done),
            say=lambda text: meter.say(f"repgraph predict: {text}"),
        )
    collected.gather()
    done, failed, written = place.total(len(own) - len(outcome.failed), len(outcome.failed), len(outcome.written))
    if place.first:
        written += len(write_all(arguments.out, work.contents(collected)))
        found = sum(map(len, collected.objects.values()))
        print(f"{done} of {len(work.jobs)} images predicted, {found} objects, {written} files in {arguments.out}")
        if failed:
            print(f"repgraph predict: {failed} of {len(work.jobs)} images could not be predicted", file=sys.stderr)
    return 1 if outcome.failed else 0


def _files(sources: list[Source], network: Trained) -> Work:
    """Photographs, numbered from 1, in the ids of the network's own data set, or from 1 if it does not know them."""
    labels, count = network.labels, network.model.classes
    if labels is None:
        names = tuple(f"class {k}" for k in range(1, count + 1))
        labels = Labels(names, tuple(colours(count)), tuple(range(1, count + 1)))
    known = labels
    numbers = {job: Numbered(k, str(job.path)) for k, job in enumerate(sources, 1)}
    return Work(
        sources,
        numbers,
        lambda job: reading.read_upright(job.path),
        known,
        lambda collected: {DETECTIONS: collected.annotations(known)},
    )


def _split(arguments: argparse.Namespace, network: Trained) -> Work:
    """The images of a data set, in its own ids; results as its evaluation server takes them."""
    data: InstanceData = open_objects(arguments, network.recipe)
    check_classes(network.model, data)
    items = data.items[: arguments.limit]
    names = inputs.names([item.image for item in items], [_inside(item.name) for item in items])
    jobs = [Source(item.image, name) for item, name in zip(items, names, strict=True)]
    places = dict(zip(jobs, items, strict=True))
    numbers = {job: Numbered(item.picture.id, item.name) for job, item in zip(jobs, items, strict=True)}
    return Work(
        jobs,
        numbers,
        lambda job: data.read(places[job]).as_subclass(Tensor),
        data.labels,
        lambda collected: {BOXES: collected.results("bbox"), MASKS: collected.results("segm")},
    )


def _inside(name: str) -> PurePath:
    """The name of an image in an annotation file, such that what is written under it stays in its folder."""
    path = PurePath(name)
    return PurePath(*[part for part in path.parts if part not in (path.anchor, "..")])
