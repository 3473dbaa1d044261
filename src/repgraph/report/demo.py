"""The demo: train small networks on the scenes, test them, and write pages about them and about photos."""

import io
import itertools
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy import ndimage

from repgraph import files, recipes
from repgraph.constants import MODEL, PHOTOS, RECIPE, SHIPPED
from repgraph.data.files import read_image
from repgraph.data.scenes import FAR, LABELS, Scene, Scenes
from repgraph.data.scenes.painting import INBOUND, OUTBOUND, SAND, SNOW
from repgraph.drawing.overlay import as_picture
from repgraph.drawing.page import Picture, label_map, photo, render
from repgraph.errors import UsageError
from repgraph.evaluation.segmentation import mean
from repgraph.inference import Settings, predict
from repgraph.inference.network import load
from repgraph.models import RGNet
from repgraph.progress import Progress, format_duration
from repgraph.report.charts import style_of
from repgraph.report.page import STYLE, draw_large, render_report
from repgraph.report.run_log import RunLog, read_runs, total_seconds
from repgraph.report.validation import Result, evaluate_segmentation
from repgraph.train import resume, run_folder, train
from repgraph.visualize.collect import collect_attention, find_layer
from repgraph.visualize.explorer import ExplorerImage, explore
from repgraph.visualize.figures import figure_style
from repgraph.visualize.nodes_figure import Cell, draw_nodes, figure_rows

TITLES = {
    "baseline": "Without the layer",
    "control": "Control (the layer's convolutions without attention)",
    "nl": "With a non-local block",
    "rgnet": "RGNet",
}
# Rows of the table of scores, and the classes over which each one is the mean.
ROWS: dict[str, Sequence[str]] = {f"{name} *" if name in FAR else name: [name] for name in LABELS.names}
ROWS |= {"mean of others": [name for name in LABELS.names if name not in FAR], "mean of *": FAR, "mIoU": LABELS.names}
RUNS = "runs"  # folder of the trained networks
SWAPPED = 40  # scenes whose cues are swapped
REPORT_PICTURES = 3
COLUMNS = 4  # of the figure of nodes


class Stopped(Exception):
    """Training stopped early, such as by SIGINT; the arguments are the reason and the exit code."""


@dataclass(frozen=True)
class DemoNetwork:
    """A trained network and its scores on the test images."""

    name: str
    seed: int
    log: RunLog
    model: RGNet
    result: Result
    changed: float  # fraction of the pixels with a distant cue whose prediction changes if the cue is swapped

    def iou(self, names: Sequence[str]) -> float:
        """Return the mean IoU of some classes; classes that do not occur are left out."""
        return mean([self.result.scores.iou[LABELS.names.index(name)] for name in names])

    def to_dict(self) -> dict[str, object]:
        about = {"network": self.name, "seed": self.seed, "seconds": total_seconds(self.log), "changed": self.changed}
        return {**about, **self.result.scores.to_dict(LABELS.names)}


def run_demo(
    folder: Path,
    networks: Sequence[str] = ("baseline", "rgnet"),
    *,
    seeds: int = 1,
    settings: Sequence[str] = (),
    pictures: int = 6,
    tests: int = 400,
) -> Path:
    """Train and test the networks, print their scores, write the pages, and return the path of the first page.

    Networks that are already in the folder are used, or their training is resumed. ``settings`` apply to all recipes.
    """
    for name in networks:
        if name not in TITLES:
            raise UsageError(f"--networks is {name!r}; expected some of {', '.join(TITLES)}")
    path = folder / "index.html"
    if not (folder / RUNS).is_dir():  # of an earlier call
        run_folder.check_free(folder)
    files.check_writable(path)
    start = time.perf_counter()
    data = Scenes(None, "test", length=tests)
    runs = {folder / RUNS / f"{name}-{seed}": (name, seed) for name in networks for seed in range(seeds)}
    for number, (run, (name, seed)) in enumerate(runs.items(), 1):
        print(f"network {number} of {len(runs)}: {name}, seed {seed}", file=sys.stderr, flush=True)
        train_network(run, name, [*settings, f"train.seed={seed}"])
    logs = read_runs(list(runs))
    tested = [evaluate_network(log, *named, data) for log, named in zip(logs, runs.values(), strict=True)]
    results = {name: [one for one in tested if one.name == name] for name in networks}
    for group in results.values():
        print("{title}: {miou} % mIoU, {far} % on the classes with a distant cue".format(**_describe(group)))
    files.write(folder / "scores.json", json.dumps([one.to_dict() for one in tested], indent=2) + "\n")
    files.write(folder / "report.html", render_report(logs, [one.result for one in tested], REPORT_PICTURES))
    examples = [_example(f"Test image {i}", data, data.scene(i)) for i in range(min(pictures, len(data)))]
    explored = next((results[name][0] for name in ("rgnet", "nl") if name in results), None)
    if explored is not None:
        title, about = "RepGraph demo: what the layer attends to", f"{TITLES[explored.name]} on test images of the demo"
        files.write(folder / "explore.html", explore(explored.model, examples, LABELS, title=title, about=about))
    files.write(path, render_page(results, data, examples, segment_photos(folder)))
    print(f"the command took {format_duration(time.perf_counter() - start)}", file=sys.stderr, flush=True)
    return path


