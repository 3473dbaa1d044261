"""``repgraph bench operator`` and ``repgraph bench layers``."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from repgraph.cli.options import Device, flatten, option, parse_size
from repgraph.errors import UsageError

OPERATOR_SIZES = {"cpu": "17x17 33x33 65x65 97x97 129x129", "cuda": "32x64 64x128 128x256 181x362 256x512"}
LAYER_SIZES = {"cpu": "17x17 33x33 65x65 97x97", "cuda": "64x64 128x128 128x256 256x256 512x512 1024x1024"}
QUICK_SIZE = {"cpu": "33x33", "cuda": "128x256"}
QUICK_SECONDS = 0.2
SIZES = "Sizes of the maps; several at once."


def _device(text: str, cpu: Any, cuda: Any, **more: Any) -> Any:
    return option(text, show_default=f"{cpu} on the CPU, {cuda} on CUDA", **more)


def _count(text: str) -> Any:
    return option(text, min=1, max=2**31 - 1, metavar="N")


Dtype = StrEnum("Dtype", "float32 bfloat16 float16")


@dataclass(frozen=True)
class Common:
    """Options of both benchmarks."""

    dtype: Annotated[
        list[Dtype] | None, _device("Dtypes of the maps; several at once.", "float32", "float32 and bfloat16")
    ] = None
    batch: Annotated[int, _count("Number of images.")] = 1
    nodes: Annotated[int, _count("Nodes of each position.")] = 9
    sigma: Annotated[float, option("Standard deviation of the offsets, in pixels.", min=0, metavar="PX")] = 4.0
    memory_format: Annotated[Literal["channels_last", "contiguous"], option("Memory format of the maps.")] = (
        "channels_last"
    )
    only: Annotated[list[str] | None, option("Measure only these; several at once.", metavar="NAME")] = None
    seconds: Annotated[float | None, _device("Seconds for each measurement, on average.", 1, 0.05, min=1e-3)] = None
    limit: Annotated[
        float | None, _device("Skip candidates that take longer, in seconds per call.", 30, 1, min=1e-3)
    ] = None
    out: Annotated[Path, option("Folder of the CSV file and the plots.", metavar="DIR")] = Path("repgraph-bench")
    quick: Annotated[bool, option("One size and few calls, for a first look.", "--quick")] = False
    device: Device = "auto"


@flatten
def operator(
    common: Common,
    size: Annotated[list[str] | None, _device(SIZES, metavar="HxW", **OPERATOR_SIZES)] = None,
    channels: Annotated[int, _count("Channels of query, key and value.")] = 256,
    groups: Annotated[int, _count("Channel groups.")] = 1,
    grid: Annotated[int, _count("Side of the cells that share their nodes.")] = 1,
    shared_kv: Annotated[
        bool | None, option("Whether the value is the key.", "--shared-kv/--separate-kv", show_default="both")
    ] = None,
) -> int:
    """Measure the operator's backends, its composition from grid_sample, and non-local attention.

    Examples:
      repgraph bench operator --quick
      repgraph bench operator --size 65x65 129x129 --out results
      repgraph bench operator --only cpu composition --separate-kv

    Results are first compared with float64; candidates with wrong results are not measured. The exit code is 0 if
    anything was measured, else 1; 2 for a mistake in the command; 130 after an interruption, which keeps what was
    finished.
    """
    from repgraph.bench.operator import OperatorSetting, OperatorTable

    if channels % groups:
        raise UsageError(f"--groups is {groups}; expected a divisor of --channels {channels}")
    kinds = [True, False] if shared_kv is None else [shared_kv]
    cases = [dict(channels=channels, groups=groups, grid=grid, shared_kv=kind) for kind in kinds]
    return _run(OperatorTable(), OperatorSetting, cases, size, OPERATOR_SIZES, common)


@flatten
def layers(
    common: Common,
    size: Annotated[list[str] | None, _device(SIZES, metavar="HxW", **LAYER_SIZES)] = None,
    paper: Annotated[bool, option("The paper's input: --size 128x256 --channels 2048.", "--paper")] = False,
    channels: Annotated[int | None, _device("Channels C of the input.", 512, 2048, min=1, metavar="N")] = None,
    mid_channels: Annotated[int, _count("Channels C' inside.")] = 256,
) -> int:
    """Measure RepGraph layers, non-local blocks and DANet: multiply-adds, parameters, time and memory.

    Examples:
      repgraph bench layers --quick
      repgraph bench layers
      repgraph bench layers --paper --dtype bfloat16 --only bottleneck nl-sdpa-cudnn

    Results are first compared with float64; layers with wrong results are not measured. Exit codes are those of bench
    operator.
    """
    from repgraph.bench.layers import LayerSetting, LayerTable
    from repgraph.distributed import parse_device

    channels = channels or (2048 if paper or parse_device(common.device).type == "cuda" else 512)
    case = dict(channels=channels, mid_channels=mid_channels)
    return _run(LayerTable(), LayerSetting, [case], size or (["128x256"] if paper else None), LAYER_SIZES, common)


def _run(
    table: Any, setting: Any, cases: list[dict[str, Any]], size: list[str] | None, sizes: dict[str, str], common: Common
) -> int:
    """Run a table in all cases (fields of its settings), dtypes and sizes; ``sizes`` are the default ones."""
    import torch

    from repgraph.bench.measure import Effort
    from repgraph.bench.report import benchmark
    from repgraph.distributed import parse_device

    device, quick = parse_device(common.device), common.quick
    cuda = device.type == "cuda"
    words = size or (QUICK_SIZE if quick else sizes)[device.type].split()
    sides = sorted((parse_size("--size", word) for word in words), key=lambda side: side[0] * side[1])
    dtypes = dict.fromkeys(common.dtype or ([Dtype.float32, Dtype.bfloat16] if cuda else [Dtype.float32]))
    places = [dict(dtype=getattr(torch, name), height=h, width=w, device=device) for name in dtypes for h, w in sides]
    layout = torch.channels_last if common.memory_format == "channels_last" else torch.contiguous_format
    shared: dict[str, Any] = dict(batch=common.batch, nodes=common.nodes, sigma=common.sigma, memory_format=layout)
    settings = [setting(**shared, **case, **place) for case in cases for place in places]
    seconds = common.seconds or (0.05 if cuda else 1.0)
    effort = Effort(min(seconds, QUICK_SECONDS) if quick else seconds, limit=common.limit or (1.0 if cuda else 30.0))
    return benchmark(table, settings, effort, table.select(common.only), common.out)
