"""The options of ``repgraph bench operator``."""

import argparse

import torch

from repgraph.arguments import parse_device, positive
from repgraph.bench import arguments as common
from repgraph.bench.operator.benchmark import Finished, Options
from repgraph.bench.operator.benchmark import run as run_operator
from repgraph.bench.operator.competitors import CANDIDATES, select
from repgraph.bench.runner import Progress
from repgraph.errors import UsageError

SIZES = {
    "cpu": "17x17 33x33 65x65 97x97 129x129",
    "cuda": "32x64 64x128 128x256 181x362 256x512",
}
QUICK = {"cpu": "33x33", "cuda": "128x256"}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    common.add_where(parser, SIZES)
    add("--dtype", choices=common.DTYPES, default=None, help="default: bfloat16 on cuda, float32 on the CPU")
    add("--batch", type=positive, default=1, metavar="B", help="images at once")
    add("--channels", type=positive, default=256, metavar="C", help="channels of query, key and value")
    add("--nodes", type=positive, default=9, metavar="S", help="nodes of each position")
    add("--groups", type=positive, default=1, metavar="G", help="channel groups")
    add("--grid", type=positive, default=1, metavar="g", help="size of the cells that share their nodes")
    value = parser.add_mutually_exclusive_group()
    value.add_argument("--shared-kv", action="store_true", help="only the case that the value is the key")
    value.add_argument("--separate-kv", action="store_true", help="only the case that it is not")
    common.add_data(parser)
    common.add_effort(parser, (candidate.name for candidate in CANDIDATES), seconds=1.0, limit=30.0)


def run(arguments: argparse.Namespace) -> int:
    from repgraph.bench.operator import plot, report
    from repgraph.bench.session import Session, conduct

    select(arguments.only)
    options = _options(arguments, parse_device(arguments.device))

    def measure(progress: Progress, finished: Finished) -> None:
        run_operator(options, progress=progress, finished=finished)

    session = Session(
        "operator", options, options.settings(), measure, report.as_record, report.tables, report.notes, plot.write
    )
    return conduct(session, arguments.out)


def _options(arguments: argparse.Namespace, device: torch.device) -> Options:
    sizes = arguments.size or (QUICK if arguments.quick else SIZES)[device.type].split()
    if arguments.channels % arguments.groups:
        raise UsageError(f"--groups {arguments.groups} does not divide --channels {arguments.channels}")
    dtype = arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    shared = (True,) if arguments.shared_kv else (False,) if arguments.separate_kv else (True, False)
    return Options(
        sizes=[common.parse_size(size) for size in sizes],
        shared_kv=shared,
        batch=arguments.batch,
        channels=arguments.channels,
        nodes=arguments.nodes,
        groups=arguments.groups,
        grid=arguments.grid,
        sigma=arguments.sigma,
        dtype=common.DTYPES[dtype],
        channels_last=arguments.memory_format == "channels_last",
        seed=arguments.seed,
        only=arguments.only,
        **common.effort(arguments, device),
    )
