"""``repgraph explore``, ``repgraph nodes`` and ``repgraph affinity``."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from repgraph.cli import options
from repgraph.cli.options import option
from repgraph.errors import UsageError, one_line

_IMAGES = "Files, folders or patterns; with --split, indices or names of its images."
SPLIT_IMAGES = 4  # images of a split in the explorer by default

Layer = Annotated[str | None, option("Path of the layer, or the end of it.", metavar="PATH", show_default="the last")]
Width = Annotated[float, option("Width of the figure in inches; 4.8 fits a page of LNCS.", min=1, max=50, metavar="IN")]
Dpi = Annotated[int, option("Resolution in pixels per inch.", min=20, max=2400)]


@dataclass(frozen=True)
class Images(options.Data):
    """Images in files, or of a split of a data set."""

    images: Annotated[list[str] | None, typer.Argument(metavar="IMAGE", help=_IMAGES)] = None
    device: options.Device = "auto"

    def open(self, model: Path, outputs: Sequence[Path], default_limit: int | None = None, **more: Any) -> Any:
        """Load a network and return it with its images."""
        from repgraph.distributed import parse_device
        from repgraph.inference import load
        from repgraph.visualize.images import open_images

        network, limit = load(model, parse_device(self.device)), self.limit or default_limit
        return network, open_images(network, self.images or (), outputs, *self.source(), limit=limit, **more)


@options.flatten
def explore(
    images: Images,
    model: options.ModelOption = None,
    out: Annotated[Path, option("The page.", metavar="FILE")] = Path("explorer.html"),
    layers: Annotated[
        list[str] | None, option("Paths of layers, or the ends of paths.", metavar="PATH", show_default="all")
    ] = None,
    side: Annotated[int | None, option("Shrink files to N pixels on the longer side.", min=1)] = None,
    score: Annotated[float, option("Minimum score of objects.", min=0, max=1)] = 0.5,
    title: Annotated[str | None, option("Page title.", metavar="TEXT", show_default="the name of the run")] = None,
) -> int:
    """Write an HTML page that shows the representative nodes of any pixel.

    Examples:
      repgraph explore photo.jpg
      repgraph explore dog.jpg bus.jpg --model runs/voc-r50-rgnet --out dogs.html
      repgraph explore 0 17 2007_000033 --model runs/voc-r50-rgnet --data VOC2012 --split val

    The page is one file that opens from disk. Hover over a pixel to see its representative nodes; click to pin them.
    Images are processed whole, at full resolution unless --side is given. Photos are rotated by their EXIF orientation.
    With --split and without IMAGE, the first images are used. See docs/explorer.md.
    """
    from repgraph import files
    from repgraph.inference.inputs import large_images
    from repgraph.inference.network import check_classes
    from repgraph.progress import Progress
    from repgraph.visualize import explorer

    options.check_page(out)
    files.check_writable(out)
    model = options.model_or_shipped(model, images.images)
    network, found = images.open(model, [out], None if images.images else SPLIT_IMAGES, side=side)
    check_classes(network.model.classes, found.labels)
    config, recipe = network.model.config, network.recipe
    about = f"{'Mask R-CNN' if network.is_detector else 'RGNet'}, {config['backbone']}, context {config['context']}"
    about += f", recipe {recipe.name}" if recipe else ""
    with large_images(), Progress("collecting", len(found), sys.stderr) as progress:
        page = explorer.explore(
            network.model,
            (explorer.ExplorerImage(name, *found.read(index)) for index, name in enumerate(found.names)),
            network.labels or found.labels,
            title=one_line(title or options.network_name(model)),
            about=about,
            layers=layers or None,
            score=score,
            progress=progress.update,
        )
    files.write(out, page)
    print(f"{len(found)} image{'s' * (len(found) > 1)}: {out} ({len(page) / 1e6:.1f} MB); open it in a browser")
    return 0


@options.flatten
def nodes(
    images: Images,
    model: options.ModelOption = None,
    out: Annotated[
        list[Path] | None, option("Figures: .png, .svg or .pdf.", metavar="FILE", show_default="nodes.png")
    ] = None,
    at: Annotated[
        list[str] | None, option("Positions X,Y in pixels; repeat --at to give each image its own.", metavar="X,Y...")
    ] = None,
    positions: Annotated[int, option("Number of positions to choose without --at.", min=1, max=20)] = 4,
    layer: Layer = None,
    windows: Annotated[bool, option("Draw the window over which each node is averaged.", "--windows")] = False,
    width: Width = 6.9,
    dpi: Dpi = 300,
) -> int:
    """Draw the nodes of some positions in images, as in the paper's appendix.

    Examples:
      repgraph nodes photo.jpg
      repgraph nodes dog.jpg bus.jpg --model runs/voc-r50-rgnet --out nodes.pdf
      repgraph nodes dog.jpg bus.jpg --at 120,80 300,210 --at 50,60 90,90 --out nodes.pdf
      repgraph nodes --model runs/voc-r50-rgnet --data VOC2012 --split val --limit 3 --out nodes.pdf

    The figure has a row for each image, or one for each round of the layer, with the prediction and a column for each
    position. The position is blue, its nodes are red and larger for more weight. Without --at, positions are chosen in
    the middle of predicted regions or detected objects, far from each other. For a layer that attends to all positions,
    the 64 strongest are shown. See docs/figures.md.
    """
    pixels = [[_parse_pixel(word) for word in words.split()] for words in at or ()]

    from repgraph import files
    from repgraph.inference.inputs import large_images
    from repgraph.inference.network import memory_hints
    from repgraph.visualize import figures, nodes_figure
    from repgraph.visualize.collect import DenseLayer, find_layer

    paths = out or [Path("nodes.png")]
    for path in paths:
        figures.file_format(path)
        files.check_writable(path)
    network, found = images.open(options.model_or_shipped(model, images.images), paths)
    layer = find_layer(network.model, layer)
    if len(pixels) not in (0, 1, len(found)):
        raise UsageError(f"--at is given {len(pixels)} times for {len(found)} images; pass it once, or once per image")
    labels = network.labels or found.labels
    rows = []
    for number, name in enumerate(found.names):
        own = pixels[number % len(pixels)] if pixels else ()
        with large_images(), memory_hints(["a smaller image", "--device cpu"], f"{name}: "):
            image = found.read(number)[0]
            added = nodes_figure.figure_rows(network.model, name, image, layer, labels, own, count=positions)
        for row in added:
            for cell in row:
                if (at_one := cell.nodes) is not None:
                    print(f"{row[0].caption} at {at_one.x:g},{at_one.y:g} ({cell.caption}): {at_one.describe()}")
        rows += added
    node = "attended position" if isinstance(network.model.get_submodule(layer), DenseLayer) else "node"
    with figures.figure_style():
        figure = nodes_figure.draw_nodes(rows, width=width, node=node, windows=windows)
        written = [figures.save(figure, path, dpi) for path in paths]
    print(f"layer {layer}; wrote {', '.join(map(str, written))}")
    return 0


@options.flatten
def affinity(
    model: options.Model,
    out: Annotated[Path, option("Folder for the figure and its numbers.", metavar="DIR")],
    images: Images,
    layer: Layer = None,
    at: Annotated[
        str | None, option("Position in the first image, in pixels.", metavar="X,Y", show_default="its center")
    ] = None,
    top: Annotated[int, option("Report the total share of the N largest weights.", min=1)] = 9,
    formats: Annotated[list[str] | None, option("png, svg or pdf.", "--format", show_default="all")] = None,
    width: Width = 6.9,
    dpi: Dpi = 300,
    workers: options.Workers = options.WORKERS,
) -> int:
    """Measure how a non-local layer concentrates its weights on a few positions, as in the paper's first figure.

    Examples:
      repgraph affinity runs/voc-r50-nl --data VOC2012 --split val --out affinity
      repgraph affinity runs/voc-r50-nl photo.jpg --at 210,140 --out affinity

    OUT gets affinity.png, .svg and .pdf (histograms of the attention weights of all positions and of one position),
    affinity.json and affinity.csv (statistics), histogram.csv, and images.csv (means of images). Files contain
    fractions; the terminal and the figure show percentages. Images are processed whole. See docs/figures.md.
    """
    pixel = None if at is None else _parse_pixel(at)

    from repgraph import files
    from repgraph.data.files import prefetch
    from repgraph.inference.inputs import large_images
    from repgraph.inference.network import memory_hints
    from repgraph.progress import Progress
    from repgraph.visualize import affinity, figures
    from repgraph.visualize.collect import check_inside

    paths = [out / f"affinity.{suffix}" for suffix in formats or ("png", "svg", "pdf")]
    for path in paths:
        figures.file_format(path)
    files.check_writable(out / "affinity.json")
    network, found = images.open(model, paths)
    if pixel is not None:
        check_inside(pixel, found.read(0)[0].shape[-2:], found.names[0])
    with (
        large_images(),
        memory_hints(["smaller images", "--device cpu"]),
        Progress("collecting", len(found), sys.stderr) as bar,
    ):
        tensors = (image for image, _ in prefetch(found.read, range(len(found)), workers))
        statistics = affinity.affinity_statistics(network.model, tensors, layer=layer, top=top, progress=bar.update)
    image = found.read(0)[0]
    position = affinity.position_affinity(network.model, image, pixel, layer=statistics.layer, top=top)
    print(affinity.describe(statistics, position, found.names[0], found.description))
    about = {"model": str(model), "data": found.description}
    written = affinity.write(out, about, statistics, position, found.names)
    with figures.figure_style(width):
        figure = figures.draw_affinity(statistics, position, image.permute(1, 2, 0).numpy(), width=width)
        written += [figures.save(figure, path, dpi) for path in paths]
    print(f"wrote {', '.join(map(str, written))}")
    return 0


def _parse_pixel(text: str) -> tuple[float, float]:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d*)?),(\d{1,9}(?:\.\d*)?)", text)
    if not found:
        raise UsageError(f"--at is {text[:60]!r}; expected X,Y in pixels, such as 120,80")
    return float(found[1]), float(found[2])
