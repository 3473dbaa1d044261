"""The options of ``repgraph nodes``, and what it prints."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from repgraph.arguments import fraction, positive, whole
from repgraph.engine.figures import arguments as shared
from repgraph.errors import UsageError, out_of_memory

if TYPE_CHECKING:
    from repgraph.pictures.figure.nodes import Cell

ROWS = 24  # images in one figure, at most
FIRST, UNDER = ("none", "image", "prediction", "truth"), ("image", "prediction", "truth")
EPILOG = """\
examples:
  repgraph nodes runs/voc-r50-rgnet dog.jpg bus.jpg --out nodes.pdf
  repgraph nodes runs/voc-r50-rgnet dog.jpg --at 120,80 300,210 --links --out nodes.png nodes.svg
  repgraph nodes runs/voc-r50-rgnet dog.jpg bus.jpg --at 120,80 300,210 --at 50,60 90,90 --out nodes.pdf
  repgraph nodes runs/voc-r50-rgnet --data VOC2012 --split val --limit 3 --first truth --out nodes.pdf

The paper's appendix figure: a row for each image, a column for each position. The current position is blue, its
representative nodes are red, the larger the more weight they have. --at once is for all images; as often as there are
images, it is for one after the other. Without it, positions are chosen in the middle of the regions that the network
predicts, or on the objects that it finds. Of a layer that attends to all positions, the strongest of each are shown.
docs/figures.md says more.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    shared.add_images(parser)
    put = parser.add_argument
    put("--out", type=Path, required=True, nargs="+", metavar="FILE", help="the figure, as .png, .svg or .pdf")
    put("--at", type=shared.pixel, nargs="+", action="append", metavar="X,Y", help="positions, in pixels of the image")
    put("--positions", type=whole(1, 20), default=4, metavar="N", help="how many to choose where none are given")
    put("--layer", metavar="PATH", help="which layer, by its path or the end of it (default: the last)")
    put("--group", type=whole(0, 10**6), metavar="N", help="which group's weights, from 0 (default: the mean of all)")
    put("--first", choices=FIRST, default="prediction", help="what the first column shows")
    put("--under", choices=UNDER, default="image", help="what lies under the marks")
    put("--opacity", type=fraction, default=0.55, metavar="F", help="of the colours over the image, 0 to 1")
    put(
        "--strongest", type=positive, default=64, metavar="N", help="how many, of a layer that attends to all positions"
    )
    put("--links", action="store_true", help="lines from the position to its nodes")
    put("--captions", action=argparse.BooleanOptionalAction, default=True, help="names of images and classes")
    put("--legend", action=argparse.BooleanOptionalAction, default=True, help="what the marks are")
    shared.add_look(parser)


def run(arguments: argparse.Namespace) -> int:
    from repgraph import files
    from repgraph.arguments import parse_device
    from repgraph.engine import trained
    from repgraph.engine.figures import nodes
    from repgraph.engine.prediction.reading import large_images
    from repgraph.pictures.figure import paper
    from repgraph.pictures.figure.nodes import draw

    for path in arguments.out:
        paper.ending(path)
        files.check_writable(path)
    network = trained.load(arguments.model, parse_device(arguments.device))
    wanted = nodes.Wanted(
        layer=nodes.choose(network.model, arguments.layer),
        group=arguments.group,
        first=arguments.first,
        under=arguments.under,
        opacity=arguments.opacity,
        count=arguments.positions,
        strongest=arguments.strongest,
    )
    images = shared.pictures(arguments, network, arguments.out)
    if len(images) > ROWS:
        raise UsageError(f"{len(images)} images do not fit into a figure; give {ROWS} at most, or --limit")
    at = arguments.at or [None]
    if len(at) not in (1, len(images)):
        raise UsageError(f"--at is given {len(at)} times for {len(images)} images; give it once, or once for each")
    rows = []
    for number, name in enumerate(images.names):
        with large_images():
            image, truth = images.read(number)
        subject = nodes.Subject(network, name, image, truth, images.labels)
        try:
            rows.append(nodes.row(subject, wanted, at[number % len(at)]))
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise UsageError(f"{name}: out of memory; give a smaller image, or --device cpu") from error
        _say(name, rows[-1])
    with paper.style():
        style = dict(links=arguments.links, captions=arguments.captions, legend=arguments.legend)
        what = "node" if nodes.has_nodes(network.model, wanted.layer) else "position attended to"
        chart = draw(rows, width=arguments.width, dpi=arguments.dpi, what=what, **style)
        written = [paper.save(chart, path, arguments.dpi) for path in arguments.out]
    print(f"layer {wanted.layer}; written: " + ", ".join(map(str, written)))
    return 0


def _say(name: str, cells: "list[Cell]") -> None:
    """A line for each position: how far its nodes are, and how the weight is shared."""
    for cell in cells:
        if cell.look is None:
            continue
        look = cell.look
        total = sum(weight for _, _, weight in look.nodes)
        away = sum(weight * math.hypot(x - look.x, y - look.y) for x, y, weight in look.nodes) / max(total, 1e-12)
        largest = max(weight for _, _, weight in look.nodes)
        seen = f"{len(look.nodes)} nodes"
        if total < 0.999:  # of a layer that attends to all positions
            seen = f"the {len(look.nodes)} strongest positions, which have {100 * total:.1f} % of the weight"
        place = f"{name} at {look.x:g},{look.y:g} ({cell.caption})"
        print(f"{place}: {seen}, {away:.1f} pixels away by weight; the largest weight is {largest:.2g}")
