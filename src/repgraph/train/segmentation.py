"""Semantic segmentation: crops of one size, losses over pixels, mIoU."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph import data as datasets
from repgraph.constants import IGNORE
from repgraph.data.labels import Labels
from repgraph.data.transforms import TrainTransform, normalise
from repgraph.distributed import all_reduce
from repgraph.errors import UsageError
from repgraph.evaluation import evaluate
from repgraph.evaluation.segmentation import SUMMARY, OnProgress
from repgraph.inference import Settings
from repgraph.models import RGNet, rgnet
from repgraph.recipes import Recipe
from repgraph.train.stream import Batch, Transform
from repgraph.train.task import Task, Validation


class Segmentation(Task):
    """RGNet and its baselines."""

    losses = ("loss", "auxiliary_loss")
    scores = SUMMARY
    best = "miou"
    fixed_size = True
    recipe: Recipe

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        weights = recipe.optim.class_weights
        self.class_weights = torch.tensor(weights, dtype=torch.float64) if weights else None

    def open(self, split: str, *, training: bool) -> Any:
        data = self.recipe.data
        if data.name in datasets.INSTANCES:
            raise UsageError(f"data.name is {data.name!r}, which has no label masks; use a recipe for detection")
        found = datasets.load(data.name, data.root, split, **data.options)
        weights = self.recipe.optim.class_weights
        if weights and len(weights) != len(found.labels):
            raise UsageError(f"optim.class_weights has {len(weights)} numbers for {len(found.labels)} classes")
        return found

    def build(self, labels: Labels) -> RGNet:
        options = self.model_options()
        options["fusion"] = None if options["fusion"] == "auto" else options["fusion"]
        model, crop = rgnet(len(labels), labels=labels.to_dict(), **options), self.recipe.data.crop
        self.notes += [f"initial weights: {model.initial}"] * bool(model.initial)
        for path, (height, width) in model.keep_reach(*crop).items():
            change = f"they start at most {(min(height, width) - 1) / 2:g} positions away, also on larger images"
            size = f"the {height} x {width} map of data.crop={crop}"
            self.notes.append(f"{path}: the initial nodes do not fit {size}; {change}")
        return model

    def transform(self, model: Any) -> Transform:
        data = self.recipe.data
        return TrainTransform(data.crop, data.scales, data.flip, model.mean, data.photometric)

    def collate(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[Tensor, Tensor]:
        """Return images (B, 3, h, w) and masks (B, h, w)."""
        images, masks = (torch.stack([each.as_subclass(Tensor) for each in part]) for part in zip(*pairs, strict=True))
        return images, masks

    def amount(self, batch: Batch) -> Tensor:
        """Return the number of labeled pixels, or the sum of their class weights, over all processes."""
        if self.class_weights is not None:
            self.class_weights = self.class_weights.to(batch.targets.device)
        return all_reduce(count_labelled(batch.targets, self.class_weights))

    def inputs(self, model: Any, part: Batch) -> tuple[Tensor]:
        layout = torch.channels_last if self.recipe.train.channels_last else torch.contiguous_format
        return (normalise(part.images, model.mean, model.std).contiguous(memory_format=layout),)

    def loss(self, model: Any, part: Batch, amount: Any, shares: int) -> tuple[Tensor, list[Tensor]]:
        """Return the part's sum of losses divided by the labeled pixels of the whole batch."""
        optim = self.recipe.optim
        result = model(*self.inputs(model, part))
        logits, auxiliary = result if isinstance(result, tuple) else (result, None)
        targets, total = part.targets, amount
        if optim.ohem > 0:  # the number of hard pixels is only known per part: take the mean over the parts
            targets = hard_pixels(logits, part.targets, optim.ohem, optim.ohem_least * len(part.targets))
            total = all_reduce(count_labelled(targets, self.class_weights)) * self.recipe.train.accumulate
        loss = cross_entropy(logits, targets, total, self.class_weights)
        if auxiliary is None:
            return loss, [loss, torch.zeros_like(loss)]
        auxiliary_loss = cross_entropy(auxiliary, part.targets, amount, self.class_weights)
        return loss + optim.auxiliary_weight * auxiliary_loss, [loss, auxiliary_loss]

    def validate(self, model: Any, data: Any, progress: OnProgress | None = None) -> Validation:
        """Score the network with the recipe's test settings, but at scale 1 and without flip."""
        train, limit = self.recipe.train, self.recipe.data.val_limit or None
        settings = Settings.from_recipe(self.recipe, scales=(1.0,), flip=False, precision=train.precision)
        benchmark = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = False  # images come in many sizes
        try:
            with torch.compiler.set_stance("force_eager") if train.compile else contextlib.nullcontext():
                scores = evaluate(model, data, settings, limit=limit, progress=progress).scores
        finally:
            torch.backends.cudnn.benchmark = benchmark
        summary = f"val mIoU {100 * scores.miou:.2f} %, pixel accuracy {100 * scores.pixel_accuracy:.2f} %"
        if not scores.pixels:
            summary = "no score: no pixel of the validation images is labeled; check them with repgraph data check"
        return Validation(scores, summary, {name: getattr(scores, name) for name in self.scores})


def count_labelled(masks: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the number of labeled pixels in masks (B, H, W) as float64, or the sum of their class weights."""
    labelled = masks != IGNORE
    if weights is None:
        return labelled.sum(dtype=torch.float64)
    return weights.double()[masks.masked_fill(~labelled, 0).long()].masked_fill(~labelled, 0).sum()


def cross_entropy(logits: Tensor, masks: Tensor, total: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the sum of the pixels' cross-entropies divided by ``total``, or 0 if it is 0.

    Logits are (B, K, H, W), masks (B, H, W) with 255 for pixels to ignore; ``weights`` has one per class.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    weights = None if weights is None else weights.to(dtype)
    return _pixel_losses(logits.to(dtype), masks, weights, "sum") / torch.where(total > 0, total, 1.0).to(dtype)


@torch.no_grad()
def hard_pixels(logits: Tensor, masks: Tensor, threshold: float, minimum: int) -> Tensor:
    """Keep the labels of pixels whose class has a probability below ``threshold``, and of the ``minimum`` hardest."""
    losses = _pixel_losses(logits.float(), masks, None, "none").flatten()
    losses = losses.masked_fill(masks.flatten() == IGNORE, -math.inf)
    kept = losses > -math.log(threshold)
    if minimum > 0:
        kept |= losses >= losses.topk(min(minimum, losses.numel())).values[-1]
    return masks.masked_fill(~kept.view_as(masks), IGNORE)


def _pixel_losses(logits: Tensor, masks: Tensor, weights: Tensor | None, reduction: str) -> Tensor:
    """Return the pixels' cross-entropies (B, H, W), 0 where unlabeled, or their sum."""
    if not torch.are_deterministic_algorithms_enabled():
        return F.cross_entropy(logits, masks.long(), weights, ignore_index=IGNORE, reduction=reduction)
    # These operations are deterministic on a GPU, but need more memory.
    classes = torch.arange(logits.shape[1], device=logits.device).view(1, -1, 1, 1)
    losses = torch.where(masks[:, None] == classes, -logits.log_softmax(1), 0.0)
    losses = (losses if weights is None else losses * weights.view(1, -1, 1, 1)).sum(1)
    return losses.sum() if reduction == "sum" else losses
