"""The report on runs: an HTML page from their folders."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import Tensor

from repgraph import models, recipes
from repgraph.data.scenes import Scene, Scenes
from repgraph.drawing.page import MAX_SIDE, Picture, label_map, photo, read_asset, render
from repgraph.errors import UsageError
from repgraph.evaluation.segmentation import mean
from repgraph.report.charts import draw_charts, style_of
from repgraph.report.run_log import STOPPED, RunLog, describe_outcomes, facts, flatten, read_runs
from repgraph.report.validation import Options, Result, evaluate_run, percent

STYLE = read_asset(__package__, "report.css")


def report(runs: Sequence[str | Path], options: Options | None = None, *, show: TextIO | None = None) -> str:
    """Return a page about runs as HTML, and show progress; problems of a run or its data are reported on the page."""
    options = options or Options()
    logs = read_runs([Path(run) for run in runs])
    results = []
    for log in logs:
        try:
            if log.network is None:
                raise UsageError("there is no checkpoint yet")
            model = models.load(log.network).to(options.device).eval()
            log.parameters = sum(parameter.numel() for parameter in model.parameters())
            if options.evaluate:
                results.append(evaluate_run(log, model, options, show))
        except UsageError as error:
            log.problems.append(f"The network was not evaluated: {error}.")
    return render_report(logs, results, options.pictures)


def render_report(logs: Sequence[RunLog], results: Sequence[Result], pictures: int) -> str:
    """Return the page; ``pictures`` is the number of best, worst and most different images."""
    runs = [_describe(log) for log in logs]
    heading = "Run" if len(runs) == 1 else f"{len(runs)} runs:"
    settings = dict.fromkeys(name for run in runs for name in run["settings"])
    groups: dict[Any, list[Result]] = {}  # results on the same images are compared
    for result in results:
        groups.setdefault(result.images, []).append(result)
    return render(
        "report.html",
        __package__,
        title=f"{heading} {', '.join(log.name for log in logs)}",
        style=STYLE,
        runs=runs,
        charts=draw_charts([log.series for log in logs]),
        comparisons=[_compare(group, pictures) for group in groups.values()],
        differing=[name for name in settings if len({run["settings"].get(name) for run in runs}) > 1],
    )


def _describe(log: RunLog) -> dict[str, Any]:
    """Return the values of a run for the template."""
    outcomes = describe_outcomes(log)
    unfinished = [f"The run is not finished: {end}." for end in outcomes[-1:] if log.state == STOPPED]
    return {
        "name": log.name,
        "style": style_of(log.index),
        "facts": facts(log),
        "settings": {} if log.recipe is None else flatten(recipes.to_dict(log.recipe)),
        "sessions": list(zip(log.sessions, outcomes, strict=True)),
        "problems": [*log.problems, *unfinished],
    }


def _compare(group: Sequence[Result], pictures: int) -> dict[str, Any]:
    """Return the values of results on the same images for the template."""
    data, count = group[0].data, group[0].count
    part = f"all {count}" if count == len(data) else f"the first {count} of {len(data)}"
    columns = [column for result in group for column in result.columns]
    values = zip(*(column.values for column in columns), strict=True)
    rows = list(zip(data.labels.names, data.labels.palette, values, strict=True))
    rows.sort(key=lambda row: (math.isnan(mean(row[2])), -mean(row[2])))
    images = choose_images([result.per_image for result in group], pictures)
    return {
        "title": f"Scores on {data.name} {data.split}",
        "about": f"Evaluated on {part} images of {data.name} {data.split}, {group[0].protocol}.",
        "measure": group[0].measure,
        "labels": data.labels,
        "columns": columns,
        "heads": [(", ".join(filter(None, (c.log.name, c.label))), style_of(c.log.index)[0]) for c in columns],
        "rows": [*rows, ("mean", None, [mean(column.values) for column in columns])],
        "images": [(heading, [_pictures(group, i) for i in indices]) for heading, indices in images],
    }


def choose_images(scores: Sequence[Sequence[float]], count: int) -> list[tuple[str, list[int]]]:
    """Choose the best and worst images by their mean score over the runs, and those with the largest range."""
    table = np.array(scores, dtype=float)  # [runs, images]
    known = [int(i) for i in np.flatnonzero(np.isfinite(table).all(0))]
    ordered = sorted(known, key=lambda i: -float(table[:, i].mean()))
    best, worst = ordered[:count], ordered[count:][::-1][:count]
    chosen = [("Best images", best), ("Worst images", worst)]
    if len(table) > 1:
        rest = sorted({*known} - {*best, *worst}, key=lambda i: (-float(np.ptp(table[:, i])), i))
        chosen.append(("Largest differences", rest[:count]))
    return [(title, indices) for title, indices in chosen if indices]


def draw_large(data: Scenes, scene: Scene) -> Tensor:
    """Draw a scene at a size for display: images for training are too small to look sharp."""
    return data.draw(scene, max(1, MAX_SIDE // max(data.size)))[0]


def _pictures(group: Sequence[Result], index: int) -> list[Picture]:
    """Return an image, its ground truth, and the predictions of all runs."""
    data, palette = group[0].data, group[0].data.labels.palette
    image, mask = data[index]
    shown = draw_large(data, data.scene(index)) if isinstance(data, Scenes) else image
    row = [photo(shown, str(data.items[index].name)), label_map(mask, palette, "ground truth")]
    for result in group:
        assert result.predict is not None  # only images of segmentation networks have a score
        caption = f"{result.columns[0].log.name}: mIoU {percent(result.per_image[index])}"
        row.append(label_map(result.predict(image), palette, caption))
    return row
