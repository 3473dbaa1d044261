"""``repgraph bench operator`` and ``repgraph bench layers``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from repgraph.cli.options import Device, parse_size
from repgraph.errors import UsageError

OPERATOR_SIZES = {"cpu": "17x17 33x33 65x65 97x97 129x129", "cuda": "32x64 64x128 128x256 181x362 256x512"}
LAYER_SIZES = {"cpu": "17x17 33x33 65x65 97x97", "cuda": "64x64 128x128 128x256 256x256 512x512 1024x1024"}
QUICK_SIZE = {"cpu": "33x33", "cuda": "128x256"}
QUICK_SECONDS = 0.2
SIZES = "Sizes of the maps; several at once."


def _by_device(text: str, cpu: Any, cuda: Any, **more: Any) -> Any:
    return typer.Option(help=text, show_default=f"{cpu} on the CPU, {cuda} on CUDA", **more)


def _count(text: str) -> Any:
    return typer.Option(min=1, max=2**31 - 1, metavar="N", help=text)


Dtype = StrEnum("Dtype", "float32 bfloat16 float16")
Dtypes = Annotated[
    list[Dtype] | None, _by_device("Dtypes of the maps; several at once.", "float32", "float32 and bfloat16")
]
Batch = Annotated[int, _count("Number of images.")]
Nodes = Annotated[int, _count("Nodes of each position.")]
Sigma = Annotated[float, typer.Option(min=0, metavar="PX", help="Standard deviation of the offsets, in pixels.")]
MemoryFormat = Annotated[Literal["channels_last", "contiguous"], typer.Option(help="Memory format of the maps.")]
Only = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Measure only these; several at once.")]
Seconds = Annotated[float | None, _by_device("Seconds for each measurement, on average.", 1, 0.05, min=1e-3)]
Limit = Annotated[float | None, _by_device("Skip candidates that take longer, in seconds per call.", 30, 1, min=1e-3)]
KV = typer.Option("--shared-kv/--separate-kv", help="Whether the value is the key.", show_default="both")
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the CSV file and the plots.")]
Quick = Annotated[bool, typer.Option("--quick", help="One size and few calls, for a first look.")]


def operator(
    device: Device = "auto",
    size: Annotated[list[str] | None, _by_device(SIZES, metavar="HxW", **OPERATOR_SIZES)] = None,
    dtype: Dtypes = None,
    batch: Batch = 1,
    channels: Annotated[int, _count("Channels of query, key and value.")] = 256,
    nodes: Nodes = 9,
    groups: Annotated[int, _count("Channel groups.")] = 1,
    grid: Annotated[int, _count("Side of the cells that share their nodes.")] = 1,
    shared_kv: Annotated[bool | None, KV] = None,
    sigma: Sigma = 4.0,
    memory_format: MemoryFormat = "channels_last",
    only: Only = None,
    seconds: Seconds = None,
    limit: Limit = None,
    out: Out = Path("repgraph-bench"),
    quick: Quick = False,
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
    fields: dict[str, Any] = dict(batch=batch, channels=channels, nodes=nodes, groups=groups, grid=grid, sigma=sigma)
    cases = [fields | {"shared_kv": shared} for shared in ([True, False] if shared_kv is None else [shared_kv])]
    options: dict[str, Any] = dict(device=device, size=size, dtype=dtype, memory_format=memory_format, only=only)
    options |= dict(seconds=seconds, limit=limit, out=out, quick=quick)
    return _run(OperatorTable(), OperatorSetting, cases, OPERATOR_SIZES, options)


def layers(
    device: Device = "auto",
    size: Annotated[list[str] | None, _by_device(SIZES, metavar="HxW", **LAYER_SIZES)] = None,
    dtype: Dtypes = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's input: --size 128x256 --channels 2048.")] = False,
    batch: Batch = 1,
    channels: Annotated[int | None, _by_device("Channels C of the input.", 512, 2048, min=1, metavar="N")] = None,
    mid_channels: Annotated[int, _count("Channels C' inside.")] = 256,
    nodes: Nodes = 9,
    sigma: Sigma = 4.0,
    memory_format: MemoryFormat = "channels_last",
    only: Only = None,
    seconds: Seconds = None,
    limit: Limit = None,
    out: Out = Path("repgraph-bench"),
    quick: Quick = False,
) -> int:
    """Measure RepGraph layers, non-local blocks and DANet: multiply-adds, parameters, time and memory.

    Examples:
      repgraph bench layers --quick
      repgraph bench layers
      repgraph bench layers --paper --dtype bfloat16 --only bottleneck nl-sdpa-cudnn

    Results are first compared with float64; layers with wrong results are not measured. Exit codes are those of bench
    operator.
    """
    from repgraph.bench.blocks import LayerSetting
    from repgraph.bench.layers import LayerTable
    from repgraph.distributed import parse_device

    channels = channels or (2048 if paper or parse_device(device).type == "cuda" else 512)
    fields = dict(batch=batch, channels=channels, mid_channels=mid_channels, nodes=nodes, sigma=sigma)
    size = size or (["128x256"] if paper else None)
    options: dict[str, Any] = dict(device=device, size=size, dtype=dtype, memory_format=memory_format, only=only)
    options |= dict(seconds=seconds, limit=limit, out=out, quick=quick)
    return _run(LayerTable(), LayerSetting, [fields], LAYER_SIZES, options)


def _run(table: Any, setting: Any, cases: list[dict[str, Any]], sizes: dict[str, str], options: dict[str, Any]) -> int:
    """Run a table in all cases (fields of its settings), dtypes and sizes; ``sizes`` are the default ones."""
    import torch

    from repgraph.bench.measure import Effort
    from repgraph.bench.report import benchmark
    from repgraph.distributed import parse_device

    device, quick = parse_device(options["device"]), options["quick"]
    cuda = device.type == "cuda"
    words = options["size"] or (QUICK_SIZE if quick else sizes)[device.type].split()
    sides = sorted((parse_size("--size", word) for word in words), key=lambda side: side[0] * side[1])
    dtypes = dict.fromkeys(options["dtype"] or (["float32", "bfloat16"] if cuda else ["float32"]))
    places = [dict(dtype=getattr(torch, name), height=h, width=w, device=device) for name in dtypes for h, w in sides]
    layout = torch.channels_last if options["memory_format"] == "channels_last" else torch.contiguous_format
    settings = [setting(memory_format=layout, **case, **place) for case in cases for place in places]
    seconds = options["seconds"] or (0.05 if cuda else 1.0)
    seconds = min(seconds, QUICK_SECONDS) if quick else seconds
    effort = Effort(seconds, limit=options["limit"] or (1.0 if cuda else 30.0))
    return benchmark(table, settings, effort, table.select(options["only"]), options["out"])
