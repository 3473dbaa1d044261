"""The demo's page: what was asked of the networks, why one cannot do it, how they did, and where the layer looks."""

import csv
import os
from collections.abc import Sequence

import torch

from repgraph.data.scenes import FAR, LABELS, Scene, Scenes
from repgraph.demo import figures, report
from repgraph.demo.demo import Plan
from repgraph.demo.measure import SWAPS, seen
from repgraph.demo.report import Results, percent
from repgraph.demo.runs import EXPLORER, REPORT
from repgraph.demo.training import TITLES, Network
from repgraph.engine.progress import duration
from repgraph.engine.training.folder import versions
from repgraph.engine.training.records import FIRST, METRICS
from repgraph.info import device_name
from repgraph.pictures.curves import curves
from repgraph.pictures.page import Html, chip, document, figure, legend, table, tag
from repgraph.recipes import Recipe

TITLE = "What a region is may depend on something far away"


def write(
    plan: Plan, trained: Sequence[Network], results: Results, data: Scenes, spent: float, *, explorer: bool = False
) -> str:
    """The page as HTML; ``spent`` are the seconds that tests took, ``explorer`` is whether there is such a page."""
    firsts = {one.name: one for one in trained if one.seed == 0}
    chosen = _telling(data)
    parts = [
        _opening(firsts, results, explorer),
        _task(data, chosen),
        _why(firsts, results, data, chosen),
        _scores(results),
        _predictions(firsts, data, plan.pictures),
        _nodes(firsts.get("rgnet"), data, plan.pictures),
        _setting(plan, trained, data, spent),
    ]
    return document(f"repgraph demo: {TITLE.lower()}", *parts)


def _telling(data: Scenes) -> Scene:
    """The first scene with the sun in it and lights of both colours."""
    scenes = [data.scene(i) for i in range(len(data))]
    telling = [s for s in scenes if not s.moon and len({tower.blue for tower in s.lighthouses}) == 2]
    return (telling or scenes)[0]


def _opening(firsts: dict[str, Network], results: Results, explorer: bool) -> Html:
    networks = ("A small network", "Two small networks", "Three small networks", "Four small networks")[len(firsts) - 1]
    lead = (
        f"{networks} learned, from nothing, to say what is what in drawn pictures of a bay. For half of the classes "
        "nothing near tells them apart: one has to look across the picture. A RepGraph layer lets each position pick a "
        "few places to look at; the network without it is otherwise the same."
    )
    tiles = []
    for name, found in results.items():
        kind = "second" if name == "rgnet" else "first"
        far = percent([report.iou(each, FAR) for each in found])
        scores = [each.evaluation.scores.miou for each in found]
        low, high = 100 * min(scores), 100 * max(scores)
        seeds = f" ({low:.1f} to {high:.1f} over {len(found)} seeds)" if len(found) > 1 else ""
        tiles.append(
            tag(
                "div", tag("b", f"{100 * report.mean(scores):.1f}", class_=kind),
                tag("span", f"mIoU, {TITLES[name]}{seeds}"),
                tag("div", tag("span", f"{far} on the four classes decided far away")), class_="tile",
            )
        )  # fmt: skip
    links = [tag("li", tag("a", "The runs in numbers", href=REPORT), ": curves, classes, best and worst pictures")]
    if explorer:
        what = ": point anywhere in a picture and see where the layer looks from there"
        links.append(tag("li", tag("a", "The explorer", href=EXPLORER), what))
    return tag(
        "header", tag("h1", TITLE), tag("p", lead, class_="lead"), tag("div", *tiles, class_="tiles"), tag("ul", *links)
    )


def _task(data: Scenes, scene: Scene) -> Html:
    moon = tag(
        "li", "The near shore is ", tag("b", "sand"), " under the sun and ", tag("b", "snow"), " under the moon."
    )
    lights = tag(
        "li", "A boat is ", tag("b", "inbound"), " if the lighthouse above it shines orange, and ",
        tag("b", "outbound"), " if it shines blue.",
    )  # fmt: skip
    height, width = data.size
    return tag(
        "section",
        tag("h2", "The pictures"),
        tag("p", "The program draws them from a seed. Two rules reach across the picture:"),
        tag("ul", moon, lights),
        tag(
            "p",
            "Shore and boats are painted the same way in either case, by chance that knows nothing of sun, moon and "
            "lights. What is near a region says nothing about which of its two classes it has.",
        ),
        tag(
            "div",
            figure(
                figures.explained(data, scene),
                f"From what decides to what is decided. Drawn {figures.ZOOM} times as large as the networks see it "
                f"({width} x {height} pixels).",
            ),
            figure(figures.labels(data.draw(scene)[1], "the classes of its regions"), "What the regions are."),
            class_="grid",
            style="--cell: 22rem",
        ),
        legend(LABELS.names, LABELS.palette),
    )


