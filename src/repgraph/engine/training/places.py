"""Where training runs: devices, processes, and who this process is among them."""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from repgraph.errors import UsageError
from repgraph.ops.tf32 import tensor_float_32
from repgraph.recipes import Train

_PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
# Advice of Lightning and PyTorch, which is for the authors of a program and not for its users.
_NOISE = (
    r".*Grad strides do not match bucket view strides.*",  # of 1 x 1 convolutions, whose layout is any
    r".*in eval mode at the start of training.*",  # frozen batch normalisation is meant to be
    r".*does not have many workers.*",
    r".*smaller than the logging interval.*",
    r".*GPU available but not used.*",
    r".*`training_step` returned `None`.*",
)


@dataclass(frozen=True)
class Place:
    """``rank`` of ``world`` processes, ``local`` of them on this machine, each with a device of the kind."""

    kind: str  # "cuda" or "cpu"
    rank: int
    world: int
    local: int
    external: bool  # started by torchrun

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def shared(self) -> bool:
        """Whether several processes use one GPU, which NCCL cannot do."""
        return self.kind == "cuda" and self.local > torch.cuda.device_count()


def find(train: Train) -> Place:
    """Who this process is: as torchrun says, or as the process that starts the others with Lightning says."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if train.accelerator == "cuda" and not there:
        raise UsageError("train.accelerator is 'cuda', and there is no CUDA device; see repgraph info")
    kind = "cpu" if train.accelerator == "cpu" or not there else "cuda"
    if train.precision == "fp16" and kind == "cpu":
        raise UsageError("train.precision is 'fp16', which the CPU cannot train in; give bf16 or fp32")
    if train.precision == "bf16" and kind == "cuda" and not torch.cuda.is_bf16_supported():
        raise UsageError("train.precision is 'bf16', which this GPU does not have; give fp16 or fp32")
    if TorchElasticEnvironment.detect():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        if train.devices not in (0, local):
            raise UsageError(f"train.devices is {train.devices}, and torchrun started {local} processes; leave it out")
        return Place(kind, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), local, True)
    count = train.devices or (there if kind == "cuda" else 1)
    if kind == "cuda" and count > there:
        raise UsageError(f"train.devices is {count}, and there are {there} CUDA devices")
    return Place(kind, int(os.environ.get("LOCAL_RANK", "0")) if count > 1 else 0, count, count, False)


def trainer_options(train: Train, place: Place, fixed: bool = True) -> dict[str, Any]:
    """Arguments of Lightning's Trainer that say where it runs; ``fixed``: whether all batches have one size."""
    options: dict[str, Any] = dict(
        accelerator=place.kind,
        devices=place.local,
        num_nodes=place.world // place.local,
        precision=_PRECISIONS[train.precision],
        benchmark=place.kind == "cuda" and not train.deterministic and fixed,
        deterministic=train.deterministic or None,
    )
    if place.world > 1:
        more: dict[str, Any] = dict(broadcast_buffers=False, gradient_as_bucket_view=True)
        if place.shared:
            count = torch.cuda.device_count()
            more["parallel_devices"] = [torch.device("cuda", i % count) for i in range(place.local)]
            options |= {"accelerator": "auto", "devices": "auto"}
        if place.kind == "cpu" or place.shared:
            more["process_group_backend"] = "gloo"
        options["strategy"] = DDPStrategy(**more)
    return options


def environment(place: Place) -> Any:
    """Lightning would guess it from the machine's variables; one answer is better."""
    return TorchElasticEnvironment() if place.external else LightningEnvironment()


@contextlib.contextmanager
def settled(train: Train, place: Place) -> Iterator[None]:
    """Fast float32 products on GPUs, Lightning quiet, and all of it as before afterwards."""
    loggers = [logging.getLogger(name) for name in ("lightning", "lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    benchmark = torch.backends.cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with tensor_float_32() if place.kind == "cuda" else contextlib.nullcontext(), warnings.catch_warnings():
            for message in _NOISE:
                warnings.filterwarnings("ignore", message)
            for category in (FutureWarning, DeprecationWarning):  # of PyTorch, at Lightning's calls
                warnings.filterwarnings("ignore", category=category, module=r"lightning\.")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        torch.backends.cudnn.benchmark = benchmark
        torch.use_deterministic_algorithms(deterministic)
