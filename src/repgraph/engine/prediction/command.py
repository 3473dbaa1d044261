"""The options of ``repgraph predict``, and what it prints."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from repgraph.arguments import fraction, positive
from repgraph.engine.evaluation.sets import add_data, open_data
from repgraph.engine.inference import options
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from repgraph.data.labels import Labels
    from repgraph.engine.prediction.inputs import Source
    from repgraph.engine.trained import Trained

EPILOG = """\
examples:
  repgraph predict runs/voc-r50-rgnet photo.jpg --out predictions
  repgraph predict runs/voc-r50-rgnet photos 'more/**/*.png' --out predictions --recursive
  repgraph predict runs/cityscapes-r101-rgnet --data cityscapes --split test --out submission
  repgraph predict my-mask-rcnn photos --out found --score 0.7
  repgraph predict my-mask-rcnn --data coco --split test --out submission

Label files (OUT/labels) are PNGs whose values are the data set's ids, with a palette to look at them; overlays
(OUT/overlays) show the classes over the image. Names and sub-folders are those of the inputs. Photographs are turned as
their EXIF orientation says; the images of a data set are not, because labels match the stored pixels. With --split, the
files are named as the data set's evaluation server expects, and there are no overlays unless asked for.

A Mask R-CNN finds objects: overlays show masks, boxes, names and scores, and OUT/detections.json has all that was found
in COCO's format, with the images' names. With --split it is bbox.json and segm.json, as COCO's server takes them.

The exit code is 0, 1 if images could not be read (all others are done), 2 for a mistake in the command or an output
folder that cannot be written. docs/inference.md says more.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    put = parser.add_argument
    put("model", metavar="MODEL", type=Path, help="folder of a run or of a network, a checkpoint or .safetensors")
    put("inputs", metavar="INPUT", nargs="*", help="images, folders of images, patterns such as 'photos/**/*.jpg'")
    put("--out", type=Path, required=True, metavar="DIR", help="where labels/ and overlays/, or detections.json, go")
    put("--recursive", action="store_true", help="also the images in folders below those given")
    put("--overlays", action=argparse.BooleanOptionalAction, help="(default: yes, but not with --split)")
    put("--opacity", type=fraction, metavar="F", help="of overlays' colours, 0 to 1 (default: 0.55, objects: 0.45)")
    put("--score", type=fraction, metavar="F", help="the least score of objects in overlays (default: 0.5)")
    put("--legend", action=argparse.BooleanOptionalAction, help="below overlays (default: yes)")
    put("--side", type=positive, default=4096, metavar="N", help="overlays are shrunk to N pixels on the longer side")
    put("--plain", action="store_true", default=None, help="label files without a palette (cityscapes --split: always)")
    add_data(parser, "instead of INPUT")
    options.add(parser)


def run(arguments: argparse.Namespace) -> int:
    from repgraph import files
    from repgraph.engine import trained
    from repgraph.engine.predict import LABELS, Style, predict_files
    from repgraph.engine.prediction.reading import large_images
    from repgraph.engine.processes import joined
    from repgraph.engine.progress import Meter
    from repgraph.pictures.overlay import OPACITY

    if bool(arguments.inputs) == (arguments.split is not None):
        raise UsageError("give images (files, folders, patterns), or --split and --data, the split of a data set")
    sources = _sources(arguments)
    with joined(arguments.device) as place:
        network = trained.load(arguments.model, place.device)
        if network.detects:
            from repgraph.engine.prediction import objects

            return objects.run(arguments, sources, network, place)
        options.refuse(arguments, ("score",), "is for networks that find objects; this one labels pixels")
        files.check_writable(arguments.out / LABELS / "0.png")  # else found out when the first image is done
        settings = options.settings(arguments, network.recipe, place.device)
        jobs, labels, read, server = _files(sources, network) if sources else _split(arguments, network)
        wanted = arguments.overlays if arguments.overlays is not None else bool(sources)
        opacity = OPACITY if arguments.opacity is None else arguments.opacity
        style = Style(
            plain=bool(arguments.plain) or server,
            opacity=opacity if wanted else None,
            legend=arguments.legend is not False,
            side=arguments.side,
        )
        own = jobs[place.rank :: place.world]
        with large_images(), Meter("predicting", len(own), sys.stderr if place.first else None) as meter:
            outcome = predict_files(
                network.model,
                own,
                labels,
                arguments.out,
                settings,
                read=read,
                style=style,
                workers=arguments.workers,
                progress=lambda done, total: meter.at(done),
                say=lambda text: meter.say(f"repgraph predict: {text}"),
            )
        counts = place.total(len(own) - len(outcome.failed), len(outcome.failed), len(outcome.written))
    if place.first:
        print(f"{counts[0]} of {len(jobs)} images predicted, {counts[2]} files in {arguments.out}")
        if counts[1]:
            print(f"repgraph predict: {counts[1]} of {len(jobs)} images could not be predicted", file=sys.stderr)
    return 1 if outcome.failed else 0


Found = tuple[list["Source"], "Labels", "Callable[[Source], Tensor]", bool]


def _sources(arguments: argparse.Namespace) -> list["Source"]:
    """The images that were named; none where a split is wanted."""
    from repgraph.engine.predict import LABELS, OVERLAYS
    from repgraph.engine.prediction import inputs

    if not arguments.inputs:
        return []
    if any((arguments.data, arguments.dataset, arguments.option, arguments.limit)):
        raise UsageError("--data, --dataset, --option and --limit go with --split, and not with images")
    made = [arguments.out / LABELS, arguments.out / OVERLAYS]
    return inputs.find(arguments.inputs, recursive=arguments.recursive, skip=made)


def _files(sources: list["Source"], network: "Trained") -> Found:
    """Photographs, in the ids of the network's own data set, or its class numbers if it does not know them."""
    from repgraph.data.labels import Labels, spread_palette
    from repgraph.engine.prediction import reading

    labels, count = network.labels, network.model.classes
    if labels is None:
        labels = Labels(tuple(f"class {k}" for k in range(count)), spread_palette(count), tuple(range(count)))
    return sources, labels, lambda source: reading.read_upright(source.path), False


def _split(arguments: argparse.Namespace, network: "Trained") -> Found:
    """The images of a data set, under the names and in the ids that its evaluation expects."""
    from repgraph.data.files import read_image
    from repgraph.engine.prediction.inputs import Source

    data = open_data(arguments, network.recipe)
    if len(data.labels) != network.model.classes:
        raise UsageError(
            f"the network has {network.model.classes} classes, {data.name} {len(data.labels)}; "
            "give the data set it was trained on"
        )
    names = [data.prediction_name(i).removesuffix(".png") for i in range(len(data))][: arguments.limit]
    jobs = [Source(item.image, name) for item, name in zip(data.items, names, strict=False)]
    if data.name == "scenes":  # which are drawn, and in no file
        numbers = {name: i for i, name in enumerate(names)}
        return jobs, data.labels, lambda source: data[numbers[source.name]][0], False
    return jobs, data.labels, lambda source: read_image(source.path), data.name == "cityscapes"
