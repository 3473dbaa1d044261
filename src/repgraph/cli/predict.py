"""``repgraph predict``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from repgraph.cli import options
from repgraph.cli.options import option
from repgraph.errors import UsageError


@options.flatten
def predict(
    data: options.Data,
    inference: options.Inference,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT", help="Images, folders, or patterns such as 'photos/*.jpg'.")
    ] = None,
    model: options.ModelOption = None,
    out: Annotated[Path, option("Folder of the predictions.", metavar="DIR")] = Path("predictions"),
    recursive: Annotated[bool, option("Also search the sub-folders of folders.", "--recursive")] = False,
    overlays: Annotated[bool | None, option("Write overlays.", show_default="not with --split")] = None,
    score: Annotated[float | None, option("Minimum score in overlays.", min=0, max=1, show_default="0.5")] = None,
) -> int:
    """Segment images, or detect objects in them.

    Examples:
      repgraph predict photo.jpg
      repgraph predict photos 'more/**/*.png' --model runs/voc-r50-rgnet --recursive
      repgraph predict --model runs/cityscapes-r101-rgnet --data cityscapes --split test --out submission
      repgraph predict photos --model my-mask-rcnn --out found --score 0.7

    OUT/labels has PNGs with the data set's ids, OUT/overlays has overlays; for a Mask R-CNN, OUT/detections.json has
    all objects in COCO's format. With --split instead of INPUT, files have the names and the format that the data
    set's evaluation server expects. See docs/inference.md.

    Exit codes: 0 success; 1 some images could not be predicted (the others are still written); 2 invalid options or
    data, or an output folder that cannot be written.
    """
    split = data.split
    if bool(inputs) == (split is not None):
        raise UsageError("pass images (files, folders, patterns), or --split and --data for a split of a data set")
    if inputs and any(vars(data).values()):
        raise UsageError("--data, --dataset, --option and --limit need --split; they are not for images")

    model = options.model_or_shipped(model, inputs)

    import torch

    from repgraph.distributed import all_reduce, gather, process_group, rank, shard
    from repgraph.inference import files, network
    from repgraph.inference.inputs import find_images, large_images, split_images
    from repgraph.progress import Progress

    sources = find_images(inputs or (), recursive=recursive, skip=[out / files.LABELS, out / files.OVERLAYS])
    with process_group(inference.device) as device:
        trained, is_first = network.load(model, device), rank() == 0
        settings = inference.settings(trained)
        if score is not None and not trained.is_detector:
            raise UsageError("--score is for detectors; this network is for segmentation")
        labels, plain = trained.labels_or_numbers(), False
        if split is not None:
            images = trained.open_data(*data.source())
            network.check_classes(trained.model.classes, images.labels)
            sources, labels = split_images(images, data.limit), images.labels
            plain = images.name == "cityscapes"  # as its evaluation server expects
        own = [sources[index] for index in shard(len(sources))]
        with large_images(), Progress("predicting", len(own), sys.stderr if is_first else None) as progress:
            found, written, own_failed = files.predict_files(
                trained,
                own,
                labels,
                out,
                settings,
                plain=plain,
                overlays=overlays if overlays is not None else split is None,
                score=0.5 if score is None else score,
                workers=inference.workers,
                progress=progress.update,
                warn=lambda text: progress.print(f"repgraph predict: {text}"),
            )
        failed, written = all_reduce(torch.tensor([own_failed, written])).tolist()
        parts = gather(found)
    if is_first:
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