def train_network(folder: Path, name: str, settings: Sequence[str]) -> None:
    """Train the network of recipe ``scenes-NAME`` or resume its training; do nothing if it is already trained."""
    recipe = recipes.with_settings(recipes.get(f"scenes-{name}"), settings)
    if not (folder / RECIPE).exists():
        outcome = train(recipe, folder, show=sys.stderr)
    elif recipes.load(folder / RECIPE) != recipe:
        raise UsageError(f"{folder} was trained with other settings; remove it, or choose another --out")
    elif not (folder / MODEL).exists():
        outcome = resume(folder, show=sys.stderr)
    else:
        print(f"already trained: {folder}", file=sys.stderr, flush=True)
        return
    if outcome.stop is not None:
        hint = "; run the command again to resume" if outcome.stop.signal else ""
        raise Stopped(outcome.stop.reason + hint, outcome.exit_code)


def evaluate_network(log: RunLog, name: str, seed: int, data: Scenes) -> DemoNetwork:
    model = RGNet.from_pretrained(log.folder / MODEL).eval()
    log.parameters = sum(parameter.numel() for parameter in model.parameters())
    with Progress(f"testing {name}, seed {seed}", len(data), sys.stderr) as meter:
        result = evaluate_segmentation(log, model, data, Settings(), progress=lambda done, _: meter.update(done))
    return DemoNetwork(name, seed, log, model, result, swap_cues(model, data, min(SWAPPED, len(data))))


def swap_cues(model: RGNet, data: Scenes, count: int) -> float:
    """Swap sun and moon in some scenes, then the colors of all lights; return the fraction of changed predictions."""
    pixels = changed = 0
    for index in range(count):
        scene = data.scene(index)
        image, mask = data.draw(scene)
        before = predict(model, image)
        lights = tuple(range(len(scene.lighthouses)))
        for other, names in ((scene.swapped(sky=True), FAR[:2]), (scene.swapped(lights=lights), FAR[2:])):
            after = predict(model, data.draw(other)[0])
            affected = torch.isin(mask, torch.tensor([LABELS.names.index(name) for name in names]))
            pixels += int(affected.sum())
            changed += int(((before != after) & affected).sum())
    return changed / pixels


def _example(name: str, data: Scenes, scene: Scene) -> ExplorerImage:
    return ExplorerImage(name, *data.draw(scene), draw_large(data, scene))


