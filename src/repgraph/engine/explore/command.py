"""The options of ``repgraph explore``, and what it prints."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repgraph.arguments import fraction, parse_device, positive
from repgraph.engine.evaluation.sets import add_data, open_data, open_objects
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from repgraph.data.labels import Labels
    from repgraph.engine.explore.page import Subject
    from repgraph.engine.prediction.inputs import Source
    from repgraph.engine.trained import Trained

FIRST = 4  # images of a split, where none are named
EPILOG = """\
examples:
  repgraph explore dog.jpg bus.jpg --model runs/voc-r50-rgnet --out dogs.html
  repgraph explore photo.png --truth mask.png --model runs/my-run
  repgraph explore 0 17 2007_000033 --model runs/voc-r50-rgnet --data VOC2012 --split val
  repgraph explore --model demo/runs/rgnet-0 --split test --limit 6

The page is one file that opens from disk: point at a pixel to see its representative nodes, click to pin them; ? in it
lists the keys. Images go through the network whole and at their size. Photographs are turned as their EXIF orientation
says, unless there are masks: those match the stored pixels. With --split, images are named by number or name; without
names the first are taken. docs/explorer.md says more.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    put = parser.add_argument
    put("images", metavar="IMAGE", nargs="*", help="images, folders, patterns; with --split numbers or names in it")
    put("--model", type=Path, required=True, metavar="RUN", help="folder of a run or network, .ckpt or .safetensors")
    put("--out", type=Path, default=Path("explorer.html"), metavar="FILE", help="the page")
    put("--truth", nargs="+", type=Path, metavar="MASK", help="label files, one for each image, in the data set's ids")
    put("--layers", nargs="+", metavar="PATH", help="which layers, by their paths or the ends of them (default: all)")
    put("--side", type=positive, metavar="N", help="shrink images from files to N pixels on the longer side first")
    put("--score", type=fraction, default=0.5, metavar="F", help="the least of objects that are shown")
    put("--title", help="what the page is called (default: the name of the run)")
    put("--device", default="auto", help="cpu, cuda or cuda:1; auto is cuda where there is one")
    add_data(parser, "then IMAGE are numbers or names in it")


def run(arguments: argparse.Namespace) -> int:
    from repgraph import files
    from repgraph.engine import sight, trained
    from repgraph.engine.explore.page import explore
    from repgraph.engine.prediction import inputs
    from repgraph.engine.prediction.reading import large_images
    from repgraph.engine.progress import Meter

    if not arguments.images and not arguments.split:
        raise UsageError("give images (files, folders, patterns), or --split, a split of a data set")
    if not arguments.split and any((arguments.data, arguments.dataset, arguments.option)):
        raise UsageError("--data, --dataset and --option go with --split")
    if arguments.truth and arguments.split:
        raise UsageError("--truth is for images in files; the split of a data set has its own")
    if arguments.side and arguments.split:
        raise UsageError("--side is for images in files; those of a data set go through the network as they are")
    device = parse_device(arguments.device)
    files.check_writable(arguments.out)  # else found out when all is done
    network = trained.load(arguments.model, device)
    sight.layers(network.model, arguments.layers)  # the same
    count, subjects = _split(arguments, network) if arguments.split else _files(arguments, network)
    with large_images(), Meter("looking", count, sys.stderr) as meter:
        made = explore(
            network.model,
            subjects,
            network.labels,
            title=inputs.text(arguments.title or _name(arguments.model)),
            about=_about(network),
            layers=arguments.layers,
            score=arguments.score,
            progress=meter.at,
        )
    files.write(arguments.out, made.encode())
    size = f"{len(made) / 1e6:.1f} MB"
    print(f"{count} image{'s' * (count > 1)}: {arguments.out} ({size}); it opens in any browser, without a network")
    return 0


