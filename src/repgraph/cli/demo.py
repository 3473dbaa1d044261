"""``repgraph demo``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

DEFAULT = "baseline rgnet"


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the page and the trained networks.")] = Path(
        "demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of times each network is trained.")] = 1,
    iterations: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Iterations of training.", show_default="600")
    ] = None,
    networks: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="baseline, control, nl or rgnet; several at once.", show_default=DEFAULT),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Settings of the recipes; several at once.")
    ] = None,
    pictures: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Number of images on the page.")] = 6,
    test: Annotated[int, typer.Option(min=1, metavar="N", help="Number of images to test on.")] = 400,
) -> int:
    """Train a small RGNet and the same network without its layer on drawn scenes, and write a page about them.

    Examples:
      repgraph demo                          two networks; 2 to 4 minutes on two cores; the page is demo/index.html
      repgraph demo --seeds 3                three seeds of each network
      repgraph demo --networks baseline control nl rgnet --out comparison
      repgraph demo --iterations 300 --set train.accelerator=cpu --out quick

    Trained networks stay in the folder: a second call uses them, or resumes training that was interrupted.
    """
    from repgraph.report.demo import Stopped, run_demo

    names = list(dict.fromkeys(networks or DEFAULT.split()))
    given = [*([] if iterations is None else [f"train.iterations={iterations}"]), *(settings or ())]
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    try:
        page = run_demo(out, names, seeds=seeds, settings=given, pictures=pictures, tests=test, command=command)
    except Stopped as stopped:
        print(f"repgraph demo: {stopped.args[0]}", file=sys.stderr)
        return int(stopped.args[1])
    print(f"written: {page}")
    return 0
