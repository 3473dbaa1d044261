"""The options of ``repgraph bench operator``."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from repgraph.bench.competitors import CANDIDATES, select
from repgraph.bench.operator import Options
from repgraph.bench.operator import run as run_operator
from repgraph.bench.row import Row
from repgraph.errors import UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SIZES = {
    "cpu": "17x17 33x33 65x65 97x97 129x129",
    "cuda": "32x64 64x128 128x256 181x362 256x512",
}
MOST_SIDE = 2**20  # of a map, in pixels
MOST_THREADS = 4096
QUICK = {"cpu": "33x33", "cuda": "128x256"}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    names = ", ".join(candidate.name for candidate in CANDIDATES)
    add("--device", default="auto", help="cpu, cuda or cuda:1; auto is cuda where there is one")
    add("--dtype", choices=DTYPES, default=None, help="default: bfloat16 on cuda, float32 on the CPU")
    add("--size", nargs="+", metavar="HxW", default=None, help=f"map sizes (default: {_default_sizes()})")
    add("--batch", type=_positive, default=1, metavar="B", help="images at once")
    add("--channels", type=_positive, default=256, metavar="C", help="channels of query, key and value")
    add("--nodes", type=_positive, default=9, metavar="S", help="nodes of each position")
    add("--groups", type=_positive, default=1, metavar="G", help="channel groups")
    add("--grid", type=_positive, default=1, metavar="g", help="size of the cells that share their nodes")
    add(
        "--sigma",
        type=_not_negative,
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
    value = parser.add_mutually_exclusive_group()
    value.add_argument("--shared-kv", action="store_true", help="only the case that the value is the key")
    value.add_argument("--separate-kv", action="store_true", help="only the case that it is not")
    add("--only", nargs="+", metavar="NAME", default=None, help=f"of {names} measure these only")
    add("--seconds", type=_above_zero, default=1.0, help="time for each measurement, on average")
    add("--repeat", type=_positive, default=None, metavar="COUNT", help="calls to time, instead of --seconds")
    add(
        "--limit",
        type=_above_zero,
        default=30.0,
        metavar="SECONDS",
        help="give up what takes longer, one call",
    )
    add("--no-graph", action="store_true", help="no timing by CUDA graph replay")
    add("--threads", type=_whole(1, MOST_THREADS), default=None, help="CPU threads (default: PyTorch's)")
    add("--seed", type=_whole(0, 2**63 - 1), default=0, help="of the random numbers")
    add("--out", type=Path, default=Path("repgraph-bench"), metavar="DIR", help="where CSV and plots go")
    add("--quick", action="store_true", help="one size and few repeats: a first look")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from repgraph.bench import plot, report

    select(arguments.only)
    options = _options(arguments, _device(arguments.device))
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=arguments.out).close()  # else found out when something has been measured
    except OSError as error:
        raise UsageError(f"cannot write to --out {arguments.out} ({error.strerror}); give another folder") from error
    console = Console()
    rows: list[Row] = []
    table = arguments.out / "operator.csv"
    how_long = {"seconds": options.seconds, "repeat": options.repeat, "limit": options.limit}

    def keep(found: list[Row]) -> None:
        rows.extend(found)
        report.write_csv(rows, table, **how_long)

    interrupted = False
    try:
        with report.progress() as progress:
            run_operator(options, progress=progress, finished=keep)
    except KeyboardInterrupt:
        interrupted = True
    report.show(rows, console)
    lines = report.notes(rows)
    if interrupted:
        done, wanted = len(report.by_setting(rows)), len(options.settings())
        lines.append(f"interrupted: {done} of {wanted} settings measured" + ("" if rows else ", nothing written"))
    for line in lines:
        console.print(line, highlight=False, markup=False)
    if rows:
        written = [report.write_csv(rows, table, **how_long), *plot.write(rows, arguments.out)]
        console.print("written: " + ", ".join(map(str, written)), highlight=False, markup=False, soft_wrap=True)
    if interrupted:
        return 130
    return 0 if any(row.status == "ok" for row in rows) else 1


def _options(arguments: argparse.Namespace, device: torch.device) -> Options:
    quick = arguments.quick
    sizes = arguments.size or (QUICK if quick else SIZES)[device.type].split()
    if arguments.channels % arguments.groups:
        raise UsageError(f"--groups {arguments.groups} does not divide --channels {arguments.channels}")
    dtype = arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32")
    shared = (True,) if arguments.shared_kv else (False,) if arguments.separate_kv else (True, False)
    return Options(
        sizes=[parse_size(size) for size in sizes],
        shared_kv=shared,
        batch=arguments.batch,
        channels=arguments.channels,
        nodes=arguments.nodes,
        groups=arguments.groups,
        grid=arguments.grid,
        sigma=arguments.sigma,
        dtype=DTYPES[dtype],
        device=device,
        channels_last=arguments.memory_format == "channels_last",
        seed=arguments.seed,
        seconds=min(arguments.seconds, 0.2) if quick else arguments.seconds,
        repeat=arguments.repeat,
        limit=arguments.limit,
        threads=arguments.threads,
        graph=not arguments.no_graph,
        only=arguments.only,
    )


def parse_size(text: str) -> tuple[int, int]:
    """Height and width from text such as "65x65".

    >>> parse_size("128x256")
    (128, 256)
    """
    height, _, width = text.lower().partition("x")
    if not (height.isdecimal() and width.isdecimal() and height.strip("0") and width.strip("0")):
        raise UsageError(f"--size {_short(text)} is not a size; give height x width, such as 65x65")
    if max(_integer(height), _integer(width)) > MOST_SIDE:
        raise UsageError(f"--size {_short(text)} is too large; give sides of at most {MOST_SIDE}")
    return int(height), int(width)


def _device(text: str) -> torch.device:
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(f"--device {text!r} is not a device; give cpu, cuda or cuda:1") from None
    if device.type not in SIZES:
        raise UsageError(f"--device {text!r} is not one that can be measured; give cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise UsageError(f"--device {text!r} is not here (CUDA devices: {count}); see repgraph info")
    return device


def _default_sizes() -> str:
    return "; ".join(f"on {device} {sizes}" for device, sizes in SIZES.items())


def _whole(least: int, most: int) -> Callable[[str], int]:
    """The type of an option that takes whole numbers in these bounds."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= _integer(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{_short(text)} is not a whole number of at least {least} and at most {most}"
            )
        return int(text)

    return convert


_positive = _whole(1, 2**31 - 1)


def _integer(text: str) -> float:
    """The number that decimal digits say; infinity for more of them than ``int`` takes from text."""
    return int(text) if len(text) <= 1000 else float("inf")


def _short(text: str) -> str:
    """A mistake, quoted such that it fits on a line."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _above_zero(text: str) -> float:
    number = _number(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _not_negative(text: str) -> float:
    number = _number(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number
