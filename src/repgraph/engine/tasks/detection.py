"""Detection and instance segmentation: Mask R-CNN on images of any sizes with objects, box and mask AP."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.tv_tensors import Image

from repgraph import data as datasets
from repgraph.data.coco import InstanceData, RandomFlip
from repgraph.data.coco.dataset import BAD_IMAGE, IMAGE_SIZE
from repgraph.data.labels import Labels
from repgraph.data.listing import need_all
from repgraph.engine.detection import CocoEvaluation, Detected, DetectionScores, evaluate
from repgraph.engine.inference.network import NotFinite
from repgraph.engine.tasks.objects import OBJECTS, Objects, collate, widened, without_slivers
from repgraph.engine.tasks.task import Progress, Task, Tested, Transform, Where
from repgraph.engine.together import summed
from repgraph.engine.training.cache import Codec
from repgraph.engine.training.chance import grouped
from repgraph.errors import UsageError
from repgraph.models import MaskRCNN, mask_rcnn
from repgraph.recipes import DetectionRecipe

PREDICTIONS = "predictions"  # the folder, in a run's, of what was found where there is no score
_SCORES = ("ap", "ap50", "ap75", "small", "medium", "large")


class Detection(Task):
    """Mask R-CNN, by a recipe."""

    losses = ("loss", "loss_classifier", "loss_box_reg", "loss_mask", "loss_objectness", "loss_rpn_box_reg")
    scores = tuple(f"{kind}_{name}" for kind in ("box", "mask") for name in _SCORES)
    best = "mask_ap"
    fixed = False
    smaller = "smaller images"
    remedy = "; give fewer data.workers, or leave large images out"
    unlearned = "there was not one object since the last checkpoint, and little was learned; look at the annotations"

    def __init__(self, recipe: DetectionRecipe) -> None:
        self.recipe: DetectionRecipe = recipe
        self._remarks: list[str] = []
        if recipe.train.compile:
            raise UsageError("train.compile is for images of one size, which a detector's are not; leave it out")

    def open(self, split: str, learning: bool) -> InstanceData:
        """Images that can be used; to learn from, those with objects, and no crowds."""
        data = self.recipe.data
        if data.name not in datasets.INSTANCES:
            raise UsageError(
                f"data.name is {data.name!r}, which has no objects; for detection there is "
                f"{', '.join(datasets.INSTANCES)}, a format that other sets have too"
            )
        if not data.root:
            raise UsageError("where are the images and annotations? Give their folder: --data ROOT")
        options = {"crowds": False, "empty": False} | data.options
        if not learning:  # crowds, and images without objects, count in a test
            options |= {"crowds": True, "empty": True}
        found: InstanceData = need_all(datasets.opener(data.name, data.root, **options)(split)).verify()
        self._remarks += _left_out(found)
        return found

    def pick(self, data: InstanceData, indices: Sequence[int], about: str = "") -> InstanceData:
        part = copy.copy(data)
        part.items = [data.items[index] for index in indices]
        return part

    def remarks(self) -> list[str]:
        return self._remarks

    def build(self, labels: Labels) -> MaskRCNN:
        model, test = self.recipe.model, self.recipe.test
        return mask_rcnn(
            len(labels),
            model.backbone,
            weights=None if model.weights == "none" else model.weights,
            new_predictors=model.new_predictors,
            caffe_style={"auto": None, "yes": True, "no": False}[model.caffe_style],
            context=model.context,
            where=model.where or None,
            context_options=model.context_options or None,
            norm=model.norm,
            trainable_stages=model.trainable_stages,
            min_size=model.min_size,
            max_size=model.max_size,
            score_threshold=test.score_threshold,
            nms_threshold=test.nms_threshold,
            detections=test.detections,
            labels=labels.to_dict(),
        )

    def rebuild(self, config: dict[str, Any]) -> MaskRCNN:
        return MaskRCNN.build(config, "the config in the checkpoint")

    @property
    def codec(self) -> Codec:
        return OBJECTS

    def transform(self, model: nn.Module) -> Transform:
        flip, longest = RandomFlip(0.5 if self.recipe.data.flip else 0.0), self.recipe.model.max_size

        def made(image: Image, target: dict[str, Any], generator: torch.Generator) -> tuple[Any, Any]:
            flipped, moved = flip(image, target, generator)
            return widened(flipped, without_slivers(moved), longest)

        return made

    def choice(self, images: Any) -> Callable[[int], list[int]]:
        """Wide images in some batches, high ones in others, so that less of a batch is padding."""
        train = self.recipe.train
        if not self.recipe.data.by_orientation:
            return super().choice(images)
        wide = [height <= width for height, width in images.sizes]
        groups = [[index for index, each in enumerate(wide) if each is kind] for kind in (True, False)]
        return lambda iteration: grouped(train.seed, groups, iteration, train.batch)

    def collate(self, iteration: int, items: Sequence[tuple[Any, Any]]) -> Objects:
        return collate(iteration, items)

    def parts(self, batch: Objects, count: int) -> Iterable[Objects]:
        return batch.parts(count)

    def amount(self, batch: Objects) -> Tensor:
        """The objects of this device's images."""
        return torch.tensor(float(len(batch.labels)), dtype=torch.float64)

    def inputs(self, model: Any, part: Objects) -> tuple[Any, ...]:
        return part.images(), part.targets()

    def loss(self, model: Any, part: Objects, amount: Tensor, shares: int) -> tuple[Tensor, list[Tensor]]:
        """torchvision's five losses, each a mean over what it samples in the part's images; parts count alike."""
        found = model(*self.inputs(model, part))
        each = [found[name] / shares for name in self.losses[1:]]
        whole = torch.stack(each).sum()
        return whole, [whole, *each]

    def test(self, model: Any, data: InstanceData, where: Where, progress: Progress | None = None) -> Tested:
        found = self._detected(model, data, where, progress)
        if found.scores is None:
            return Tested(None, _written(found.results, where))
        noted = _noted(found.scores)
        return Tested(found.scores, told(found.scores), noted, noted[self.best])

    def _detected(self, model: Any, data: InstanceData, where: Where, progress: Progress | None) -> Detected:
        found, problem = None, ""
        try:
            found = evaluate(
                model,
                data,
                rank=where.rank,
                world=where.world,
                limit=self.recipe.data.val_limit or None,
                precision=self.recipe.train.precision,
                progress=progress,
            )
        except NotFinite as error:
            problem = str(error)
            spare = CocoEvaluation(data).reduce()  # the others wait to bring theirs together
            if spare.missing() is None:
                spare.scores()
        bad = summed(torch.tensor(float(found is None), device=next(model.parameters()).device))
        if found is None or bad:
            raise NotFinite(problem or "the network gives numbers that are not finite")
        return found

    @property
    def size(self) -> str:
        model = self.recipe.model
        return f"model.min_size={model.min_size}, model.max_size={model.max_size}"