def _files(arguments: argparse.Namespace, network: "Trained") -> tuple[int, Iterator["Subject"]]:
    """Images from files, with masks where they are given."""
    from repgraph.engine.prediction import inputs

    sources = inputs.find(arguments.images)[: arguments.limit]
    inputs.spare(sources, [arguments.out])
    masks: list[Path] | None = arguments.truth
    if masks and network.detects:
        raise UsageError("--truth is for networks that label pixels; objects are read with --split and --data")
    if masks and len(masks) != len(sources):
        raise UsageError(f"there are {len(sources)} images and {len(masks)} masks in --truth; give one for each image")
    return len(sources), _read(sources, masks, network, arguments.side)


def _read(
    sources: list["Source"], masks: list[Path] | None, network: "Trained", side: int | None
) -> Iterator["Subject"]:
    import torch
    from torchvision.tv_tensors import Image, Mask

    from repgraph.data.dataset import Item, mismatch
    from repgraph.data.files import read_image, read_values
    from repgraph.data.labels import DataError
    from repgraph.data.transforms import resize
    from repgraph.engine.explore.page import Subject, named, true_labels
    from repgraph.engine.prediction import inputs
    from repgraph.engine.prediction.reading import read_upright

    labels = network.labels or named(network.model.classes)
    for i, source in enumerate(sources):
        image = Image(read_upright(source.path) if masks is None else read_image(source.path))
        truth = None
        if masks is not None:
            classes = labels.to_train(read_values(masks[i]), masks[i])
            if classes.shape != tuple(image.shape[-2:]):
                item = Item(source.name, source.path, masks[i])
                raise DataError(mismatch(item, tuple(image.shape[-2:]), classes.shape))
            truth = Mask(torch.from_numpy(classes))
        if side and side < max(image.shape[-2:]):
            image, truth = resize(image, truth, side / max(image.shape[-2:]))
        yield Subject(inputs.text(source.name), image, None if truth is None else true_labels(truth.numpy(), labels))


def _split(arguments: argparse.Namespace, network: "Trained") -> tuple[int, Iterator["Subject"]]:
    """Images of a data set, with what is true of them."""
    opened: Any = (open_objects if network.detects else open_data)(arguments, network.recipe)
    if len(opened.labels) != network.model.classes:
        raise UsageError(
            f"the network has {network.model.classes} classes, {opened.name} {len(opened.labels)}; "
            "give the data set it was trained on"
        )
    names = [item.name for item in opened.items]
    if arguments.images:
        chosen = [_number(text, names, opened) for text in arguments.images][: arguments.limit]
    else:
        chosen = list(range(min(len(opened), arguments.limit or FIRST)))
    return len(chosen), (_subject(opened, i, names[i], network.labels or opened.labels) for i in chosen)


def _number(text: str, names: list[str], opened: Any) -> int:
    """Which image of a split is meant: its number from 0, its name, or its name without folders and ending."""
    if text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < len(names):
        return int(text)
    stems = [Path(name).stem for name in names]
    if text in stems:
        return stems.index(text)
    raise UsageError(
        f"there is no image {text!r} in {opened.name} {opened.split}; "
        f"give a number from 0 to {len(names) - 1}, or a name such as {names[0]!r}"
    )


def _subject(opened: Any, index: int, name: str, labels: "Labels") -> "Subject":
    from repgraph.engine.explore.page import Subject, true_labels, true_objects
    from repgraph.engine.prediction import inputs

    image, truth = opened[index]
    if truth is None:
        return Subject(inputs.text(name), image)
    if isinstance(truth, dict):
        return Subject(inputs.text(name), image, true_objects(truth, image.shape[-2:], labels))
    return Subject(inputs.text(name), image, true_labels(truth.numpy(), labels))


def _name(path: Path) -> str:
    path = path.expanduser().absolute()
    return path.parent.name if path.name in ("model", "checkpoints") else path.name


def _about(network: "Trained") -> str:
    """The network in one line."""
    config = network.model.config
    what = (
        f"{'Mask R-CNN' if network.detects else 'RGNet'}, {config['backbone']}, context {config['context'] or 'none'}"
    )
    return what if network.recipe is None else f"{what}, recipe {network.recipe.name}"
