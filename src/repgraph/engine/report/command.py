"""The options of ``repgraph report``."""

import argparse
import shlex
import sys
from pathlib import Path

from repgraph.arguments import parse_device, positive, whole

EPILOG = """\
examples:
  repgraph report runs/voc-r50-rgnet                         the page is runs/voc-r50-rgnet/report.html
  repgraph report runs/baseline runs/rgnet --out comparison.html
  repgraph report runs/rgnet --data /elsewhere/VOC2012 --limit 100
  repgraph report runs/* --no-evaluate                       from the logs alone: curves, recipes, sessions

The page is one file that needs no network. Each run's network is evaluated on its validation images, as in the
tests of training. Of runs that are not finished, damaged files and data that are not there, the page says so.
docs/report.md says more.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    add("--out", type=Path, metavar="FILE", help="the page (default: report.html in the run, or here for several)")
    add("--data", metavar="ROOT", help="folder of the data set (default: the recipes')")
    add("--limit", type=positive, metavar="N", help="only the first N validation images")
    add("--pictures", type=whole(1, 100), default=4, metavar="N", help="best and worst images, of each so many")
    add("--no-images", action="store_true", help="scores, but no images")
    add("--no-evaluate", action="store_true", help="from the logs alone")
    add("--device", default="auto", help="cpu, cuda or cuda:1; auto is cuda where there is one")
    add("--workers", type=whole(0, 256), default=2, metavar="N", help="threads that read images ahead")


def run(arguments: argparse.Namespace) -> int:
    from repgraph import files
    from repgraph.engine.report.build import Options, report

    out = arguments.out or (arguments.runs[0] if len(arguments.runs) == 1 else Path()) / "report.html"
    options = Options(
        data=arguments.data,
        limit=arguments.limit,
        pictures=0 if arguments.no_images else arguments.pictures,
        evaluate=not arguments.no_evaluate,
        device=parse_device(arguments.device),
        workers=arguments.workers,
    )
    if arguments.out is not None or out.parent.is_dir():  # no folder is made for a run that is not there
        files.check_writable(out)  # else found out when all is done
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    page = report(arguments.runs, options, show=sys.stderr, command=command)
    files.write(out, page.encode(errors="replace"))
    print(f"the page: {out}")
    return 0
