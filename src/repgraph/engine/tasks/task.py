"""What the training engine needs to know of what is learned; the engine itself knows nothing of masks or boxes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from repgraph.data.labels import Labels, differing
from repgraph.engine.training.cache import Codec
from repgraph.engine.training.chance import chosen, seed_of
from repgraph.engine.training.parts import Part, held_out
from repgraph.errors import UsageError, out_of_memory
from repgraph.recipes import AnyRecipe

Transform = Callable[[Any, Any, torch.Generator], tuple[Any, Any]]
Progress = Callable[[float, int], None]


@dataclass(frozen=True)
class Tested:
    """How a test in the course of training came out."""

    scores: Any  # None where there could be none
    told: str  # in a line
    noted: dict[str, float] = field(default_factory=dict)  # by the names in ``Task.scores``
    best: float | None = None  # the score by which networks are compared


@dataclass(frozen=True)
class Where:
    """A test: of ``rank`` of ``world`` processes, after so many iterations, in the folder of a run."""

    rank: int
    world: int
    iteration: int
    folder: Path


class Task(ABC):
    """One of these is made for a run.

    Attributes:
        losses: names of the losses that are noted, the first of which is shown.
        scores: names of the scores that are noted after tests.
        best: the one of them by which networks are compared.
        fixed: whether all batches have images of one size.
        smaller: what to give where a batch is too large.
        remedy: what to do where an image is.
        unlearned: what to say where a period had nothing to learn from.
    """

    losses: ClassVar[tuple[str, ...]]
    scores: ClassVar[tuple[str, ...]]
    best: ClassVar[str]
    fixed: ClassVar[bool]
    smaller: ClassVar[str]
    remedy: ClassVar[str]
    unlearned: ClassVar[str]

    recipe: AnyRecipe

    @abstractmethod
    def open(self, split: str, learning: bool) -> Any:
        """The images of a split, to learn from or to test on, with ``items``, ``labels`` and ``labelled``."""

    def pick(self, data: Any, indices: Sequence[int], about: str = "") -> Any:
        """Some of the images of a split."""
        return Part(data, indices, about)

    def splits(self) -> tuple[Any, Any]:
        """The images to learn from, and those to test on, which may be none."""
        data = self.recipe.data
        images = self.open(data.split, True)
        if not images.labelled:
            raise UsageError(f"data.split is {data.split!r}, which has no labels to learn from; give another")
        if data.hold_out:
            kept, held = held_out(len(images), data.hold_out)
            if not held:
                raise UsageError(
                    f"data.hold_out is {data.hold_out}, and there are only {len(images)} images; give a smaller number"
                )
            return self.pick(images, kept), self.pick(images, held)
        tests = self.open(data.val_split, False) if data.val_split else None
        if tests is not None and not tests.labelled:
            raise UsageError(f"data.val_split is {data.val_split!r}, which has no labels; give another, or nothing")
        if tests is not None and tests.labels.names != images.labels.names:
            raise UsageError(
                f"data.val_split {data.val_split!r} has other classes than data.split {data.split!r}: "
                f"{differing(tests.labels, images.labels)}; both need the same, in the same order"
            )
        return images, tests

    def remarks(self) -> list[str]:
        """What is to be said of the images that were opened."""
        return []

    def network(self, labels: Labels, found: dict[str, Any] | None = None) -> nn.Module:
        """The recipe's network for these classes: with its backbone's weights, or as a checkpoint says."""
        if found is not None:
            return self.rebuild(found["config"])
        model = self.recipe.model
        if not model.weights:
            raise UsageError(
                f"say where the backbone {model.backbone} starts: --weights FILE (torchvision's, timm's or "
                "caffe-style), --weights pretrained (timm's; may download), or --weights none for random numbers"
            )
        torch.manual_seed(seed_of(self.recipe.train.seed, "network"))
        try:
            return self.build(labels)
        except UsageError:
            raise
        except (TypeError, ValueError) as error:
            raise UsageError(f"model: {error}") from error
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise UsageError("the network does not fit into memory; look at model.channels and the options") from error

    @abstractmethod
    def build(self, labels: Labels) -> nn.Module:
        """A new network."""

    @abstractmethod
    def rebuild(self, config: dict[str, Any]) -> nn.Module:
        """A network as it was written into a checkpoint, still without its weights."""

    def bind(self, model: nn.Module) -> None:  # noqa: B027  # many have nothing to do
        """Check that recipe and network fit, and make the network ready for training."""

    def to(self, device: torch.device) -> None:  # noqa: B027
        """Move what the losses need to a device."""

    @property
    @abstractmethod
    def codec(self) -> Codec:
        """How decoded images are kept in memory."""

    @abstractmethod
    def transform(self, model: nn.Module) -> Transform:
        """What is made of an image and its target in training, with a generator as all its chance."""

    def choice(self, images: Any) -> Callable[[int], list[int]]:
        """Which images the batch of an iteration has, over all devices: a function of the seed and the iteration."""
        train, length = self.recipe.train, len(images)
        return lambda iteration: chosen(train.seed, length, iteration, train.batch)

    @abstractmethod
    def collate(self, iteration: int, items: Sequence[tuple[Any, Any]]) -> Any:
        """A batch, a named tuple with ``iteration``, of transformed images and targets."""

    @abstractmethod
    def parts(self, batch: Any, count: int) -> Iterable[Any]:
        """A batch in so many parts."""

    @abstractmethod
    def amount(self, batch: Any) -> Tensor:
        """How much there is to learn from: a number that is 0 if there is nothing."""

    @abstractmethod
    def inputs(self, model: nn.Module, part: Any) -> tuple[Any, ...]:
        """What the network is called with for a part of a batch."""

    @abstractmethod
    def loss(self, model: nn.Module, part: Any, amount: Tensor, shares: int) -> tuple[Tensor, list[Tensor]]:
        """What is minimised, and the losses that are noted, for a part of a batch.

        Each is this part's share: summed over the parts of all devices, of which there are ``shares``, they are those
        of the whole batch. ``amount`` is that of the batch.
        """

    def probe(self, model: nn.Module, batch: Any) -> list[Any]:
        """What to call the network with to see how far its nodes reach; nothing where it keeps that by itself."""
        return []

    @abstractmethod
    def test(self, model: Any, data: Any, where: Where, progress: Progress | None = None) -> Tested:
        """Test the network; every process has to call it.

        Where it gives numbers that are not finite in any of them, all raise
        :class:`~repgraph.engine.inference.network.NotFinite`.
        """

    @property
    @abstractmethod
    def size(self) -> str:
        """The settings that say how large images are, for messages."""
