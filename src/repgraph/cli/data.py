"""``repgraph data``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from repgraph.cli import options
from repgraph.cli.options import option
from repgraph.constants import DATASETS, INSTANCE_DATASETS
from repgraph.errors import UsageError

NAMES = sorted({*DATASETS, *INSTANCE_DATASETS} - {"scenes"})


def check(
    name: Annotated[str, typer.Argument(help=f"Data set: {', '.join(NAMES)}.")],
    root: Annotated[Path, typer.Argument(help="Its folder, in the layout of its release (docs/data.md).")],
    split: Annotated[list[str] | None, option("Splits.", metavar="SPLIT", show_default="train, val and test")] = None,
    option: options.ReaderOptions = None,
    workers: options.Workers = options.WORKERS,
) -> int:
    """Read all files of a data set, report what is wrong with them, and count the classes.

    Examples:
      repgraph data check voc data/VOC2012
      repgraph data check cityscapes data/cityscapes --split val --workers 8
      repgraph data check coco my-data --split train --option images=photos annotations=objects.json
      repgraph data check folder my-data --option classes=3 > report.txt

    Exit codes: 0 no problems; 1 problems were found; 2 invalid options.
    """
    if name == "scenes":
        raise UsageError("scenes are drawn by the program and have no files to check")
    from repgraph.data.check import check

    reports = check(name, root, split, options.named_values("--option", option), workers, sys.stderr)
    problems = sum(len(report.problems) for report in reports)
    for report in reports:
        print(report.format(name))
    print(f"{problems} problem{'s' * (problems != 1)} found" if problems else "no problems found")
    return 1 if problems else 0