def _why(firsts: dict[str, Network], results: Results, data: Scenes, scene: Scene) -> Html:
    parts = [tag("h2", "Why it cannot be done from near")]
    if baseline := firsts.get("baseline"):
        height, width = seen(baseline.model, data.size)
        parts.append(
            tag(
                "p",
                f"What the network without the layer says about a pixel depends on {width} x {height} pixels around "
                "it, measured by gradients. The sky is farther from the shore than that, and a light farther from its "
                "boat. Bright is what the answer at the blue dot depends on:",
            )
        )
        shown = [one for name in ("baseline", "rgnet") if (one := firsts.get(name))]
        cells = []
        for at, what in zip(figures.spots(data, scene), ("a boat", "the shore"), strict=True):
            for one in shown:
                made = figures.dependence(one.model, data, scene, at, f"what {what} depends on, {one.title}")
                cells.append(figure(made, tag("b", _capital(one.title)), f": what it says about {what}"))
        parts.append(tag("div", *cells, class_="rows", style=f"--columns: {len(shown)}"))
        parts.append(
            tag(
                "p",
                "This encoder is short-sighted on purpose, and small enough for a CPU. A deep one sees more, and could "
                "learn such rules without the layer. The page shows what the layer does; what it gains on photographs "
                "is another question.",
                class_="note",
            )
        )
    parts += [tag("h3", "The same picture with everything that decides swapped"), _swapped(firsts, data, scene)]
    lines = [tag("li", tag("b", _capital(TITLES[name])), f": {_followed(found)}") for name, found in results.items()]
    count = min(SWAPS, len(data))
    parts.append(
        tag(
            "p",
            f"In {count} test pictures sun and moon were swapped, then the colours of all lights. Of the pixels whose "
            "class this turns into the other,",
        )
    )
    return tag("section", *parts, tag("ul", *lines))


def _followed(found: Sequence[report.Measured]) -> str:
    changed, right = percent([each.changed for each in found]), percent([each.right for each in found])
    return f"{changed} % are called something else afterwards, {right} % are right before and after."


def _swapped(firsts: dict[str, Network], data: Scenes, scene: Scene) -> Html:
    other = scene.swapped(sky=True, lights=tuple(range(len(scene.lighthouses))))
    cells = []
    for each, title in ((scene, "as it is"), (other, "swapped")):
        image, mask = data.draw(each)
        cells.append(figure(figures.small(image, f"the picture, {title}"), f"Picture, {title}"))
        cells.append(figure(figures.labels(mask, f"its classes, {title}"), "Truth"))
        for one in firsts.values():
            made = figures.predicted(one.model, image, f"prediction {one.title}, {title}")
            cells.append(figure(made, _capital(one.title)))
    return tag("div", *cells, class_="rows", style=f"--columns: {2 + len(firsts)}")


def _scores(results: Results) -> Html:
    heads: list[object] = ["class", *(tag("th", _capital(TITLES[name]), colspan=2) for name in results)]
    lines = []
    for (name, far, values), colour in zip(report.rows(results), LABELS.palette, strict=True):
        lines.append([tag("td", chip(colour), name, " *" if far else "", class_="name"), *_bars(results, values)])
    near = [name for name in LABELS.names if name not in FAR]
    for title, names in (("mean of the near", near), ("mean of the far *", FAR), ("mIoU", LABELS.names)):
        values = [[report.iou(each, names) for each in found] for found in results.values()]
        lines.append([tag("td", tag("b", title), class_="name"), *_bars(results, values)])
    return tag(
        "section",
        tag("h2", "Scores"),
        tag(
            "p",
            "Intersection over union of each class, per cent, over all pixels of the test pictures; means over seeds.",
        ),
        table(heads, lines),
        tag(
            "p",
            "* Decided far away. Who guesses between two classes that are equally likely gets an IoU of about 33 for "
            "each, or 50 for one and 0 for the other.",
            class_="note",
        ),
    )


