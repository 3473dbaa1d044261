"""``repgraph predict``."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from repgraph.cli import options
from repgraph.errors import UsageError


def predict(
    model: options.Model,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for labels/ and overlays/, or detections.json.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT", help="Images, folders of images, or patterns such as 'photos/**/*.jpg'."),
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", help="Also search the sub-folders of folders.")] = False,
    overlays: Annotated[bool | None, typer.Option(help="Write overlays.", show_default="not with --split")] = None,
    score: Annotated[
        float | None, typer.Option(min=0, max=1, help="Minimum score of objects in overlays.", show_default="0.5")
    ] = None,
    data: options.Root = None,
    dataset: options.Dataset = None,
    split: Annotated[str | None, typer.Option(help="Predict a split of a data set instead of INPUT.")] = None,
    option: options.ReaderOptions = None,
    limit: options.Limit = None,
    mode: options.Mode = None,
    crop: options.Crop = None,
    stride: options.Stride = None,
    scales: options.Scales = None,
    flip: options.Flip = None,
    batch: options.Batch = None,
    memory: options.Memory = None,
    precision: options.Precision = None,
    device: options.Device = "auto",
    workers: options.Workers = options.WORKERS,
) -> int:
    """Predict the labels of images, or the objects in them.

    Examples:
      repgraph predict runs/voc-r50-rgnet photo.jpg --out predictions
      repgraph predict runs/voc-r50-rgnet photos 'more/**/*.png' --out predictions --recursive
      repgraph predict runs/cityscapes-r101-rgnet --data cityscapes --split test --out submission
      repgraph predict my-mask-rcnn photos --out found --score 0.7
      repgraph predict my-mask-rcnn --data coco --split test --out submission

    OUT/labels has PNGs of the data set's ids, OUT/overlays pictures; for a Mask R-CNN, OUT/detections.json has all
    objects in COCO's format. With --split, files are as the data set's evaluation server expects them.

    The exit code is 0, 1 if some images could not be predicted (the others are), or 2 for a mistake in the command or
    an output folder that cannot be written. See docs/inference.md.
    """
    if bool(inputs) == (split is not None):
        raise UsageError("give images (files, folders, patterns), or --split and --data for a split of a data set")
    if inputs and any((data, dataset, option, limit)):
        raise UsageError("--data, --dataset, --option and --limit need --split; they are not for images")
    given = options.window_settings(mode, crop, stride, scales, flip, batch, memory)
    reader_options = options.named_values("--option", option)

    import torch

    from repgraph.distributed import all_reduce, gather, process_group
    from repgraph.files import check_writable
    from repgraph.inference import Detections, Settings, files, network
    from repgraph.inference.inputs import find_images, large_images, split_images
    from repgraph.progress import Progress

    folders = [out / files.LABELS, out / files.OVERLAYS]
    note = partial(print, "repgraph predict:", file=sys.stderr)
    sources = find_images(inputs, recursive=recursive, skip=folders, warn=note) if inputs else []
    with process_group(device) as process:
        trained = network.load(model, process.device)
        if trained.is_detector:
            options.reject(given, options.NOT_FOR_DETECTORS)
        else:
            options.reject({"score": score}, "is for detectors; this network is for segmentation")
        labels, plain = trained.labels_or_numbers(), False
        if split is not None:
            images = trained.open_data(data, dataset, split, reader_options)
            network.check_classes(trained.model.classes, images.labels)
            sources, labels = split_images(images, limit), images.labels
            plain = images.name == "cityscapes"  # as its evaluation server expects
        check_writable(out / files.DETECTIONS if trained.is_detector else out / files.LABELS / "0.png")
        used = precision or trained.default_precision
        own = sources[process.rank :: process.world_size]
        found: dict[int, Detections] = {}
        with large_images(), Progress("predicting", len(own), sys.stderr if process.is_first else None) as progress:
            shared: dict[str, Any] = {
                "overlays": overlays if overlays is not None else split is None,
                "workers": workers,
                "progress": progress.update,
                "warn": lambda text: progress.print(f"repgraph predict: {text}"),
            }
            if trained.is_detector:
                shared |= {"precision": used, "score": 0.5 if score is None else score}
                found, written, own_failed = files.detect_files(trained.model, own, labels, out, **shared)
            else:
                settings = Settings.from_recipe(trained.recipe, precision=used, **given)
                shared["plain"] = plain
                written, own_failed = files.predict_files(trained.model, own, labels, out, settings, **shared)
        failed, written = all_reduce(torch.tensor([own_failed, written])).tolist()
        parts = gather(found)
    if process.is_first:
        objects = ""
        if trained.is_detector:
            found = {key: value for part in parts for key, value in part.items()}
            if split is None:
                written += files.write_detections(out, sources, found, labels)
            else:
                written += files.write_coco_results(out, found, labels)
            objects = f"{sum(map(len, found.values()))} objects, "
        print(f"{len(sources) - failed} of {len(sources)} images predicted, {objects}{written} files in {out}")
        if failed:
            print(f"repgraph predict: {failed} of {len(sources)} images could not be predicted", file=sys.stderr)
    return 1 if own_failed else 0
