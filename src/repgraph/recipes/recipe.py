"""What a recipe says: typed sections whose values are checked when they are made.

A recipe is all that decides what is learned: the network, the data, the optimisation, and how it is tested. Settings
that only say how the work is shared out (``data.workers``, ``data.cache``, ``train.devices``) change nothing about the
result, and may differ when a run is resumed.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from repgraph.errors import UsageError

LARGEST_SCALE, LONGEST_SIDE = 16, 2**14  # of images and crops in pixels; no memory is made for more
Context = Literal["repgraph", "simple", "non_local", "dual", "control", "none"]


def check(good: bool, name: str, value: object, needed: str) -> None:
    if not good:
        raise UsageError(f"{name} is {value!r}; {needed} is needed")


def _positive(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        check(0 < value < math.inf, f"{prefix}.{name}", value, "a number above 0")


def _not_negative(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        check(0 <= value < math.inf, f"{prefix}.{name}", value, "a number of at least 0")


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
        _positive(self, "model", "output_stride", "channels")
        check(0 <= self.dropout < 1, "model.dropout", self.dropout, "a number from 0 to below 1")


@dataclass(frozen=True)
class Data:
    """The data set, and what is made of an image in training.

    ``options`` are those of :func:`repgraph.data.load`. A crop is height and width in pixels. ``workers`` processes
    load images (-1: one for each core, at most 16); ``cache`` keeps all decoded images in memory; ``limit`` and
    ``val_limit`` take the first images only (0: all). ``hold_out`` n above 0 keeps every n-th image of ``split`` out of
    training, and tests the network in the course of it on those, and not on ``val_split``.
    """

    name: str
    root: str = ""
    split: str = "train"
    val_split: str = "val"
    options: dict[str, Any] = field(default_factory=dict)
    crop: tuple[int, int] = (512, 512)
    scales: tuple[float, ...] = (0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    flip: bool = True
    workers: int = -1
    cache: bool = False
    limit: int = 0
    val_limit: int = 0
    hold_out: int = 0

    def __post_init__(self) -> None:
        _crop("data.crop", self.crop)
        _scales("data.scales", self.scales)
        check(self.workers >= -1, "data.workers", self.workers, "a number of processes (0 for none, -1 for all cores)")
        _not_negative(self, "data", "limit", "val_limit")
        good = self.hold_out == 0 or self.hold_out >= 2
        check(good, "data.hold_out", self.hold_out, "0 for none, or a number of at least 2 (every n-th image)")


@dataclass(frozen=True)
class Optim:
    """SGD whose rate falls as (1 - iteration / iterations) ** power, and the loss.

    New layers (all but the backbone) learn at ``lr * head``, the offsets' convolutions at ``lr * offset``. ``no_decay``
    spares normalisations and biases weight decay. ``ohem`` above 0 learns from hard pixels only: those whose true class
    has a probability below it, and at least ``ohem_least`` of each image on average. ``class_weights`` has one number
    for each class.
    """

    lr: float = 0.01
    head: float = 1.0
    offset: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    no_decay: bool = True
    power: float = 0.9
    auxiliary_weight: float = 0.4
    ohem: float = 0.0
    ohem_least: int = 10_000
    class_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _positive(self, "optim", "lr", "head")
        _not_negative(self, "optim", "offset", "weight_decay", "power", "auxiliary_weight", "ohem_least")
        check(0 <= self.momentum < 1, "optim.momentum", self.momentum, "a number from 0 to below 1")
        check(0 <= self.ohem < 1, "optim.ohem", self.ohem, "a probability below 1 (0 for none)")
        good = all(0 <= w < math.inf for w in self.class_weights) and (
            not self.class_weights or any(self.class_weights)
        )
        check(good, "optim.class_weights", self.class_weights, "numbers of at least 0, not all of them 0,")


@dataclass(frozen=True)
class Train:
    """How long and on what.

    ``batch`` images make an iteration, over all devices; each device takes its share in ``accumulate`` parts. A
    checkpoint is written after each ``period`` iterations, and the network tested every ``validate_every`` periods and
    at the end (0: at the end only). ``norm``: batch normalisation over all GPUs ("sync"), over each ("local"), or by
    the statistics it came with ("frozen"). ``devices``: GPUs, or processes on the CPU; 0 is all GPUs, or one process.
    """

    batch: int = 16
    iterations: int = 10_000
    period: int = 500
    validate_every: int = 1
    accumulate: int = 1
    seed: int = 0
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    norm: Literal["sync", "local", "frozen"] = "sync"
    compile: bool = False
    channels_last: bool = True
    deterministic: bool = False
    log_every: int = 20
    accelerator: Literal["auto", "cuda", "cpu"] = "auto"
    devices: int = 0

    def __post_init__(self) -> None:
        _positive(self, "train", "batch", "iterations", "period", "accumulate", "log_every")
        _not_negative(self, "train", "validate_every", "devices")
        check(0 <= self.seed < 2**63, "train.seed", self.seed, "a whole number from 0 to below 2**63")
        check(
            self.batch % self.accumulate == 0, "train.accumulate", self.accumulate, f"a divisor of {self.batch} images"
        )


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

    name: str
    data: Data
    model: Model = Model()
    optim: Optim = Optim()
    train: Train = Train()
    test: Test = Test()
    description: str = ""

    def rate(self, iteration: int) -> float:
        """The factor on all rates at an iteration, from 1 down towards 0.

        >>> round(Recipe("mine", Data("folder"), train=Train(iterations=100)).rate(50), 4)
        0.5359
        """
        return (1 - iteration / self.train.iterations) ** self.optim.power
