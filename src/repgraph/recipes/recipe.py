"""What a recipe for semantic segmentation says: typed sections whose values are checked when they are made.

A recipe is all that decides what is learned: the network, the data, the optimisation, and how it is tested. Settings
that only say how the work is shared out (``data.workers``, ``data.cache``, ``train.devices``) change nothing about the
result, and may differ when a run is resumed.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from repgraph.recipes.sections import (
    LARGEST_SCALE,
    LONGEST_SIDE,
    Descent,
    Images,
    Train,
    check,
    not_negative,
    positive,
)

Context = Literal["repgraph", "paper", "simple", "non_local", "dual", "control", "none"]


def _scales(name: str, scales: tuple[float, ...]) -> None:
    good = len(scales) > 0 and all(0 < s <= LARGEST_SCALE for s in scales)
    check(good, name, scales, f"one number above 0 and up to {LARGEST_SCALE}, or several")


def _crop(name: str, crop: tuple[int, int]) -> None:
    good = all(0 < side <= LONGEST_SIDE for side in crop)
    check(good, name, crop, f"a height and a width above 0 and up to {LONGEST_SIDE}")


@dataclass(frozen=True)
class Model:
    """The network: the arguments of :func:`repgraph.models.rgnet`; the number of classes comes from the data.

    ``weights`` is where the backbone starts: a file, "timm:NAME" or "pretrained" (which may download), or "none" for
    random numbers. Empty means that it has to be said.
    """

    backbone: str = "resnet50"
    weights: str = ""
    output_stride: int = 8
    context: Context = "repgraph"
    context_options: dict[str, Any] = field(default_factory=dict)
    channels: int = 512
    fusion: Literal["auto", "concat", "sum"] = "auto"
    inserted: dict[str, int] = field(default_factory=dict)
    inserted_options: dict[str, Any] = field(default_factory=dict)
    auxiliary: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        check(bool(self.backbone), "model.backbone", self.backbone, "the name of a timm network")
        positive(self, "model", "output_stride", "channels")
        check(0 <= self.dropout < 1, "model.dropout", self.dropout, "a number from 0 to below 1")


@dataclass(frozen=True)
class Data(Images):
    """The images, and what is made of one in training: it is scaled, mirrored and cut.

    A crop is height and width in pixels. What else there is: :class:`~repgraph.recipes.sections.Images`.
    """

    crop: tuple[int, int] = (512, 512)
    scales: tuple[float, ...] = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        _crop("data.crop", self.crop)
        _scales("data.scales", self.scales)


@dataclass(frozen=True)
class Optim(Descent):
    """SGD whose rate falls as (1 - iteration / iterations) ** power, and the loss.

    ``ohem`` above 0 learns from hard pixels only: those whose true class has a probability below it, and at least
    ``ohem_least`` of each image on average. ``class_weights`` has one number for each class. What else there is:
    :class:`~repgraph.recipes.sections.Descent`.
    """

    power: float = 0.9
    auxiliary_weight: float = 0.4
    ohem: float = 0.0
    ohem_least: int = 10_000
    class_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        not_negative(self, "optim", "power", "auxiliary_weight", "ohem_least")
        check(0 <= self.ohem < 1, "optim.ohem", self.ohem, "a probability below 1 (0 for none)")
        good = all(0 <= w < math.inf for w in self.class_weights) and (
            not self.class_weights or any(self.class_weights)
        )
        check(good, "optim.class_weights", self.class_weights, "numbers of at least 0, not all of them 0,")


@dataclass(frozen=True)
class Test:
    """How the trained network is tested; the tests during training use scale 1 without flip.

    "slide" cuts windows of ``crop`` that overlap: each is ``stride`` of the crop from the next.
    """

    mode: Literal["whole", "slide"] = "whole"
    crop: tuple[int, int] = (512, 512)
    stride: float = 2 / 3
    scales: tuple[float, ...] = (1.0,)
    flip: bool = False

    __test__ = False  # not one of pytest's

    def __post_init__(self) -> None:
        _crop("test.crop", self.crop)
        check(0 < self.stride <= 1, "test.stride", self.stride, "a share of the crop above 0 and at most 1")
        _scales("test.scales", self.scales)


@dataclass(frozen=True)
class Recipe:
    """All that decides what is learned, and what came of it elsewhere (``description``)."""

    task: ClassVar[str] = "segmentation"

    name: str
    data: Data
    model: Model = Model()
    optim: Optim = Optim()
    train: Train = field(default_factory=Train)
    test: Test = Test()
    description: str = ""

    def rate(self, iteration: int) -> float:
        """The factor on all rates at an iteration, from 1 down towards 0.

        >>> round(Recipe("mine", Data("folder"), train=Train(iterations=100)).rate(50), 4)
        0.5359
        """
        return (1 - iteration / self.train.iterations) ** self.optim.power
