"""The command-line options that benchmarks share, and how their values are read."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from repgraph.arguments import above_zero, integer, not_negative, positive, short, whole
from repgraph.errors import UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MOST_SIDE = 2**20  # of a map, in pixels
MOST_THREADS = 4096
QUICK_SECONDS = 0.2


def add_where(parser: argparse.ArgumentParser, sizes: dict[str, str]) -> None:
    """Device and sizes; ``sizes`` are the default ones of each device."""
    default = "; ".join(f"on {device} {text}" for device, text in sizes.items())
    add = parser.add_argument
    add("--device", default="auto", help="cpu, cuda or cuda:1; auto is cuda where there is one")
    add("--size", nargs="+", metavar="HxW", default=None, help=f"map sizes (default: {default})")


def add_data(parser: argparse.ArgumentParser) -> None:
    """What the random data are like."""
    add = parser.add_argument
    add(
        "--sigma",
        type=not_negative,
        default=4.0,
        metavar="PX",
        help="spread of the normal offsets, in pixels",
    )
    add(
        "--memory-format",
        choices=("channels_last", "contiguous"),
        default="channels_last",
        help="of the maps",
    )
    add("--seed", type=whole(0, 2**63 - 1), default=0, help="of the random numbers")


def add_effort(parser: argparse.ArgumentParser, names: Iterable[str], seconds: Any, limit: Any) -> None:
    """Who takes part, how long to measure, and where results go.

    ``seconds`` and ``limit`` are defaults: numbers, or texts that say what they are on each device (see
    :func:`effort`).
    """
    add = parser.add_argument

    def default(value: Any) -> dict[str, Any]:
        return dict(default=None) if isinstance(value, str) else dict(default=value)

    def told(value: Any) -> str:
        return f" (default: {value})" if isinstance(value, str) else ""

    add("--only", nargs="+", metavar="NAME", default=None, help=f"of {', '.join(names)} measure these only")
    add("--seconds", type=above_zero, help="time for each measurement, on average" + told(seconds), **default(seconds))
    add("--repeat", type=positive, default=None, metavar="COUNT", help="calls to time, instead of --seconds")
    help_limit = "give up what takes longer, one call" + told(limit)
    add("--limit", type=above_zero, metavar="SECONDS", help=help_limit, **default(limit))
    add("--no-graph", action="store_true", help="no timing by CUDA graph replay")
    add("--threads", type=whole(1, MOST_THREADS), default=None, help="CPU threads (default: PyTorch's)")
    add("--out", type=Path, default=Path("repgraph-bench"), metavar="DIR", help="where CSV and plots go")
    add("--quick", action="store_true", help="one size and few repeats: a first look")


def effort(
    arguments: argparse.Namespace, device: torch.device, seconds: float = 1.0, limit: float = 30.0
) -> dict[str, Any]:
    """Fields of :class:`~repgraph.bench.runner.Effort`; ``seconds`` and ``limit`` where the arguments have none."""
    given = seconds if arguments.seconds is None else arguments.seconds
    return dict(
        device=device,
        seconds=min(given, QUICK_SECONDS) if arguments.quick else given,
        repeat=arguments.repeat,
        limit=limit if arguments.limit is None else arguments.limit,
        threads=arguments.threads,
        graph=not arguments.no_graph,
    )


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from text such as "65x65".

    >>> parse_size("128x256")
    (128, 256)
    """
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and height.strip("0") and width.strip("0")):
        raise UsageError(f"--size {short(text)} is not a size; give height x width, such as 65x65")
    if max(integer(height), integer(width)) > MOST_SIDE:
        raise UsageError(f"--size {short(text)} is too large; give sides of at most {MOST_SIDE}")
    return int(height), int(width)
