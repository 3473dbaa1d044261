"""Predictions of many images as files in a folder; images are prefetched, and files are written in the background."""

import contextlib
import errno
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from repgraph import files
from repgraph.data.coco import masks
from repgraph.data.files import prefetch
from repgraph.data.labels import DataError, Labels
from repgraph.drawing import detections as detection_drawing
from repgraph.drawing import overlay as label_drawing
from repgraph.errors import UsageError
from repgraph.inference.detection import Detections, detect
from repgraph.inference.inputs import Source, check_not_overwritten
from repgraph.inference.network import NotFinite, Trained, memory_hints
from repgraph.inference.sliding_window import Settings, predict

LABELS, OVERLAYS = "labels", "overlays"  # folders
DETECTIONS, BOXES, MASKS = "detections.json", "bbox.json", "segm.json"
SIDE = 4096  # overlays of larger images are shrunk


def predict_files(
    trained: Trained,
    sources: Sequence[Source],
    labels: Labels,
    out: Path,
    settings: Settings,
    *,
    plain: bool = False,
    overlays: bool = True,
    score: float = 0.5,
    workers: int = 2,
    progress: Callable[[int], None] = lambda done: None,
    warn: Callable[[str], None] = lambda text: None,
) -> tuple[dict[int, Detections], int, int]:
    """Predict images, and write label files (``plain``: without a palette) and overlays (of objects from a ``score``).

    Images that cannot be read or written are skipped with a warning; non-finite outputs and a full disk are errors.
    Returns the detections by image id, and the numbers of files written and of images that failed.
    """
    folders = [LABELS] * (not trained.is_detector) + [OVERLAYS] * overlays
    inputs = [path for source in sources for path in (source.path, source.mask) if path is not None]
    check_not_overwritten(inputs, [out / folder / f"{source.name}.png" for source in sources for folder in folders])
    for name in [f"{folder}/0.png" for folder in folders] + [DETECTIONS] * trained.is_detector:
        files.check_writable(files.inside(out, name))
    detections: dict[int, Detections] = {}
    failed: set[int] = set()

    @contextlib.contextmanager
    def skipping(source: Source) -> Iterator[None]:
        """Skip an image that cannot be predicted or written."""
        try:
            yield
        except NotFinite as error:
            raise NotFinite(f"{source.path}: {error}") from error
        except UsageError as error:
            if getattr(error.__cause__, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise
            failed.add(source.id)
            warn(str(error) if str(source.path) in str(error) else f"{source.path}: {error}")

    def read(source: Source) -> tuple[Source, Tensor | DataError]:
        try:
            return source, source.read().as_subclass(Tensor)
        except DataError as error:
            return source, error

    def results() -> Iterator[tuple[Source, Tensor, Any]]:
        for done, (source, image) in enumerate(prefetch(read, sources, workers), 1):
            with skipping(source):
                if isinstance(image, DataError):
                    raise image
                size = f"{image.shape[2]} x {image.shape[1]} pixels"
                with memory_hints(trained.memory_hints, f"{source.path} ({size}): "):
                    if trained.is_detector:
                        result: Any = detect(trained.model, image, precision=settings.precision)
                        detections[source.id] = result
                    else:
                        result = predict(trained.model, image, settings)
                yield source, image, result
            progress(done)

    def draw(folder: str, image: Tensor, result: Any) -> Image.Image:
        if folder == LABELS:
            return label_image(result, labels, plain=plain)
        pixels = image.permute(1, 2, 0).numpy()
        if trained.is_detector:
            return detection_drawing.draw(pixels, result, labels.names, score=score, side=SIDE)
        return label_drawing.overlay(pixels, result, labels, side=SIDE)

    def write(item: tuple[Source, Tensor, Any]) -> int:
        source, image, result = item
        written = 0
        with skipping(source):
            for folder in folders:
                content = io.BytesIO()
                with memory_hints(["--no-overlays"]):
                    draw(folder, image, result).save(content, "PNG")
                files.write(files.inside(out, f"{folder}/{source.name}.png"), content.getvalue())
                written += 1
        return written

    written = sum(prefetch(write, results(), workers))
    return detections, written, len(failed)


def write_detections(out: Path, sources: Sequence[Source], detections: Mapping[int, Detections], labels: Labels) -> int:
    """Write ``detections.json``, COCO's annotations with a score for each object; return the number of files."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for source in (source for source in sources if source.id in detections):  # the others failed
        height, width = detections[source.id].size
        images.append(dict(id=source.id, file_name=str(source.path), height=height, width=width))
        for result in detections[source.id].coco_results(source.id, labels.ids):
            area = int(masks.tools().area(result["segmentation"]))
            annotations.append({"id": len(annotations) + 1, **result, "area": area, "iscrowd": 0})
    categories = [dict(id=number, name=name) for number, name in zip(labels.ids, labels.names, strict=True)]
    content = dict(images=images, categories=categories, annotations=annotations)
    files.write(out / DETECTIONS, json.dumps(content) + "\n")
    return 1


def write_coco_results(out: Path, detections: Mapping[int, Detections], labels: Labels) -> int:
    """Write ``bbox.json`` and ``segm.json`` for COCO's evaluation server; return the number of files."""
    for name, kind in ((BOXES, "bbox"), (MASKS, "segm")):
        results = [each for key in sorted(detections) for each in detections[key].coco_results(key, labels.ids, kind)]
        files.write(out / name, json.dumps(results) + "\n")
    return 2


def label_image(classes: Tensor, labels: Labels, *, plain: bool = False) -> Image.Image:
    """Return classes (H, W) as an image of the data set's ids: 8 bits with a palette (not if ``plain``), or 16 bits."""
    values = labels.to_file(classes.numpy())
    image = Image.fromarray(values)
    if values.dtype == np.uint8 and not plain:
        palette = np.zeros((256, 3), dtype=np.uint8)
        palette[list(labels.ids)] = labels.palette
        image.putpalette(palette.tobytes())
    return image
