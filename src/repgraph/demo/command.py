"""The options of ``repgraph demo``, and what it says."""

import argparse
import sys
from pathlib import Path

from repgraph.arguments import positive, whole

EPILOG = """\
examples:
  repgraph demo                          two networks, two to four minutes on two cores; the page is demo/index.html
  repgraph demo --seeds 3                each of them three times
  repgraph demo --networks baseline control nl rgnet --out comparison
  repgraph demo --iterations 300 --set train.accelerator=cpu --out quick

Networks are kept in the folder: a second call takes them from there, or goes on where the first was stopped.
"""
NETWORKS = ("baseline", "control", "nl", "rgnet")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the page and the trained networks")
    add("--seeds", type=positive, default=1, metavar="N", help="train each network so many times")
    add("--iterations", type=positive, metavar="N", help="of training (default: 600, as the recipes say)")
    add("--networks", nargs="+", choices=NETWORKS, default=["baseline", "rgnet"], metavar="NAME",
        help=f"which, of {', '.join(NETWORKS)}")  # fmt: skip
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="settings of the recipes")
    add("--pictures", type=whole(1, 100), default=6, metavar="N", help="how many the page shows")
    add(
        "--test",
        type=positive,
        default=400,
        metavar="N",
        help="pictures for the scores (the tests in training have 100)",
    )


def _short(iterations: int | None) -> list[str]:
    return [] if iterations is None else [f"train.iterations={iterations}"]


def run(arguments: argparse.Namespace) -> int:
    from repgraph.demo.demo import Plan, Stopped, demo

    plan = Plan(
        out=arguments.out,
        networks=tuple(dict.fromkeys(arguments.networks)),
        seeds=arguments.seeds,
        settings=(*_short(arguments.iterations), *arguments.set),
        pictures=arguments.pictures,
        tests=arguments.test,
    )
    try:
        page = demo(plan, show=sys.stderr, out=sys.stdout)
    except Stopped as stopped:
        print(f"repgraph demo: {stopped}", file=sys.stderr)
        return stopped.code
    print(f"the page: {page}")
    return 0