def _bars(results: Results, values: Sequence[Sequence[float]]) -> list[Html]:
    cells = []
    for name, found in zip(results, values, strict=True):
        share = max(0.0, min(1.0, report.mean(found))) if found == found else 0.0
        kind = "second" if name == "rgnet" else "first"
        cells.append(tag("td", percent([report.mean(found)]), class_="number"))
        cells.append(tag("td", tag("i", style=f"--share: {100 * share:.1f}%"), class_=f"bar {kind}"))
    return cells


def _predictions(firsts: dict[str, Network], data: Scenes, count: int) -> Html:
    cells = []
    for index in range(min(count, len(data))):
        image, mask = data.draw(data.scene(index))
        cells.append(figure(figures.small(image, f"test picture {index}"), f"Test picture {index}"))
        cells.append(figure(figures.labels(mask, f"truth of picture {index}"), "Truth"))
        for one in firsts.values():
            made = figures.predicted(one.model, image, f"prediction {one.title}, picture {index}")
            cells.append(figure(made, _capital(one.title)))
    return tag(
        "section",
        tag("h2", "Predictions"),
        tag("p", "The first pictures of the test split, as the networks see them; not chosen."),
        legend(LABELS.names, LABELS.palette),
        tag("div", *cells, class_="rows", style=f"--columns: {2 + len(firsts)}"),
    )


def _nodes(one: Network | None, data: Scenes, count: int) -> Html | None:
    if one is None:
        return None
    cells = []
    for index in range(min(max(2, count - count % 2), len(data))):
        scene = data.scene(index)
        made, far = figures.looks(one.model, data, scene, figures.spots(data, scene), f"nodes in picture {index}")
        cells.append(figure(made, f"Test picture {index}: the most attended nodes are {far} pixels away"))
    nodes = one.recipe.model.context_options.get("nodes", 9)
    return tag(
        "section",
        tag("h2", "Where the layer looks"),
        tag(
            "p",
            f"For a position on a boat and one on the shore (blue), the {nodes} representative nodes that the layer "
            "reads for it (red): the larger, the more attention. Where they lie is regressed from what is seen at the "
            "position itself, and was learned with the rest; the start was a ring around the position.",
        ),
        tag("div", *cells, class_="grid", style="--cell: 24rem"),
        tag("p", "Nodes outside of the picture read zeros. Point at a node for its weight.", class_="note"),
    )


def _setting(plan: Plan, trained: Sequence[Network], data: Scenes, spent: float) -> Html:
    first, train = trained[0].recipe, trained[0].recipe.train
    lines = {
        one.title: [(float(row[FIRST]), float(row["loss"])) for row in _metrics(one) if row["loss"]]
        for one in trained
        if one.seed == 0
    }
    times = ", ".join(f"{one.name} seed {one.seed}: {_time(one.seconds)}" for one in trained)
    found = {name: value for name, value in versions().items() if value is not None}
    facts = [
        ("training", f"{train.iterations} iterations of {train.batch} pictures, SGD, rate {first.optim.lr:g}"),
        ("pictures", f"{_drawn(first)} to learn from, {len(data)} others to test on"),
        ("parameters", ", ".join(f"{one.name} {_count(one):,}" for one in trained if one.seed == 0)),
        ("time to train", times),
        ("time to test", duration(spent)),
        ("ran on", f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores"),
        ("versions", ", ".join(f"{name} {value}" for name, value in found.items())),
    ]
    command = f"repgraph demo --out {plan.out} --networks {' '.join(plan.networks)} --seeds {plan.seeds}"
    command += f" --set {' '.join(plan.settings)}" if plan.settings else ""
    return tag(
        "section",
        tag("h2", "What was run"),
        table(["", ""], [(tag("th", name), value) for name, value in facts]),
        tag("p", "The command: ", tag("code", command)),
        figure(curves(lines, "iteration", "training loss"), "Loss in training, of the first seed."),
    )


def _metrics(one: Network) -> list[dict[str, str]]:
    with (one.folder / METRICS).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _drawn(recipe: Recipe) -> int:
    return recipe.data.limit or len(Scenes(None, recipe.data.split, **recipe.data.options))


def _count(one: Network) -> int:
    return sum(parameter.numel() for parameter in one.model.parameters())


def _time(seconds: float | None) -> str:
    return "not known, in several parts" if seconds is None else duration(seconds)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
