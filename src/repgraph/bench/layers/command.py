"""The options of ``repgraph bench layers``."""

import argparse
from typing import Any

import torch

from repgraph.arguments import parse_device, positive
from repgraph.bench import arguments as common
from repgraph.bench.layers.benchmark import Finished, Options
from repgraph.bench.layers.benchmark import run as run_layers
from repgraph.bench.layers.blocks import BLOCKS, select
from repgraph.bench.runner import Progress
from repgraph.errors import UsageError

SIZES = {
    "cpu": "17x17 33x33 65x65 97x97",
    "cuda": "64x64 128x128 128x256 256x256 512x512 1024x1024",
}
QUICK = {"cpu": "33x33", "cuda": "128x256"}
CHANNELS = {"cpu": 512, "cuda": 2048}
DTYPES = {"cpu": ["float32"], "cuda": ["float32", "bfloat16"]}
SECONDS = {"cpu": 0.5, "cuda": 0.05}
LIMIT = {"cpu": 30.0, "cuda": 1.0}
# The input of the paper's table; on the CPU it takes minutes.
PAPER: dict[str, Any] = {"size": ["128x256"], "channels": 2048, "mid_channels": 256, "nodes": 9, "batch": 1}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    common.add_where(parser, SIZES)
    add(
        "--dtype",
        nargs="+",
        choices=common.DTYPES,
        default=None,
        help="default: float32 (TF32 products) and bfloat16 on cuda, float32 on the CPU",
    )
    add(
        "--paper",
        action="store_true",
        help="the paper's input, 1 x 2048 x 128 x 256 with C' 256 and S 9, on any device",
    )
    add("--batch", type=positive, default=None, metavar="B", help="images at once (default: 1)")
    add(
        "--channels",
        type=positive,
        default=None,
        metavar="C",
        help=f"channels of the input (default: {_each(CHANNELS)})",
    )
    add("--mid-channels", type=positive, default=None, metavar="C'", help="channels inside (default: 256)")
    add("--nodes", type=positive, default=None, metavar="S", help="nodes of each position (default: 9)")
    add("--compiled", action="store_true", help="every block through torch.compile too; compiling takes long")
    common.add_data(parser)
    common.add_effort(parser, (block.name for block in BLOCKS), seconds=_each(SECONDS), limit=_each(LIMIT))


def run(arguments: argparse.Namespace) -> int:
    from repgraph.bench.layers import plot, report
    from repgraph.bench.session import Session, conduct

    select(arguments.only)
    options = _options(arguments, parse_device(arguments.device))

    def measure(progress: Progress, finished: Finished) -> None:
        run_layers(options, progress=progress, finished=finished)

    session = Session(
        "layers", options, options.settings(), measure, report.as_record, report.tables, report.notes, plot.write
    )
    return conduct(session, arguments.out)


def _options(arguments: argparse.Namespace, device: torch.device) -> Options:
    kind = device.type
    defaults: dict[str, Any] = {
        "size": (QUICK if arguments.quick else SIZES)[kind].split(),
        "channels": CHANNELS[kind],
        "mid_channels": 256,
        "nodes": 9,
        "batch": 1,
    }
    if arguments.paper:
        for name in PAPER:
            if getattr(arguments, name) is not None:
                raise UsageError(f"--paper says what --{name.replace('_', '-')} is; leave one of the two out")
        defaults = PAPER
    given = {name: value for name in defaults if (value := getattr(arguments, name)) is not None}
    size = defaults | given
    sizes = size.pop("size")
    return Options(
        sizes=[common.parse_size(text) for text in sizes],
        dtypes=[common.DTYPES[name] for name in dict.fromkeys(arguments.dtype or DTYPES[kind])],
        sigma=arguments.sigma,
        channels_last=arguments.memory_format == "channels_last",
        seed=arguments.seed,
        only=arguments.only,
        compiled=arguments.compiled,
        **size,
        **common.effort(arguments, device, SECONDS[kind], LIMIT[kind]),
    )


def _each(values: dict[str, float] | dict[str, int]) -> str:
    return ", ".join(f"on {device} {value:g}" for device, value in values.items())