def told(scores: DetectionScores) -> str:
    """Scores in a line."""
    box, mask = scores.box, scores.mask
    if box.ap != box.ap:
        return "no score: there is nothing to find in the validation images; look at them with repgraph data check"
    line = f"val box AP {100 * box.ap:.2f} %, AP50 {100 * box.ap50:.2f} %"
    return line if mask is None else f"{line}; mask AP {100 * mask.ap:.2f} %, AP50 {100 * mask.ap50:.2f} %"


def _noted(scores: DetectionScores) -> dict[str, float]:
    kinds = {"box": scores.box, "mask": scores.mask or scores.box}
    return {f"{kind}_{name}": getattr(each, name) for kind, each in kinds.items() for name in _SCORES}


def _written(results: CocoEvaluation, where: Where) -> str:
    """Write what was found, as files that COCO's tools take, and say so."""
    folder = where.folder / PREDICTIONS
    for kind in ("bbox", "segm"):
        results.write(folder / f"{where.iteration}-{kind}.json", kind)
    return f"no score: {results.missing()}; what was found is in {folder}/{where.iteration}-*.json"


def _left_out(data: InstanceData) -> list[str]:
    """What there was in the annotation file, and is not in the data."""
    found = dict(data.skipped)
    empty = len(data.annotations.pictures) - len(data) - sum(found.get(kind, 0) for kind in (BAD_IMAGE, IMAGE_SIZE))
    if empty:
        found = {"images without objects": empty, **found}
    said = ", ".join(f"{kind}: {count}" for kind, count in found.items())
    return [f"{data.name} {data.split}: left out are {said}"] if said else []
