"""``repgraph bench``: operator, layers, deformable and networks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from repgraph.cli.options import Device, flatten, option, parse_size
from repgraph.errors import UsageError

# Default sizes on the CPU and on CUDA.
OPERATOR_SIZES = {"cpu": "17x17 33x33 65x65 97x97 129x129", "cuda": "32x64 64x128 128x256 181x362 256x512"}
LAYER_SIZES = {"cpu": "17x17 33x33 65x65 97x97", "cuda": "64x64 128x128 128x256 256x256 512x512 1024x1024"}
QUICK_SIZES = {"cpu": "33x33", "cuda": "128x256"}
# Problems of deformable attention, with the sizes of their images.
PROBLEMS = {
    "detr-encoder": "800x1066",
    "detr-decoder": "800x1066",
    "pixel-decoder": "512x512 1024x1024",
    "single-map": "800x1066",
    "deformable-detr": "480x640 800x1066",
    "mask2former": "512x512 1024x1024",
}
# Sizes of images for networks, and the number of images of each.
NETWORK_SIZES = {"cpu": {"512x512": 1}, "cuda": {"320x320": 16, "512x512": 8, "1024x2048": 1}}
QUICK_PROBLEMS = ("detr-encoder", "detr-decoder", "pixel-decoder", "single-map")
QUICK_IMAGE, QUICK_SECONDS = "128x160", 0.2


def _device(text: str, cpu: Any, cuda: Any, **more: Any) -> Any:
    return option(text, show_default=f"{cpu} on the CPU, {cuda} on CUDA", **more)


def _count(text: str) -> Any:
    return option(text, min=1, max=2**31 - 1)


Dtype = StrEnum("Dtype", "float32 bfloat16 float16")
Problem = StrEnum("Problem", list(PROBLEMS))  # type: ignore[misc]  # no literal
Layout = Literal["channels_last", "contiguous"]
Nodes = Annotated[int, _count("Nodes per position.")]


@dataclass(frozen=True)
class Run:
    """Options that all benchmarks share."""

    dtype: Annotated[list[Dtype] | None, _device("float32, bfloat16, float16.", "float32", "float32, bfloat16")] = None
    batch: Annotated[int, _count("Number of images.")] = 1
    only: Annotated[list[str] | None, option("Measure only these.", metavar="NAME")] = None
    seconds: Annotated[float | None, _device("Average time of each measurement, in seconds.", 1, 0.05, min=1e-3)] = None
    limit: Annotated[float | None, _device("Skip candidates slower than this, in seconds.", 30, 1, min=1e-3)] = None
    out: Annotated[Path, option("Folder of the CSV file and the plots.", metavar="DIR")] = Path("repgraph-bench")
    quick: Annotated[bool, option("One size and few calls, for a first look.", "--quick")] = False
    device: Device = "auto"

    def on(self, cpu: Any, cuda: Any) -> Any:
        """Return a default, which depends on the device."""
        from repgraph.distributed import parse_device

        return cuda if parse_device(self.device).type == "cuda" else cpu

    def settings(self, kind: Any, sizes: Iterable[str], **fields: Any) -> list[Any]:
        """Return settings of a kind, with these fields, of all dtypes and sizes; small sizes first."""
        import torch

        from repgraph.distributed import parse_device

        fields |= dict(batch=self.batch, device=parse_device(self.device))
        dtypes = dict.fromkeys(self.dtype or self.on(["float32"], ["float32", "bfloat16"]))
        sides = sorted((parse_size("--size", size) for size in sizes), key=math.prod)
        return [kind(dtype=getattr(torch, name), height=h, width=w, **fields) for name in dtypes for h, w in sides]

    def measure(self, table: Any, settings: list[Any]) -> int:
        from repgraph.bench.report import benchmark

        seconds = min(self.seconds or self.on(1.0, 0.05), QUICK_SECONDS if self.quick else math.inf)
        limit = self.limit or self.on(30.0, 1.0)
        return benchmark(table, settings, table.select(self.only), self.out, seconds=seconds, limit=limit)


@flatten
def operator(
    run: Run,
    size: Annotated[list[str] | None, _device("Sizes of the maps.", metavar="HxW", **OPERATOR_SIZES)] = None,
    channels: Annotated[int, _count("Channels of query, key and value.")] = 256,
    nodes: Nodes = 9,
    memory_format: Annotated[Layout, option("Memory format of the maps.")] = "channels_last",
) -> int:
    """Measure the backends of the operator, an equivalent from grid_sample, and non-local attention.

    Examples:
      repgraph bench operator --quick
      repgraph bench operator --size 65x65 129x129 --out results

    Results are first compared with float64; candidates with wrong results are not measured. Exit codes:
    0 success; 1 nothing was measured; 2 invalid options; 130 stopped by Ctrl-C, which keeps finished measurements.
    """
    import torch

    from repgraph.bench.operator import OperatorSetting, OperatorTable

    size = size or run.on(**(QUICK_SIZES if run.quick else OPERATOR_SIZES)).split()
    layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    make = partial(run.settings, OperatorSetting, size, channels=channels, nodes=nodes, memory_format=layout)
    return run.measure(OperatorTable(), make(shared_kv=True) + make(shared_kv=False))


@flatten
def layers(
    run: Run,
    size: Annotated[list[str] | None, _device("Sizes of the maps.", metavar="HxW", **LAYER_SIZES)] = None,
    paper: Annotated[bool, option("The paper's input: --size 128x256 --channels 2048.", "--paper")] = False,
    channels: Annotated[int | None, _device("Channels C of the input.", 512, 2048, min=1)] = None,
    mid_channels: Annotated[int, _count("Inner channels C'.")] = 256,
    nodes: Nodes = 9,
) -> int:
    """Measure RepGraph layers, non-local blocks and DANet: multiply-adds, parameters, time and memory.

    Examples:
      repgraph bench layers --quick
      repgraph bench layers --paper --dtype bfloat16 --only bottleneck nl-sdpa-cudnn

    Exit codes are as for bench operator.
    """
    from repgraph.bench.layers import LayerSetting, LayerTable

    if paper:
        size, channels = size or ["128x256"], channels or 2048
    size = size or run.on(**(QUICK_SIZES if run.quick else LAYER_SIZES)).split()
    channels = channels or run.on(512, 2048)
    settings = run.settings(LayerSetting, size, channels=channels, mid_channels=mid_channels, nodes=nodes)
    return run.measure(LayerTable(), settings)


@flatten
def deformable(
    run: Run,
    problem: Annotated[list[Problem] | None, option("Problems listed above.", show_default="all")] = None,
    size: Annotated[list[str] | None, option("Image sizes.", metavar="HxW", show_default="as in papers")] = None,
    points: Annotated[int, _count("Points on each map.")] = 4,
) -> int:
    """Measure deformable attention: RepGraph's kernels, an equivalent from grid_sample, and Hugging Face models.

    Examples:
      repgraph bench deformable --quick
      repgraph bench deformable --problem deformable-detr --size 480x640

    detr-encoder and detr-decoder are the calls in Deformable DETR (maps of strides 8 to 64; a query for each position,
    and 300 queries), pixel-decoder the calls in Mask2Former, and single-map the calls in a detector with one map of
    stride 8. deformable-detr (ResNet-50) and mask2former (Swin-T) are whole networks with random weights, before and
    after repgraph.accelerate. Exit codes are as for bench operator.
    """
    from repgraph.bench.deformable import DeformableSetting, DeformableTable

    settings = []
    for name in problem or (QUICK_PROBLEMS if run.quick else PROBLEMS):
        sizes = size or (QUICK_IMAGE if run.quick else PROBLEMS[name]).split()
        settings += run.settings(DeformableSetting, sizes, problem=str(name), nodes=points)
    return run.measure(DeformableTable(), settings)


@flatten
def networks(
    run: Run,
    size: Annotated[list[str] | None, option("Image sizes.", metavar="HxW", show_default="512x512 on the CPU")] = None,
    backbone: Annotated[str, option("Name of a timm model.", metavar="NAME")] = "resnet50",
) -> int:
    """Measure segmentation networks: parameters, images per second, time and memory of a training step.

    Examples:
      repgraph bench networks --quick
      repgraph bench networks --size 512x512 --batch 8 --dtype bfloat16

    All networks have the same backbone with random weights. Without --size, CUDA devices get 16 images of 320 x 320, 8
    of 512 x 512 and one of 1024 x 2048. Exit codes are as for bench operator.
    """
    from repgraph.bench.networks import NetworkSetting, NetworkTable

    if run.batch > 1 and not size:
        raise UsageError("--batch needs --size: each default size has its own batch size")
    batches = {QUICK_IMAGE: 2} if run.quick else run.on(**NETWORK_SIZES)
    settings = run.settings(NetworkSetting, size or batches, backbone=backbone)
    if not size:
        settings = [replace(setting, batch=batches[setting.size]) for setting in settings]
    return run.measure(NetworkTable(), settings)
