"""Numbers of several seeds in few words, and the table that the demo prints."""

import math
from collections.abc import Sequence

from rich.table import Table

from repgraph.data.scenes import FAR, LABELS
from repgraph.demo.measure import Measured
from repgraph.demo.training import TITLES

Results = dict[str, list[Measured]]  # by the network's name, one for each seed


def percent(values: Sequence[float]) -> str:
    """The mean, and the range if they differ.

    >>> percent([0.884]), percent([0.88, 0.9])
    ('88.4', '89.0 (88.0 to 90.0)')
    """
    low, high = f"{100 * min(values):.1f}", f"{100 * max(values):.1f}"
    return low if low == high else f"{100 * mean(values):.1f} ({low} to {high})"


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def iou(measured: Measured, names: Sequence[str]) -> float:
    """The mean over some classes; a class that is nowhere is left out."""
    known = [measured.evaluation.scores.iou[LABELS.names.index(name)] for name in names]
    known = [value for value in known if not math.isnan(value)]
    return mean(known) if known else math.nan


def rows(results: Results) -> list[tuple[str, bool, list[list[float]]]]:
    """For each class its name, whether it is decided far away, and the IoUs of each network, by seed."""
    return [
        (name, name in FAR, [[iou(each, [name]) for each in found] for found in results.values()])
        for name in LABELS.names
    ]


def terminal(results: Results) -> Table:
    table = Table(title="IoU on the test pictures, per cent")
    table.add_column("class", no_wrap=True)
    for name in results:
        table.add_column(TITLES[name], justify="right")
    for name, far, values in rows(results):
        table.add_row(f"{name} *" if far else name, *(percent([mean(each)]) for each in values))
    table.add_section()
    near = [name for name in LABELS.names if name not in FAR]
    for title, names in (("mean", LABELS.names), ("mean, near", near), ("mean, far *", FAR)):
        table.add_row(title, *(percent([iou(each, names) for each in found]) for found in results.values()))
    table.caption = "* decided by something far away: the two are painted alike"
    return table
