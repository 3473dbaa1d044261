"""What there is to say of a non-local layer's weights: on the screen, in files, as a figure."""

import argparse
import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from repgraph import files
from repgraph.engine.figures.affinity import Affinity
from repgraph.engine.figures.arguments import Pictures
from repgraph.engine.figures.one import Position
from repgraph.engine.figures.statistics import NAMES, Histogram
from repgraph.engine.figures.tally import QUANTILES

NUMBERS = "affinity.json"


def show(found: Affinity, one: Position, name: str, about: str) -> None:
    """The numbers as a table."""
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True, width=1000)  # nothing is cut
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("of each position's weights")
    for head in ("mean", "median", *(f"{100 * share:g} %" for share in QUANTILES if share != 0.5), "uniform"):
        table.add_column(head, justify="right", no_wrap=True)
    for key in NAMES:
        summary = getattr(found, key)
        others = [value for share, value in summary.quantiles.items() if share != 0.5]
        values = [summary.mean, summary.median, *others, summary.uniform]
        table.add_row(title(key, found.top_count), *(number(key, value) for value in values))
    console.print(table)
    console.print()
    console.print(f"{about}, layer {found.layer}, {found.queries} queries, N = {positions(found)}")
    console.print(f"one position, {where(one, name)}: " + "; ".join(lines(one.statistics, one.uniform, found)))


def title(key: str, top: int) -> str:
    return {
        "top": f"mass in the top {top}, %",
        "percent": "mass in the top 1 %, %",
        "effective": "effective number of positions, exp(entropy)",
        "effective_share": "  of all N positions, %",
    }[key]


def number(key: str, value: float) -> str:
    """A statistic as a table shows it: a number of positions, or per cent.

    >>> number("effective", 123.456), number("top", 0.0123456)
    ('123.5', '1.23')
    """
    return f"{value:.1f}" if key == "effective" else f"{100 * value:.2f}" if value < 0.1 else f"{100 * value:.1f}"


def lines(values: dict[str, float], uniform: dict[str, float], found: Affinity) -> list[str]:
    """The numbers that carry the argument, as they stand below a histogram."""
    top, percent = (f"{number(k, values[k])} % (uniform {number(k, uniform[k])} %)" for k in ("top", "percent"))
    effective = f"{number('effective', values['effective'])} of {uniform['effective']:.0f}"
    return [f"top {found.top_count}: {top}", f"top 1 %: {percent}", f"effective number: {effective}"]


def positions(found: Affinity) -> str:
    """The number of positions of the images' maps."""
    low, high = min(one.positions for one in found.images), max(one.positions for one in found.images)
    return str(low) if low == high else f"{low} to {high}"


def where(one: Position, name: str) -> str:
    return f"{name} at {one.at[0]:g},{one.at[1]:g}"


def as_record(found: Affinity, one: Position, name: str, about: dict[str, Any]) -> dict[str, Any]:
    """All numbers, for JSON."""
    return {**about, **found.to_dict(), "one_position": {"image": name, **one.to_dict()}}


def write(record: dict[str, Any], found: Affinity, names: Sequence[str], folder: Path) -> list[Path]:
    """The numbers as JSON and CSV, the histogram, and the means of each image."""
    heads = ["statistic", "mean", "uniform", *(f"quantile {share:g}" for share in QUANTILES)]
    summaries = [(key, getattr(found, key)) for key in NAMES]
    named = {"top": f"top {found.top_count}", "percent": "top 1 %"}
    table = [[named.get(key, key), s.mean, s.uniform, *s.quantiles.values()] for key, s in summaries]
    bars = found.histogram
    bins = zip(bars.edges, bars.edges[1:], bars.weights, bars.mass, strict=False)
    own = [
        [name, one.positions, *(getattr(one, key) for key in NAMES)]
        for name, one in zip(names, found.images, strict=True)
    ]
    return [
        files.write(folder / NUMBERS, (json.dumps(record, indent=2) + "\n").encode()),
        files.write(folder / "affinity.csv", _csv([heads, *table])),
        files.write(folder / "histogram.csv", _csv([["weight x N from", "to", "weights", "mass"], *bins])),
        files.write(folder / "images.csv", _csv([["image", "positions", *NAMES], *own])),
    ]


def draw(found: Affinity, one: Position, images: Pictures, first: Tensor, arguments: argparse.Namespace) -> list[Path]:
    """The figure, in the kinds of file that were asked for."""
    from repgraph.pictures.figure import histogram, paper

    means = {key: getattr(found, key).mean for key in NAMES}
    uniform = {key: getattr(found, key).uniform for key in NAMES}

    def panel(title: str, bars: Histogram, text: list[str]) -> histogram.Panel:
        return histogram.Panel(title, bars.edges, bars.weights, bars.mass, text)

    queries = f"all positions of {len(images)} image{'s' * (len(images) > 1)}"
    panels = [
        panel(queries, found.histogram, lines(means, uniform, found)),
        panel("one position", one.histogram, lines(one.statistics, one.uniform, found)),
    ]
    picture = np.ascontiguousarray(first.as_subclass(Tensor).permute(1, 2, 0).cpu().numpy())
    place = histogram.Map("its weights", picture, one.at, one.weights.mean(0), one.step)
    with paper.style(paper.scale(arguments.width)):
        chart = histogram.draw(panels, place, width=arguments.width)
        return [
            paper.save(chart, arguments.out / f"affinity.{kind}", arguments.dpi)
            for kind in dict.fromkeys(arguments.format)
        ]


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