def render_page(
    results: dict[str, list[DemoNetwork]], data: Scenes, examples: Sequence[ExplorerImage], photos: Sequence[Picture]
) -> str:
    """Return the first page as HTML; ``results`` are by name, and ``examples`` are test images."""
    first = {name: group[0] for name, group in results.items()}
    scene = data.scene(0)
    swapped = scene.swapped(sky=True, lights=tuple(range(len(scene.lighthouses))))
    networks = [_describe(group) for group in results.values()]
    return render(
        "demo.html",
        __package__,
        title="RepGraph demo",
        style=STYLE,
        photos=photos,
        networks=networks,
        heads=[(one["title"], one["style"]) for one in networks],
        has_explorer="rgnet" in results or "nl" in results,
        labels=LABELS,
        swaps=_predictions(first.values(), [_example("Original", data, scene), _example("Swapped", data, swapped)]),
        swap_count=min(SWAPPED, len(data)),
        scores=[
            (row, colour, [mean([one.iou(names) for one in group]) for group in results.values()])
            for (row, names), colour in itertools.zip_longest(ROWS.items(), LABELS.palette)
        ],
        predictions=_predictions(first.values(), examples),
        nodes=_draw_nodes(first["rgnet"].model, examples) if "rgnet" in first else None,
        tests=len(data),
        seeds=max(map(len, results.values())),
    )


def _describe(group: Sequence[DemoNetwork]) -> dict[str, str]:
    """Return title, color and scores of a network, over its seeds."""
    return {
        "title": TITLES[group[0].name],
        "style": style_of(group[0].log.index)[0],
        "miou": _percent([one.iou(LABELS.names) for one in group]),
        "far": _percent([one.iou(FAR) for one in group]),
        "changed": _percent([one.changed for one in group]),
    }


def _percent(values: Sequence[float]) -> str:
    """Return the mean in percent, and the range if there is one."""
    low, high = f"{100 * min(values):.1f}", f"{100 * max(values):.1f}"
    return low if low == high else f"{100 * mean(values):.1f} ({low} to {high})"


def _predictions(networks: Iterable[DemoNetwork], examples: Sequence[ExplorerImage]) -> list[Picture]:
    """Return images, their ground truth, and the predictions of the networks."""
    pictures = []
    for each in examples:
        maps = {"Ground truth": each.truth} | {TITLES[one.name]: predict(one.model, each.image) for one in networks}
        pictures.append(photo(each.picture, each.name))
        pictures += [label_map(found, LABELS.palette, name, f"{each.name}: {name}") for name, found in maps.items()]
    return pictures


def _draw_nodes(model: RGNet, examples: Sequence[ExplorerImage]) -> Picture:
    """Draw the nodes of a position on a boat and of one on the shore, in the middle of the region."""
    cells = []
    for each in examples:
        *_, layer = collect_attention(model, each.image).values()  # of the head, in its last round
        for what, classes in (("boat", (INBOUND, OUTBOUND)), ("shore", (SAND, SNOW))):
            depth = ndimage.distance_transform_edt(np.pad(np.isin(each.truth, classes), 1))[1:-1, 1:-1]
            y, x = np.unravel_index(depth.argmax(), depth.shape)
            nodes = layer.nodes_at(float(x), float(y))
            cells.append(Cell(as_picture(each.picture), depth.shape, nodes, f"{each.name}: {what}"))
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    return _nodes_picture(rows, "Positions on boats and on the shore (blue), and their nodes (red).")


def segment_photos(folder: Path) -> list[Picture]:
    """Return a figure of each photo in ``examples/photos``, with the nodes of a few positions.

    Also writes ``photos.html``, their explorer page. Returns an empty list outside of a clone of the repository.
    """
    weights, photos = files.in_clone(SHIPPED), files.in_clone(PHOTOS)
    if weights is None or photos is None:
        return []
    network = load(weights)
    model, labels = network.model, network.labels_or_numbers()
    shown = [ExplorerImage(path.stem, read_image(path, upright=True)) for path in sorted(photos.glob("*.jpg"))]
    page = explore(model, shown, labels, title="RepGraph demo: photos", about="RGNet, trained on PASCAL VOC")
    files.write(folder / "photos.html", page)
    layer = find_layer(model)
    rows = [figure_rows(model, each.name, each.image, layer, labels, count=3)[-1] for each in shown]
    caption = "The prediction, and the nodes (red) of three positions (blue) in the last round of attention."
    return [_nodes_picture([row], caption) for row in rows]


def _nodes_picture(rows: Sequence[Sequence[Cell]], caption: str) -> Picture:
    with figure_style():
        draw_nodes(rows, width=10).savefig(buffer := io.BytesIO(), format="png", dpi=120)
    return photo(Image.open(buffer), caption, side=1200)
