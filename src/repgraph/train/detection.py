"""Object detection and instance segmentation: Mask R-CNN on images of any size, box and mask AP."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repgraph import data as datasets
from repgraph.data.coco import InstanceData
from repgraph.data.labels import Labels
from repgraph.data.transforms import RandomFlip, distort_colors
from repgraph.errors import UsageError
from repgraph.evaluation import evaluate_detection
from repgraph.evaluation.detection import SUMMARY
from repgraph.evaluation.segmentation import OnProgress
from repgraph.inference.detection import stretch_narrow
from repgraph.models import MaskRCNN, mask_rcnn
from repgraph.recipes import DetectionRecipe
from repgraph.train.stream import Batch, Transform
from repgraph.train.task import Task, Validation

MIN_BOX_SIDE = 1 / 16  # pixels; thinner boxes may vanish in resizing


class Detection(Task):
    """Mask R-CNN."""

    losses = ("loss", "loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg")
    scores = tuple(f"{kind}_{name}" for kind in ("box", "mask") for name in SUMMARY)
    best = "mask_ap"
    fixed_size = False
    recipe: DetectionRecipe

    def open(self, split: str, *, training: bool) -> InstanceData:
        """Open a split; crowds and images without objects are left out in training and kept in validation."""
        data = self.recipe.data
        if data.name not in datasets.INSTANCES:
            raise UsageError(f"data.name is {data.name!r}; detection needs {', '.join(datasets.INSTANCES)}")
        options = {"crowds": False, "empty": False} | data.options
        if not training:
            options |= {"crowds": True, "empty": True}
        found = datasets.load(data.name, data.root, split, **options)
        skipped = {"images without objects": found.empty, "annotations that cannot be used": len(found.problems)}
        if counts := ", ".join(f"{kind}: {count}" for kind, count in skipped.items() if count):
            self.notes.append(f"{found.name} {found.split}: skipped {counts}")
        return found

    def build(self, labels: Labels) -> MaskRCNN:
        options = self.model_options() | self.recipe.test.model_dump()
        options["caffe_style"] = {"auto": None, "yes": True, "no": False}[options["caffe_style"]]
        return mask_rcnn(len(labels), labels=labels.to_dict(), **options)

    def transform(self, model: Any) -> Transform:
        data, max_size = self.recipe.data, self.recipe.model.max_size
        flip = RandomFlip(0.5 if data.flip else 0.0)

        def augment(image: Tensor, target: dict[str, Any], generator: torch.Generator) -> tuple[Any, Any]:
            image, target = flip(image, target, generator)
            image = distort_colors(image, data.photometric, generator)
            return stretch(image, drop_thin_boxes(target), max_size)

        return augment

    def groups(self, images: Any) -> list[Sequence[int]]:
        """Put either landscape or portrait images into a batch, if ``data.by_orientation`` is set."""
        if not self.recipe.data.by_orientation:
            return super().groups(images)
        landscape = [height <= width for height, width in images.sizes]
        return [[index for index, each in enumerate(landscape) if each is kind] for kind in (True, False)]

    def collate(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
        """Return images (3, H, W) and objects as torchvision's detectors take them."""
        names = ("boxes", "labels", "masks")
        images = [image.as_subclass(Tensor) for image, _ in pairs]
        return images, [{name: target[name].as_subclass(Tensor) for name in names} for _, target in pairs]

    def inputs(self, model: Any, part: Batch) -> tuple[Any, ...]:
        return part.images, part.targets

    def loss(self, model: Any, part: Batch, amount: Any, shares: int) -> tuple[Tensor, list[Tensor]]:
        """Return torchvision's five losses, each a mean over its samples in the part; parts count equally."""
        found = model(*self.inputs(model, part))
        losses = [found[name] / shares for name in self.losses[1:]]
        total = torch.stack(losses).sum()
        return total, [total, *losses]

    def validate(self, model: Any, data: InstanceData, progress: OnProgress | None = None) -> Validation:
        limit, precision = self.recipe.data.val_limit or None, self.recipe.train.precision
        scores = evaluate_detection(model, data, limit=limit, precision=precision, progress=progress).scores
        box, mask = scores.box, scores.mask
        summary = f"val box AP {100 * box.ap:.2f} %, AP50 {100 * box.ap50:.2f} %"
        if math.isnan(box.ap):
            summary = "no score: the validation images have no objects; check them with repgraph data check"
        elif mask is not None:
            summary += f"; mask AP {100 * mask.ap:.2f} %, AP50 {100 * mask.ap50:.2f} %"
        kinds = {"box": box, "mask": mask or box}
        metrics = {f"{kind}_{name}": getattr(each, name) for kind, each in kinds.items() for name in SUMMARY}
        return Validation(scores, summary, metrics)


def drop_thin_boxes(target: dict[str, Any]) -> dict[str, Any]:
    """Return a target without objects whose boxes are too thin to survive resizing."""
    boxes = target["boxes"].as_subclass(Tensor)
    kept = ((boxes[:, 2:] - boxes[:, :2]) >= MIN_BOX_SIDE).all(1)
    return {**target, **{name: target[name].as_subclass(Tensor)[kept] for name in ("boxes", "labels", "masks")}}


def stretch(image: Tensor, target: dict[str, Any], max_size: int) -> tuple[Tensor, dict[str, Any]]:
    """Stretch an image and its target, as inference does, if it is too narrow for the network's size."""
    plain = image.as_subclass(Tensor)
    wide = stretch_narrow(plain, max_size)
    if wide is plain:
        return image, target
    (height, width), (new_height, new_width) = plain.shape[1:], wide.shape[1:]
    boxes = target["boxes"].as_subclass(Tensor) * torch.tensor([new_width / width, new_height / height] * 2)
    return wide, {**target, "boxes": boxes, "masks": stretch_narrow(target["masks"].as_subclass(Tensor), max_size)}
