"""The devices and processes of a run, and Fabric configured for them."""

import contextlib
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from lightning_fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning_fabric.strategies import DDPStrategy

from repgraph.errors import UsageError
from repgraph.ops.tf32 import tensor_float_32
from repgraph.recipes import Train


@dataclass(frozen=True)
class Devices:
    """This process's ``rank`` of ``world_size`` processes, ``local_size`` of them on this machine."""

    kind: str  # "cuda" or "cpu"
    rank: int
    world_size: int
    local_size: int
    external: bool  # started by torchrun

    @property
    def is_first(self) -> bool:
        return self.rank == 0


def find(train: Train) -> Devices:
    """Return the devices of a run; the rank comes from torchrun, or from the process that launched the others."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if train.accelerator == "cuda" and not gpus:
        raise UsageError("train.accelerator is 'cuda', but there is no CUDA device; see repgraph info")
    kind = "cpu" if train.accelerator == "cpu" or not gpus else "cuda"
    if train.precision == "fp16" and kind == "cpu":
        raise UsageError("train.precision is 'fp16', which is not supported on the CPU; use bf16 or fp32")
    if TorchElasticEnvironment.detect():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        if train.devices not in (0, local):
            raise UsageError(f"train.devices is {train.devices}, but torchrun started {local} processes; leave it out")
        return Devices(kind, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), local, True)
    count = train.devices or (gpus if kind == "cuda" else 1)
    if kind == "cuda" and count > gpus:
        raise UsageError(f"train.devices is {count}, but there are {gpus} CUDA devices")
    return Devices(kind, int(os.environ.get("LOCAL_RANK", "0")) if count > 1 else 0, count, count, False)


class _Autocast(MixedPrecision):
    """Autocast that does not convert the inputs and outputs of the forward pass: boxes stay in float32."""

    def convert_input(self, data: Any) -> Any:
        return data

    convert_output = convert_input


def make_fabric(train: Train, devices: Devices) -> Fabric:
    """Return Fabric for these devices; ``launch()`` starts the other processes, unless torchrun did."""
    plugins: list[Any] = [TorchElasticEnvironment() if devices.external else LightningEnvironment()]
    if train.precision != "fp32":
        plugins.append(_Autocast("bf16-mixed" if train.precision == "bf16" else "16-mixed", devices.kind))
    options: dict[str, Any] = dict(accelerator=devices.kind, devices=devices.local_size)
    if devices.world_size > 1:
        ddp: dict[str, Any] = dict(broadcast_buffers=False, gradient_as_bucket_view=True)
        gpus = torch.cuda.device_count()
        if devices.kind == "cuda" and devices.local_size > gpus:  # NCCL needs a GPU for each process
            ddp["parallel_devices"] = [torch.device("cuda", i % gpus) for i in range(devices.local_size)]
            ddp["process_group_backend"] = "gloo"
            options = {}
        options |= dict(strategy=DDPStrategy(**ddp), num_nodes=devices.world_size // devices.local_size)
    return Fabric(plugins=plugins, **options)


@contextlib.contextmanager
def watched_processes(fabric: Fabric, report: Callable[[str], None]) -> Iterator[None]:
    """If a process that Fabric launched dies, Fabric logs it and kills all: report the rank and the reason instead."""
    processes = getattr(fabric.strategy.launcher, "procs", [])

    def filter_log(_: logging.LogRecord) -> bool:
        for rank, process in enumerate(processes, 1):
            if code := process.returncode:
                reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                with contextlib.suppress(OSError):  # a closed terminal
                    report(f"the process of rank {rank} {reason}")
        return False

    logger = logging.getLogger("lightning_fabric.strategies.launchers.subprocess_script")
    logger.setLevel(logging.INFO)
    logger.addFilter(filter_log)
    try:
        yield
    except RuntimeError:
        if processes:
            time.sleep(6)  # if another process died, Fabric kills this one: it looks every 5 seconds
        raise
    finally:
        logger.removeFilter(filter_log)


@contextlib.contextmanager
def backend_settings(train: Train, devices: Devices, fixed_size: bool) -> Iterator[None]:
    """Set TF32, cuDNN benchmarking (for batches of a fixed size), determinism and Fabric's logging; restore at exit."""
    logger = logging.getLogger("lightning_fabric")
    benchmark, level = torch.backends.cudnn.benchmark, logger.level
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        torch.backends.cudnn.benchmark = devices.kind == "cuda" and not train.deterministic and fixed_size
        if train.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        logger.setLevel(logging.ERROR)
        with tensor_float_32() if devices.kind == "cuda" else contextlib.nullcontext(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Grad strides do not match bucket view strides.*")  # 1 x 1 convolutions
            warnings.filterwarnings("ignore", module=r"lightning_fabric\.")
            yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.use_deterministic_algorithms(deterministic)
        logger.setLevel(level)
