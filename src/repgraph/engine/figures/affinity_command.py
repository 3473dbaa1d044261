"""The options of ``repgraph affinity``, and what it prints."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repgraph.arguments import positive, whole
from repgraph.engine.figures import arguments as shared
from repgraph.engine.inference.options import WORKERS

if TYPE_CHECKING:
    from torch import nn

    from repgraph.engine.figures.affinity import Affinity
    from repgraph.engine.figures.arguments import Pictures
    from repgraph.engine.processes import Place

FORMATS = ("png", "svg", "pdf")
EPILOG = """\
examples:
  repgraph affinity runs/voc-r50-nl --data VOC2012 --split val --out affinity
  repgraph affinity runs/voc-r50-nl photo.jpg --at 210,140 --out affinity
  torchrun --nproc-per-node 8 -m repgraph affinity runs/voc-r50-nl --data VOC2012 --split val --out affinity

The paper's first figure: histograms of the weights with which the positions of a non-local layer attend to each other,
of all positions and of one, and how concentrated they are. Images go through the network whole and at their size. OUT
gets affinity.png, .svg and .pdf, affinity.json and .csv (the numbers), histogram.csv and images.csv (means of each
image). Shares are fractions in files and in per cent elsewhere. docs/figures.md says more.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    shared.add_images(parser)
    put = parser.add_argument
    put("--out", type=Path, required=True, metavar="DIR", help="where the figure and its numbers go")
    put("--layer", metavar="PATH", help="which of the network's non-local layers (default: the last)")
    put("--at", type=shared.pixel, metavar="X,Y", help="the one position, in pixels of the first image (default: the"
        " one whose effective number is the image's median)")  # fmt: skip
    put("--top", type=positive, default=9, metavar="N", help="the share of the N largest weights is told")
    put("--format", choices=FORMATS, nargs="+", default=list(FORMATS), help="of the figure")
    put("--json", action="store_true", help="print the numbers as JSON instead of a table")
    put("--workers", type=whole(0, 256), default=WORKERS, metavar="N", help="threads that read images ahead")
    shared.add_look(parser)


def run(arguments: argparse.Namespace) -> int:
    from repgraph import files
    from repgraph.engine import trained
    from repgraph.engine.figures import attention, report
    from repgraph.engine.figures.one import check_inside, one_position
    from repgraph.engine.processes import joined

    with joined(arguments.device) as place:
        if place.first:
            files.check_writable(arguments.out / report.NUMBERS)  # else found out when all is done
        network = trained.load(arguments.model, place.device)
        model = network.model
        attention.choose(model, arguments.layer)
        images = shared.pictures(arguments, network, [arguments.out / f"affinity.{kind}" for kind in arguments.format])
        if arguments.at is not None:
            check_inside(arguments.at, images.read(0)[0].shape[-2:], images.names[0])
        found = _statistics(model, images, place, arguments)
        if not place.first:
            return 0
    first = images.read(0)[0]
    one = one_position(model, first, arguments.at, layer=found.layer, top=found.top_count)
    about: dict[str, Any] = {"model": str(arguments.model), "data": images.about}
    record = report.as_record(found, one, images.names[0], about)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        report.show(found, one, images.names[0], images.about)
    written = report.write(record, found, images.names, arguments.out)
    written += report.draw(found, one, images, first, arguments)
    print("written: " + ", ".join(map(str, written)), file=sys.stderr if arguments.json else sys.stdout)
    return 0


def _statistics(model: "nn.Module", images: "Pictures", place: "Place", arguments: argparse.Namespace) -> "Affinity":
    """Over all images, of which this process takes its share; each image's are in the order of the images."""
    from dataclasses import replace

    from repgraph.engine.ahead import ahead
    from repgraph.engine.figures.affinity import affinity_statistics
    from repgraph.engine.prediction.reading import large_images
    from repgraph.engine.progress import Meter
    from repgraph.errors import UsageError, out_of_memory

    own = range(place.rank, len(images), place.world)
    try:
        with large_images(), Meter("attending", len(own), sys.stderr if place.first else None) as meter:
            found = affinity_statistics(
                model,
                (image for image, _ in ahead(images.read, own, arguments.workers)),
                layer=arguments.layer,
                top=arguments.top,
                progress=meter.at,
            )
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UsageError("out of memory; give smaller images, or --device cpu") from error
    dealt = [i for rank in range(place.world) for i in range(rank, len(images), place.world)]
    ordered = [one for _, one in sorted(zip(dealt, found.images, strict=True), key=lambda pair: pair[0])]
    return replace(found, images=tuple(ordered))
