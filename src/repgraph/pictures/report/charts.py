"""The curves of runs: which columns of their logs go into which chart, and what the charts are called."""

import math
from collections.abc import Mapping, Sequence

from repgraph.pictures.curves import MOST, Points, curves, is_cut, number
from repgraph.pictures.page import Html, figure, table, tag
from repgraph.pictures.report.contents import Run

X, ON = "iteration", " on the validation images"
TESTS = "val_"  # columns with scores begin so
REACH = {"reach_mean/": "pixels of the image", "steps_mean/": "positions of its map"}  # columns, and their unit
KNOWN = {  # column: what its chart is called, and its axis
    "loss": ("Loss in training", "loss"),
    "val_miou": (f"mIoU{ON}", "%"),
    "val_mask_ap": (f"AP of masks{ON}", "%"),
    "val_box_ap": (f"AP of boxes{ON}", "%"),
    "val_pixel_accuracy": (f"Pixel accuracy{ON}", "%"),
    "val_mean_accuracy": (f"Mean accuracy{ON}", "%"),
    "images_per_second": ("Speed of training", "images/s"),
    "rate": ("Rate of learning", "rate"),
    "auxiliary_loss": ("Loss of the auxiliary head", "loss"),
    "peak_memory_mib": ("Peak memory", "MiB"),
}
FIRST = ("loss", "val_miou", "val_mask_ap", "val_box_ap")  # then reaches, and these; all others are folded away
THEN = ("images_per_second", "rate")
ROWS = 12  # of the table of a chart


def charts(runs: Sequence[Run]) -> Html:
    """All charts; those that say less are folded away."""
    known = list(dict.fromkeys(name for run in runs for name in run.series if _any(run, name)))
    reaches = [name for name in known if name.startswith(tuple(REACH))]
    main = [name for name in FIRST if name in known] + reaches + [name for name in THEN if name in known]
    rest = [name for name in known if name not in main and "_p95/" not in name and not _flat(runs, name)]
    if not main and not rest:
        return tag("p", "There is nothing to draw: no run has noted anything.", class_="note")
    parts = [tag("div", *(chart(runs, name) for name in main), class_="grid", style="--cell: 25rem")]
    if rest:
        more = tag("div", *(chart(runs, name) for name in rest), class_="grid", style="--cell: 25rem")
        parts.append(
            tag(
                "details",
                tag("summary", f"{len(rest)} more: {', '.join(_titled(name)[0].removesuffix(ON) for name in rest)}"),
                more,
            )
        )
    return tag("div", *parts)


def chart(runs: Sequence[Run], column: str) -> Html:
    """One column of all runs that have it, with a table of some of its values."""
    title, axis = _titled(column)
    scale = 100 if axis == "%" else 1
    having = [(i, run) for i, run in enumerate(runs) if _any(run, column)]
    lines = {run.name: [(a, scale * b) for a, b in run.series[column]] for _, run in having}
    faint = None
    if column.startswith(tuple(REACH)):
        other = column.replace("_mean/", "_p95/", 1)
        faint = {run.name: run.series[other] for _, run in having if _any(run, other)}
    made = curves(lines, X, axis, faint=faint, styles=[i for i, _ in having])
    said = ["Thin: what 95 % of the nodes stay below."] if faint else []
    if any(len(line) > MOST for line in lines.values()):
        said.append("Means of neighbouring values, as there are many.")
    if is_cut([*lines.values(), *(faint or {}).values()]):
        said.append("Values at the upper rim are higher than drawn.")
    return tag(
        "div", tag("p", title, class_="titled"), figure(made, *[" ".join(said)] * bool(said)), _numbers(lines, axis)
    )


def _numbers(lines: Mapping[str, Points], axis: str) -> Html:
    """Some of the values, for those who do not see the chart."""
    places = sorted({a for line in lines.values() for a, b in line if math.isfinite(b)})
    step = max(1, math.ceil(len(places) / ROWS))
    ends = {[a for a, b in line if math.isfinite(b)][-1] for line in lines.values()}
    chosen = sorted({*places[step - 1 :: step], *ends})
    values = [dict(line) for line in lines.values()]

    def cell(found: dict[float, float], at: float) -> Html:
        value = found.get(at)
        return tag("td", "-" if value is None or not math.isfinite(value) else number(value), class_="number")

    rows = [[tag("td", number(at), class_="number"), *(cell(found, at) for found in values)] for at in chosen]
    heads = [tag("th", X, scope="col"), *(tag("th", f"{name}, {axis}", scope="col") for name in lines)]
    return tag("details", tag("summary", "numbers"), table(heads, rows))


def _titled(column: str) -> tuple[str, str]:
    if column in KNOWN:
        return KNOWN[column]
    for prefix, unit in REACH.items():
        if column.startswith(prefix):
            return f"Reach of the nodes of {column.removeprefix(prefix) or 'the network'}", unit
    if column.startswith(TESTS):
        return f"{_capital(words(column))}{ON}", "%"
    return _capital(words(column)), "loss" if "loss" in column else ""


def words(column: str) -> str:
    """What a column is called.

    >>> words("val_miou"), words("val_mask_ap50"), words("loss_box_reg")
    ('mIoU', 'mask AP50', 'loss box reg')
    """
    parts = column.removeprefix(TESTS).split("_")
    return " ".join({"miou": "mIoU"}.get(word, word.upper() if word.startswith("ap") else word) for word in parts)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _any(run: Run, column: str) -> bool:
    return any(math.isfinite(value) for _, value in run.series.get(column, ()))


def _flat(runs: Sequence[Run], column: str) -> bool:
    """Whether there is nothing but zeros in it, such as the loss of a head that is not there."""
    return not any(value for run in runs for _, value in run.series.get(column, ()) if math.isfinite(value))
