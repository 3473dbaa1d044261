"""Sections that recipes of all tasks have, and the checks of their values."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from repgraph.errors import UsageError

LARGEST_SCALE, LONGEST_SIDE = 16, 2**14  # of images and crops in pixels; no memory is made for more


def check(good: bool, name: str, value: object, needed: str) -> None:
    if not good:
        raise UsageError(f"{name} is {value!r}; {needed} is needed")


def positive(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        check(0 < value < math.inf, f"{prefix}.{name}", value, "a number above 0")


def not_negative(section: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(section, name)
        check(0 <= value < math.inf, f"{prefix}.{name}", value, "a number of at least 0")


@dataclass(frozen=True)
class Images:
    """The data set, and which of its images are used, in all tasks.

    ``options`` are those of :func:`repgraph.data.load`, or of :func:`repgraph.data.coco.load`. ``workers`` processes
    load images (-1: one for each core, at most 16); ``cache`` keeps all decoded images in memory; ``limit`` and
    ``val_limit`` take the first images only (0: all). ``hold_out`` n above 0 keeps every n-th image of ``split`` out of
    training, and tests the network in the course of it on those, and not on ``val_split``. ``flip``: every other image
    is mirrored, by chance.
    """

    name: str
    root: str = ""
    split: str = "train"
    val_split: str = "val"
    options: dict[str, Any] = field(default_factory=dict)
    flip: bool = True
    workers: int = -1
    cache: bool = False
    limit: int = 0
    val_limit: int = 0
    hold_out: int = 0

    def __post_init__(self) -> None:
        check(self.workers >= -1, "data.workers", self.workers, "a number of processes (0 for none, -1 for all cores)")
        not_negative(self, "data", "limit", "val_limit")
        good = self.hold_out == 0 or self.hold_out >= 2
        check(good, "data.hold_out", self.hold_out, "0 for none, or a number of at least 2 (every n-th image)")


@dataclass(frozen=True)
class Descent:
    """SGD with momentum, in all tasks.

    New layers (all but the backbone) learn at ``lr * head``, the offsets' convolutions at ``lr * offset``. ``no_decay``
    spares normalisations and biases weight decay. ``clip`` above 0 is the largest norm of the gradients: longer ones
    are shortened to it.
    """

    lr: float = 0.01
    head: float = 1.0
    offset: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    no_decay: bool = True
    clip: float = 0.0

    def __post_init__(self) -> None:
        positive(self, "optim", "lr", "head")
        not_negative(self, "optim", "offset", "weight_decay", "clip")
        check(0 <= self.momentum < 1, "optim.momentum", self.momentum, "a number from 0 to below 1")


@dataclass(frozen=True)
class Train:
    """How long and on what.

    ``batch`` images make an iteration, over all devices; each device takes its share in ``accumulate`` parts. A
    checkpoint is written after each ``period`` iterations, and the network tested every ``validate_every`` periods and
    at the end (0: at the end only). ``norm``: batch normalisation over all GPUs ("sync"), over each ("local"), or by
    the statistics it came with ("frozen"). ``graph``: record the network's kernels once and replay them, on one GPU
    whose CPU cannot keep up with it. ``devices``: GPUs, or processes on the CPU; 0 is all GPUs, or one process.
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
    graph: bool = False
    channels_last: bool = True
    deterministic: bool = False
    log_every: int = 20
    accelerator: Literal["auto", "cuda", "cpu"] = "auto"
    devices: int = 0

    def __post_init__(self) -> None:
        positive(self, "train", "batch", "iterations", "period", "accumulate", "log_every")
        not_negative(self, "train", "validate_every", "devices")
        check(0 <= self.seed < 2**63, "train.seed", self.seed, "a whole number from 0 to below 2**63")
        check(
            self.batch % self.accumulate == 0, "train.accumulate", self.accumulate, f"a divisor of {self.batch} images"
        )
