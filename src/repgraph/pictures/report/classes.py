"""Scores of classes: bars of several runs side by side, confusion matrices, and images."""

import math
from collections.abc import Sequence

from repgraph.pictures.curves import style_of
from repgraph.pictures.legend import share
from repgraph.pictures.page import Html, chip, figure, image, legend, table, tag
from repgraph.pictures.report.contents import Run, Scores, Sheet, Shown, Test
from repgraph.pictures.report.heat import confusions, heat

MANY = 40  # classes from which on only the best and worst are in view
ENDS = 10  # of each of these


def tested(test: Test, runs: Sequence[Run]) -> Html:
    """All about one test."""
    scored = [
        tag("li", tag("b", runs[scores.run].name, class_=style_of(scores.run)[0]), f": {scores.about}")
        for scores in test.scores
    ]
    parts: list[Html | None] = [tag("h2", test.title), tag("p", test.about), tag("ul", *scored)]
    parts += [tag("h3", f"{test.measure} of each class"), *bars(test, runs)]
    counted = [scores for scores in test.scores if scores.confusion is not None]
    if counted:
        parts += [tag("h3", "What was taken for what"), *_matrices(test, counted, runs)]
    if test.sheets:
        named = legend(test.names, test.colours) if test.colours else None
        if named is not None and len(test.names) > MANY:
            named = tag("details", tag("summary", "colours of the classes"), named)
        parts += [named, *map(sheet, test.sheets)]
    return tag("section", *parts, id="scores")


def bars(test: Test, runs: Sequence[Run]) -> list[Html]:
    """The score of each class in each run, the highest mean first."""
    order = sorted(range(len(test.names)), key=lambda k: _rank([scores.values[k] for scores in test.scores]))
    heads = [tag("th", "class", scope="col"), tag("th", "of pixels", scope="col") if test.shares else None]
    for scores in test.scores:
        kind = style_of(scores.run)[0]
        label = f", {scores.label}" if scores.label else ""
        heads.append(
            tag("th", f"{runs[scores.run].name}{label}, %", scope="colgroup", colspan=2, class_=f"wide {kind}")
        )
    heads = [head for head in heads if head is not None]
    lines = [_line(test, k) for k in order]
    mean = [tag("th", "mean", scope="row"), *([tag("td")] if test.shares else [])]
    for scores in test.scores:
        known = [value for value in scores.values if math.isfinite(value)]
        mean += _bar(math.fsum(known) / len(known) if known else math.nan, scores)
    said = tag("p", "Sorted by the mean over runs. A dash: the class is not in the images.", class_="note")
    if len(order) <= MANY:
        return [tag("div", table(heads, [*lines, mean]), class_="classes"), said]
    count = sum(any(math.isfinite(scores.values[k]) for scores in test.scores) for k in order)
    few = [*lines[:ENDS], [tag("td", "…", class_="name")], *lines[max(ENDS, count - ENDS) : count], mean]
    return [
        tag("div", table(heads, few), class_="classes"),
        tag(
            "details",
            tag("summary", f"all {len(order)} classes"),
            tag("div", table(heads, lines), class_="classes"),
        ),
        said,
    ]


def _rank(values: Sequence[float]) -> tuple[bool, float]:
    known = [value for value in values if math.isfinite(value)]
    return not known, -math.fsum(known) / len(known) if known else 0.0


def _line(test: Test, k: int) -> list[Html]:
    name = [chip(test.colours[k]) if test.colours else None, test.names[k]]
    cells = [tag("td", *name, class_="name", title=test.names[k])]
    if test.shares:
        cells.append(tag("td", share(test.shares[k]) if test.shares[k] else "none", class_="number"))
    for scores in test.scores:
        cells += _bar(scores.values[k], scores)
    return cells


def _bar(value: float, scores: Scores) -> list[Html]:
    known = math.isfinite(value)
    wide = f"--share: {100 * min(max(value, 0), 1):.1f}%"
    return [
        tag("td", f"{100 * value:.1f}" if known else "-", class_="number"),
        tag("td", tag("i", style=wide) if known else None, class_=f"bar {style_of(scores.run)[0]}"),
    ]


def _matrices(test: Test, counted: Sequence[Scores], runs: Sequence[Run]) -> list[Html]:
    parts = [
        tag(
            "p",
            "Rows are true classes, columns what the network said, in per cent of the row; point at a cell for its "
            "value. Cells below 0.5 % are empty.",
            class_="note",
        )
    ]
    matrices = []
    for number, scores in enumerate(counted):
        assert scores.confusion is not None
        name, kind = runs[scores.run].name, style_of(scores.run)[0]
        found = confusions(scores.confusion, test.names)
        shown = tag(
            "div",
            tag("p", name, class_=f"titled {kind}"),
            tag("div", heat(scores.confusion, test.names), class_="scroll"),
            *([tag("p", "The most frequent mistakes:", class_="note"), found] if found else []),
        )
        if number and len(test.names) > MANY:
            shown = tag("details", tag("summary", f"confusion matrix of {name}"), shown)
        matrices.append(shown)
    return [*parts, tag("div", *matrices, class_="matrices")]


def sheet(given: Sheet) -> Html:
    """Images under a title."""
    return tag("div", tag("h3", given.title), tag("p", given.about, class_="note"), *map(_row, given.images))


def _row(shown: Shown) -> Html:
    cells = [
        figure(image(panel.picture, f"{shown.name}: {panel.caption}", photo=panel.photo), panel.caption)
        for panel in shown.panels
    ]
    return tag("div", *cells, class_="shown")
