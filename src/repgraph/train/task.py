"""The interface of a task to the training loop: its data, network, batches, losses and scores."""

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from repgraph.data.files import NO_VALIDATION, NotFound
from repgraph.data.labels import Labels
from repgraph.errors import UsageError
from repgraph.evaluation.segmentation import OnProgress
from repgraph.inference.network import memory_hints
from repgraph.models.hub import building
from repgraph.train.stream import Batch, Transform, seed_from


@dataclass(frozen=True)
class Validation:
    scores: Any
    summary: str  # one line
    metrics: dict[str, float]  # by the names in ``Task.scores``


class Task(ABC):
    """Defines the data, batches, losses and scores of one kind of training."""

    losses: ClassVar[tuple[str, ...]]  # names of the losses that are logged; the first one is shown
    scores: ClassVar[tuple[str, ...]]  # names of the scores of a validation
    best: ClassVar[str]  # the score by which networks are compared
    fixed_size: ClassVar[bool]  # whether all batches have one size

    def __init__(self, recipe: Any) -> None:
        self.recipe = recipe
        self.notes: list[str] = []  # printed before training
        if recipe.optim.warmup >= recipe.train.iterations:
            self.notes.append(f"optim.warmup is {recipe.optim.warmup}: training ends before the rate reaches optim.lr")

    @abstractmethod
    def open(self, split: str, *, training: bool) -> Any:
        """Open a split for training or validation: it has ``items``, ``labels`` and ``labelled``."""

    def splits(self) -> tuple[Any, Any]:
        """Return the images for training, and the images for validation or None."""
        data = self.recipe.data
        images = self.open(data.split, training=True)
        if not images.labelled:
            raise UsageError(f"data.split {data.split!r} has no labels to learn from; choose another split")
        if every := data.hold_out:
            held, kept = images.items[every - 1 :: every], list(images.items)
            del kept[every - 1 :: every]
            if not held:
                raise UsageError(f"data.hold_out is {every}; expected at most {len(images)}, the number of images")
            return with_items(images, kept), with_items(images, held)
        if not data.val_split:
            return images, None
        try:
            validation = self.open(data.val_split, training=False)
        except NotFound as error:
            raise UsageError(f"{error}; {NO_VALIDATION}") from error
        if not validation.labelled:
            raise UsageError(f"data.val_split {data.val_split!r} has no labels; choose another split, or none")
        if validation.labels.names != images.labels.names:
            change = validation.labels.difference(images.labels)
            raise UsageError(f"data.val_split {data.val_split!r} has different classes from {data.split!r}: {change}")
        return images, validation

    def network(self, labels: Labels) -> Any:
        """Return the recipe's network with its initial weights."""
        given = self.recipe.model
        if not given.weights:
            choices = "FILE, --weights pretrained (timm's; may download), or --weights none for random ones"
            raise UsageError(f"the backbone {given.backbone} needs initial weights: --weights {choices}")
        torch.manual_seed(seed_from(self.recipe.train.seed, "network"))
        with building("model"):
            return self.build(labels)

    def model_options(self) -> dict[str, Any]:
        """Return the recipe's model as keyword arguments; empty options are None."""
        options = {name: None if value == {} else value for name, value in self.recipe.model.model_dump().items()}
        return options | {"weights": None if options["weights"] == "none" else options["weights"]}

    @abstractmethod
    def build(self, labels: Labels) -> nn.Module:
        """Build the recipe's network."""

    @abstractmethod
    def transform(self, model: Any) -> Transform:
        """Return the augmentation of an image and its target."""

    def groups(self, images: Any) -> list[Sequence[int]]:
        """Return one or two groups of images; all images of a batch are from one group."""
        return [range(len(images))]

    @abstractmethod
    def collate(self, pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return the images and the targets of a batch, from pairs of augmented ones."""

    def amount(self, batch: Batch) -> Any:
        """Return what the losses of a whole batch are divided by, if it is needed for the loss of a part."""
        return None

    @abstractmethod
    def inputs(self, model: Any, part: Batch) -> tuple[Any, ...]:
        """Return the network's arguments for a part of a batch."""

    @abstractmethod
    def loss(self, model: Any, part: Batch, amount: Any, shares: int) -> tuple[Tensor, list[Tensor]]:
        """Return the loss to minimize and the losses to log, as shares of the losses of the whole batch.

        They sum to the losses of the batch over all ``shares`` parts of all devices; ``amount`` is for the batch.
        """

    @abstractmethod
    def validate(self, model: Any, data: Any, progress: OnProgress | None = None) -> Validation:
        """Validate the network, in every process; all raise ``NotFinite`` if any process gets non-finite numbers."""


def with_items(data: Any, items: Sequence[Any]) -> Any:
    """Return a split with some of its images."""
    part = copy.copy(data)
    part.items = items
    return part


@contextlib.contextmanager
def explained_errors() -> Iterator[None]:
    """Raise a UsageError with a remedy if a batch is too large for memory, or too small for batch norm."""
    try:
        with memory_hints(["fewer images (train.batch)", "smaller ones", "a larger train.accumulate"]):
            yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        remedy = "use more images (train.batch), larger ones, or train.norm=frozen"
        raise UsageError(f"batch norm needs more than one value per channel; {remedy}") from error
