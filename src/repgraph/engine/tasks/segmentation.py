"""Semantic segmentation: images and masks of one size, cross-entropy over pixels, mIoU."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from repgraph import data as datasets
from repgraph.data.labels import Labels
from repgraph.data.transforms import TrainTransform, normalise
from repgraph.engine.metrics import Scores
from repgraph.engine.tasks.cross_entropy import cross_entropy, hard, labelled
from repgraph.engine.tasks.task import Progress, Task, Tested, Transform, Where
from repgraph.engine.tasks.validate import validate
from repgraph.engine.together import summed
from repgraph.engine.training.cache import PAIRS, Codec
from repgraph.errors import UsageError
from repgraph.models import RGNet, rgnet
from repgraph.recipes import Recipe


class Batch(NamedTuple):
    """What one device gets in an iteration: uint8 images (B, 3, h, w) and masks (B, h, w)."""

    iteration: int
    images: Tensor
    masks: Tensor


class Segmentation(Task):
    """RGNet and its peers, by a recipe."""

    losses = ("loss", "auxiliary_loss")
    scores = ("miou", "pixel_accuracy", "mean_accuracy")
    best = "miou"
    fixed = True
    smaller = "a smaller crop"
    remedy = "; give a smaller data.crop or data.scales"
    unlearned = "not one pixel was labelled since the last checkpoint, and nothing was learned; look at the masks"

    def __init__(self, recipe: Recipe) -> None:
        self.recipe: Recipe = recipe
        self._weights: Tensor | None = None  # of the classes

    def open(self, split: str, learning: bool) -> Any:
        data = self.recipe.data
        if not data.root and data.name != "scenes":
            raise UsageError(f"where is {data.name}? Give its folder: --data ROOT")
        return datasets.load(data.name, data.root or None, split, **data.options)

    def build(self, labels: Labels) -> RGNet:
        model = self.recipe.model
        return rgnet(
            len(labels),
            model.backbone,
            weights=None if model.weights == "none" else model.weights,
            output_stride=model.output_stride,
            context=model.context,
            context_options=model.context_options or None,
            channels=model.channels,
            fusion=None if model.fusion == "auto" else model.fusion,
            inserted=model.inserted or None,
            inserted_options=model.inserted_options or None,
            auxiliary=model.auxiliary,
            dropout=model.dropout,
            labels=labels.to_dict(),
        )

    def rebuild(self, config: dict[str, Any]) -> RGNet:
        return RGNet.build(config, "the config in the checkpoint")

    def bind(self, model: nn.Module) -> None:
        assert isinstance(model, RGNet)
        weights = self.recipe.optim.class_weights
        if weights and len(weights) != model.classes:
            raise UsageError(
                f"optim.class_weights has {len(weights)} numbers for {model.classes} classes; one each is needed"
            )
        self._weights = torch.tensor(weights, dtype=torch.float64) if weights else None

    def to(self, device: torch.device) -> None:
        self._weights = None if self._weights is None else self._weights.to(device)

    @property
    def codec(self) -> Codec:
        return PAIRS

    def transform(self, model: Any) -> Transform:
        data = self.recipe.data
        return TrainTransform(data.crop, data.scales, data.flip, model.mean, model.std)

    def collate(self, iteration: int, items: Sequence[tuple[Any, Any]]) -> Batch:
        return collate(iteration, items)

    def parts(self, batch: Batch, count: int) -> Iterable[Batch]:
        chunks = zip(batch.images.tensor_split(count), batch.masks.tensor_split(count), strict=True)
        return [Batch(batch.iteration, images, masks) for images, masks in chunks]

    def amount(self, batch: Batch) -> Tensor:
        """The labelled pixels of the batch, or the weights of their classes, over all devices."""
        return summed(labelled(batch.masks, self._weights))

    def inputs(self, model: Any, part: Batch) -> tuple[Tensor]:
        return (self.prepared(model, part.images),)

    def loss(self, model: Any, part: Batch, amount: Tensor, shares: int) -> tuple[Tensor, list[Tensor]]:
        """The sum over the part's pixels, divided by the number of labelled ones in the batch, wherever they are."""
        optim = self.recipe.optim
        result = model(*self.inputs(model, part))
        logits, auxiliary = result if isinstance(result, tuple) else (result, None)
        targets, of = part.masks, amount
        if optim.ohem > 0:  # how many pixels are hard is known after each part only: a mean over the parts
            targets = hard(logits, part.masks, optim.ohem, optim.ohem_least * len(part.masks))
            of = summed(labelled(targets, self._weights)) * self.recipe.train.accumulate
        loss = cross_entropy(logits, targets, of, self._weights)
        if auxiliary is None:
            beside = torch.zeros_like(loss)
        else:
            beside = cross_entropy(auxiliary, part.masks, amount, self._weights)
        return loss + optim.auxiliary_weight * beside, [loss, beside]

    def prepared(self, model: Any, images: Tensor) -> Tensor:
        """Bytes as the network takes them."""
        layout = torch.channels_last if self.recipe.train.channels_last else torch.contiguous_format
        return normalise(images, model.mean, model.std).contiguous(memory_format=layout)

    def probe(self, model: Any, batch: Batch) -> list[Any]:
        """Compiled code keeps no offsets, and the network has to run once more."""
        return [self.prepared(model, batch.images[:1])] if self.recipe.train.compile else []

    def test(self, model: Any, data: Any, where: Where, progress: Progress | None = None) -> Tested:
        scores = validate(model, data, self.recipe, where.rank, where.world, progress=progress)
        noted = {name: getattr(scores, name) for name in self.scores}
        return Tested(scores, told(scores), noted, scores.miou)

    @property
    def size(self) -> str:
        return f"data.crop={self.recipe.data.crop}"


def collate(iteration: int, items: Sequence[tuple[Any, Any]]) -> Batch:
    images, masks = ([item[k].as_subclass(Tensor) for item in items] for k in (0, 1))
    return Batch(iteration, torch.stack(images), torch.stack(masks))


def told(scores: Scores) -> str:
    """Scores in a line."""
    if not scores.pixels:
        return (
            "no score: not one pixel of the validation images is labelled; look at the masks with repgraph data check"
        )
    return f"val mIoU {100 * scores.miou:.2f} %, pixel accuracy {100 * scores.pixel_accuracy:.2f} %"
