"""The options of ``repgraph data check``, and what it prints."""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repgraph.arguments import named_values, whole
from repgraph.data import INSTANCES, NAMES
from repgraph.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from repgraph.data.check import Progress, Report

SHOWN = 10  # problems of one kind; all of them with --all and in --json

EPILOG = """\
examples:
  repgraph data check voc data/VOC2012
  repgraph data check cityscapes data/cityscapes --split val --workers 8
  repgraph data check coco data/coco
  repgraph data check coco my-data --split train --option images=photos --option annotations=objects.json
  repgraph data check folder my-data --option classes=3 --json > report.json

The exit code is 0 if all is well, 1 if something is wrong with the data, 2 for a mistake in the command.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add = parser.add_argument
    names = sorted([name for name in (*NAMES, *INSTANCES) if name != "scenes"])
    add("name", metavar="NAME", help=f"the data set: {', '.join(names)}")
    add("root", metavar="ROOT", type=Path, help="its folder, in the layout that it was released in (docs/data.md)")
    add(
        "--split", nargs="+", metavar="SPLIT", help="the splits to read (default: train, val and test, as far as there)"
    )
    add(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the reader, such as classes=3"
    )
    add("--workers", type=whole(1, 256), default=min(8, os.cpu_count() or 1), metavar="N", help="files read at a time")
    add("--json", action="store_true", help="print the report as JSON, with every problem")
    add("--all", action="store_true", help=f"show every problem, not {SHOWN} of each kind")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from repgraph.data.check import check, open_splits, show

    if arguments.name == "scenes":
        raise UsageError("scenes are drawn by the program: they have no files to check")
    options = named_values("--option", arguments.option or [])
    sets = open_splits(arguments.name, arguments.root, arguments.split, **options)
    with _progress() as progress:
        reports = check(sets, arguments.workers, progress)
    found = sum(len(report.problems) for report in reports)
    if arguments.json:
        content = {"name": arguments.name, "root": show(arguments.root), "problems": found}
        print(json.dumps({**content, "splits": [report.to_dict() for report in reports]}, indent=2))
    else:
        console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=1000)  # nothing is cut
        for report in reports:
            _print(report, arguments.name, console, None if arguments.all else SHOWN)
        what = "problem" if found == 1 else "problems"
        console.print(f"{found} {what} found" if found else "no problems found")
    return 1 if found else 0


@contextmanager
def _progress() -> Iterator["Progress"]:
    """A progress bar on the error stream, and the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def move(split: str, done: int, total: int) -> None:
            bar.update(task, description=f"reading {split}", completed=done, total=total)

        yield move


def _print(report: "Report", name: str, console: "Console", shown: int | None) -> None:
    sizes = [f"{size[1]} x {size[0]}" for size in (report.smallest, report.largest) if size]
    words = f"{name} {report.split}: {report.count} image{'s' * (report.count != 1)}"
    words += "" if report.labelled else " without labels"
    console.print(words + (f", {' to '.join(dict.fromkeys(sizes))} pixels" if sizes else ""))
    if report.labels and report.labelled:
        console.print(_table(report))
        absent = [n for n, pixels in zip(report.labels.names, report.pixels, strict=True) if not pixels]
        if absent:
            console.print(f"classes that do not occur: {', '.join(absent)}")
    for kind in dict.fromkeys(problem.kind for problem in report.problems):
        of_kind = [problem for problem in report.problems if problem.kind == kind]
        console.print(f"{kind}: {len(of_kind)}")
        for problem in of_kind[:shown]:
            console.print(f"  {problem.about}" + (f": {problem.detail}" if problem.detail else ""))
        if shown is not None and len(of_kind) > shown:
            console.print(f"  ... and {len(of_kind) - shown} more (--all shows them)")
    console.print()


def _table(report: "Report") -> Any:
    """Class frequencies: per cent of the labelled pixels, and the images that a class is in."""
    from rich import box
    from rich.table import Table

    assert report.labels is not None
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("class")
    objects = [""] * len(report.pixels) if report.objects is None else [f"{n:,}" for n in report.objects.tolist()]
    counted = report.objects is not None
    heads = ("id", "pixels", "% of all in objects", "images", "objects")
    for head in heads if counted else ("value", "pixels", "% of labelled", "images"):
        table.add_column(head, justify="right")
    labelled = int(report.pixels.sum())
    for name, number, pixels, images, of_objects in zip(
        report.labels.names, report.labels.ids, report.pixels, report.images, objects, strict=True
    ):
        share = f"{100 * pixels / labelled:.2f}" if labelled else "-"
        table.add_row(name, str(number), f"{pixels:,}", share, str(images), *[of_objects] * counted)
    rest = "in no object" if counted else "not labelled"
    table.add_row(rest, "", f"{report.ignored:,}", *[""] * (2 + counted), style="dim")
    return table
