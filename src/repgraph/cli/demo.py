"""``repgraph demo``."""

import sys
from pathlib import Path
from typing import Annotated

from repgraph.cli import options
from repgraph.cli.options import option


def demo(
    out: Annotated[Path, option("Folder of the page and the trained networks.", metavar="DIR")] = Path("demo"),
    seeds: Annotated[int, option("Number of times each network is trained.", min=1, max=1000)] = 1,
    iterations: Annotated[int | None, option("Iterations of training.", min=1, metavar="N", show_default="600")] = None,
    networks: Annotated[
        list[str] | None, option("baseline, control, nl or rgnet.", metavar="NAME", show_default="baseline rgnet")
    ] = None,
    settings: options.RecipeSettings = None,
    pictures: Annotated[int, option("Number of images on the page.", min=1, max=100)] = 6,
    test: Annotated[int, option("Number of images to test on.", min=1, max=100_000)] = 400,
) -> int:
    """Train a small RGNet, and the same network without its layer, on drawn scenes, and write a page about them.

    Examples:
      repgraph demo                          two networks; 2 to 4 minutes on two cores; the page is demo/index.html
      repgraph demo --seeds 3                three seeds of each network
      repgraph demo --networks baseline control nl rgnet --out comparison
      repgraph demo --iterations 300 --set train.accelerator=cpu --out quick

    Trained networks stay in the folder: a second call uses them, or resumes training that was interrupted.
    """
    from repgraph.report.demo import Stopped, run_demo

    names = list(dict.fromkeys(networks or ("baseline", "rgnet")))
    given = [*([f"train.iterations={iterations}"] if iterations else []), *(settings or [])]
    try:
        page = run_demo(out, names, seeds=seeds, settings=given, pictures=pictures, tests=test)
    except Stopped as stopped:
        print(f"repgraph demo: {stopped.args[0]}", file=sys.stderr)
        return int(stopped.args[1])
    print(f"wrote {page}")
    return 0
