"""Objects in many images, as pictures in a folder and as COCO's JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repgraph import files
from repgraph.data.coco import rle
from repgraph.data.labels import Labels
from repgraph.engine.detection.found import Found
from repgraph.engine.detection.network import detect
from repgraph.engine.inference.memory import advised
from repgraph.engine.prediction.encoding import write_png
from repgraph.engine.prediction.inputs import Source
from repgraph.engine.prediction.work import Move, Outcome, Progress, keep_inputs, over
from repgraph.pictures.detections import OPACITY, SCORE, draw

OVERLAYS = "overlays"
SIDE = 4096  # pictures of larger images are shrunk to it


@dataclass(frozen=True)
class Style:
    """What the pictures show: objects of at least that score, masks of that opacity; None for no pictures."""

    score: float = SCORE
    opacity: float | None = OPACITY
    side: int = SIDE


@dataclass(frozen=True)
class Numbered:
    """An image's own id and its name in JSON files."""

    id: int
    name: str


@dataclass
class Collected:
    """What was found in images, as texts of JSON, which take a third of the memory of what is in them."""

    images: dict[int, str] = field(default_factory=dict)
    objects: dict[int, list[str]] = field(default_factory=dict)

    def add(self, image: Numbered, found: Found, ids: Sequence[int]) -> None:
        """Add what was found in an image; ``ids`` are those of the categories."""
        height, width = found.size
        self.images[image.id] = json.dumps(dict(id=image.id, file_name=image.name, height=height, width=width))
        results = found.results(image.id, ids)
        masks = [None] * len(results) if found.masks is None else [rle.area(runs) for runs in found.masks]
        for result, area in zip(results, masks, strict=True):
            result["area"] = round(result["bbox"][2] * result["bbox"][3], 2) if area is None else area
            result["iscrowd"] = 0
        self.objects[image.id] = [json.dumps(result)[1:-1] for result in results]

    def gather(self) -> "Collected":
        """What all processes collected, in the first; every process has to call it."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            first = dist.get_rank() == 0
            everyone: list[Any] | None = [None] * dist.get_world_size() if first else None
            dist.gather_object((self.images, self.objects), everyone)
            for images, objects in everyone or []:
                self.images |= images
                self.objects |= objects
        return self

    def annotations(self, labels: Labels) -> bytes:
        """A file in COCO's format of annotations, with a score for each: images by name, categories, objects."""
        categories = [dict(id=i, name=name) for i, name in zip(labels.ids, labels.names, strict=True)]
        ids = sorted(self.images)
        objects = [text for number in ids for text in self.objects[number]]
        numbered = (f'{{"id": {k}, {text}}}' for k, text in enumerate(objects, 1))
        images = ",\n".join(self.images[number] for number in ids)
        listed = ",\n".join(numbered)
        text = (
            f'{{"images": [\n{images}\n],\n"categories": {json.dumps(categories)},\n"annotations": [\n{listed}\n]}}\n'
        )
        return text.encode()

    def results(self, kind: str) -> bytes:
        """A results file with boxes ("bbox") or masks ("segm"), as COCO's server takes it."""
        kept = ("image_id", "category_id", "score", {"bbox": "bbox", "segm": "segmentation"}[kind])
        lines = []
        for number in sorted(self.objects):
            for text in self.objects[number]:
                result = json.loads(f"{{{text}}}")
                lines.append(json.dumps({key: result[key] for key in kept if key in result}))
        return ("[" + ",\n".join(lines) + "]\n").encode()


def detect_files(
    model: nn.Module,
    jobs: Sequence[Source],
    numbers: Mapping[Source, Numbered],
    labels: Labels,
    out: Path,
    *,
    read: Callable[[Source], Tensor],
    precision: str = "fp32",
    style: Style = Style(),  # noqa: B008 (it is frozen)
    workers: int = 2,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Outcome, Collected]:
    """Find the objects in every image; pictures of them go to ``out/overlays``, and all that was found is returned.

    What goes wrong is as for :func:`repgraph.engine.prediction.work.over`. ``numbers`` has the id and the name of each
    image; ``labels`` the categories, whose names are drawn.
    """
    keep_inputs(jobs, lambda job: [out / OVERLAYS / f"{job.name}.png"])
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    collected = Collected()

    def work(job: Source, image: Tensor, move: Move) -> Found:
        about = f"{job.path} ({image.shape[2]} x {image.shape[1]} pixels): "
        with advised(helps(precision, device), about):
            found = detect(model, image, precision=precision)
        collected.add(numbers[job], found, labels.ids)
        move(1)
        return found

    def write(job: Source, image: Tensor, found: Found) -> list[Path]:
        if style.opacity is None:
            return []
        picture = draw(image, found, labels.names, score=style.score, opacity=style.opacity, side=style.side)
        return [write_png(out / OVERLAYS / f"{job.name}.png", picture)]

    outcome = over(jobs, read, work, write, workers=workers, progress=progress, say=say)
    return outcome, collected


def helps(precision: str, device: torch.device) -> list[str]:
    """What to try where memory runs out."""
    found = ["--precision bf16"] if precision == "fp32" and device.type == "cuda" else []
    found += ["--device cpu"] if device.type == "cuda" else ["images of fewer pixels"]
    return [*found, "a network with a smaller max_size"]


def write_all(out: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files into a folder, each whole or not at all."""
    return [files.write(out / name, content) for name, content in contents.items()]
