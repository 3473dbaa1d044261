"""``repgraph report``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from repgraph.cli import options
from repgraph.cli.options import option


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs.")],
    out: Annotated[Path | None, option("The page.", metavar="FILE", show_default="report.html in a single run")] = None,
    data: options.Root = None,
    limit: options.Limit = None,
    pictures: Annotated[int, option("Number of best, of worst, and of most different images.", min=0, max=100)] = 4,
    no_evaluate: Annotated[bool, option("Use only the logs.", "--no-evaluate")] = False,
    device: options.Device = "auto",
    workers: options.Workers = options.WORKERS,
) -> int:
    """Write an HTML page about one or several runs: curves, scores, images, recipes and sessions.

    Examples:
      repgraph report runs/voc-r50-rgnet                         the page is runs/voc-r50-rgnet/report.html
      repgraph report runs/baseline runs/rgnet --out comparison.html
      repgraph report runs/* --no-evaluate                       from the logs only, without data

    Each network is evaluated on the run's validation images, as during training. Unfinished runs, damaged files and
    missing data are reported on the page. See docs/report.md.
    """
    from repgraph import files
    from repgraph.distributed import parse_device
    from repgraph.report import Options
    from repgraph.report import report as make_report

    if out is not None:
        options.check_page(out)
    path = out or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    files.check_writable(path)
    given = Options(data, limit, pictures, not no_evaluate, parse_device(device), workers)
    page = make_report(runs, given, show=sys.stderr)
    files.write(path, page.encode(errors="replace"))
    print(f"wrote {path}")
    return 0
