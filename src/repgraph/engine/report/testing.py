"""What the page says of networks on images: the scores of each class, and the images that come out best and worst."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
from PIL import Image
from torch import Tensor, nn

from repgraph.engine.evaluate import Evaluation, evaluate
from repgraph.engine.inference import Settings, options, predict
from repgraph.engine.inference.memory import explained
from repgraph.engine.metrics import Confusion
from repgraph.engine.progress import Meter
from repgraph.pictures.overlay import colour
from repgraph.pictures.report import Panel, Scores, Sheet, Shown, Test
from repgraph.recipes import Recipe

PICTURES = 4  # best ones, worst ones, and so on
SIDE = 320  # of a picture on the page, at most


@dataclass(frozen=True)
class Tested:
    """A network on images: ``run`` is its number on the page, ``each`` has the mIoU of every image.

    ``of`` says which network it is where that is not the one at the end of the run.
    """

    run: int
    model: nn.Module
    data: Any
    settings: Settings
    evaluation: Evaluation
    each: Sequence[float]
    of: str = ""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tests need to share to stand side by side: classes and images."""
        names = tuple(item.name for item in self.data.items[: self.evaluation.images])
        return self.data.name, self.data.split, tuple(self.data.labels.names), names


class PerImage:
    """Collects the mIoU of each image, as the last argument of :func:`repgraph.engine.evaluate.evaluate`."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.scores: list[float] = []

    def __call__(self, index: int, prediction: Tensor, mask: Tensor) -> None:
        counts = Confusion(self.classes)
        counts.update(prediction, mask)
        self.scores.append(counts.scores().miou)


def as_validated(recipe: Recipe, precision: str) -> Settings:
    """Images go through the network as in the tests of training: at scale 1 and not flipped."""
    test = recipe.test
    return Settings(mode=test.mode, crop=test.crop, stride=test.stride, precision=precision)


def test(
    run: int,
    model: nn.Module,
    data: Any,
    settings: Settings,
    *,
    limit: int | None = None,
    workers: int = 2,
    show: TextIO | None = None,
    name: str = "",
    of: str = "",
) -> Tested:
    """Run a network over images."""
    each = PerImage(len(data.labels))
    count = len(data) if limit is None else min(limit, len(data))
    with Meter(f"evaluating {name}".rstrip(), count, show) as meter, explained(settings):
        found = evaluate(
            model, data, settings, limit=limit, workers=workers, progress=lambda done, _: meter.at(done), each=each
        )
    return Tested(run, model, data, settings, found, each.scores, of)


def described(tests: Sequence[Tested], names: Sequence[str], pictures: int = PICTURES) -> list[Test]:
    """Tests for the page, those on the same images together; ``names`` are the runs', ``pictures`` how many of each.

    With no pictures, images are not read again.
    """
    groups: dict[Any, list[Tested]] = {}
    for tested in tests:
        groups.setdefault(tested.identity, []).append(tested)
    found = []
    for group in groups.values():
        data, first = group[0].data, group[0].evaluation
        truth = first.confusion.sum(1).tolist()
        found.append(
            Test(
                title="Scores" if len(groups) == 1 else f"Scores on {data.name} {data.split}",
                about=_about(group),
                measure="IoU",
                names=data.labels.names,
                colours=data.labels.palette,
                shares=[count / max(first.scores.pixels, 1) for count in truth],
                scores=[_scores(tested) for tested in group],
                sheets=_sheets(group, names, pictures) if pictures else (),
            )
        )
    return found


def _scores(tested: Tested) -> Scores:
    found = tested.evaluation
    scores, of = found.scores, f" ({tested.of})" if tested.of else ""
    about = (
        f"mIoU {per_cent(scores.miou)}, pixel accuracy {per_cent(scores.pixel_accuracy)}, "
        f"mean accuracy {per_cent(scores.mean_accuracy)}{of}"
    )
    return Scores(tested.run, about, scores.iou, found.confusion.cpu().numpy())


def _about(group: Sequence[Tested]) -> str:
    data, images = group[0].data, group[0].evaluation.images
    of = f"the first {images} of {len(data)}" if images < len(data) else f"all {images}"
    return f"{data.name} {data.split}, {of} images, over all labelled pixels, {options.described(group[0].settings)}."


def per_cent(value: float) -> str:
    """
    >>> per_cent(0.8371), per_cent(math.nan)
    ('83.71 %', 'not known')
    """
    return f"{100 * value:.2f} %" if math.isfinite(value) else "not known"


def _sheets(group: Sequence[Tested], names: Sequence[str], count: int) -> list[Sheet]:
    """The best and the worst images by their mean mIoU over the runs, and those that runs differ on most."""
    table = np.array([tested.each for tested in group], dtype=float)  # [runs, images]
    known = [int(i) for i in np.flatnonzero(np.isfinite(table).all(0))]
    mean = {i: float(table[:, i].mean()) for i in known}
    count = min(count, (len(known) + 1) // 2)  # no image is among the best and the worst
    ordered = sorted(known, key=lambda i: -mean[i])
    over = " over the runs" if len(group) > 1 else ""
    chosen = [
        ("Best images", f"Those with the highest mIoU of their own, mean{over}.", ordered[:count]),
        (
            "Worst images",
            f"Those with the lowest mIoU of their own, mean{over}; the worst first.",
            ordered[::-1][:count],
        ),
    ]
    if len(group) > 1:
        differ = sorted(known, key=lambda i: -float(np.ptp(table[:, i])))
        seen = {i for _, _, indices in chosen for i in indices}
        rest = [i for i in differ if i not in seen][:count]
        chosen.append(("Where the runs differ most", "By the mIoU of each image; not those above.", rest))
    sheets = []
    for title, about, indices in chosen:
        if indices:
            shown = [_shown(group, names, index) for index in indices]
            sheets.append(Sheet(title, about, shown))
    return sheets


def _shown(group: Sequence[Tested], names: Sequence[str], index: int) -> Shown:
    data = group[0].data
    name = str(data.items[index].name)
    image, mask = data[index]
    panels = [
        Panel(_small(np.asarray(image).transpose(1, 2, 0)), name, photo=True),
        Panel(_labels(mask, data), "truth"),
    ]
    for tested in group:
        said = f"{names[tested.run]}: {per_cent(tested.each[index])}"
        panels.append(Panel(_labels(predict(tested.model, image, tested.settings), data), said))
    return Shown(name, panels)


def _labels(classes: Any, data: Any) -> np.ndarray:
    values = np.asarray(classes).astype(np.uint8)
    return colour(_small(values), data.labels.palette)


def _small(array: np.ndarray) -> np.ndarray:
    """A picture or a label map no larger than :data:`SIDE`."""
    longest = max(array.shape[:2])
    if longest <= SIDE:
        return np.ascontiguousarray(array)
    size = tuple(max(1, round(side * SIDE / longest)) for side in (array.shape[1], array.shape[0]))
    how = Image.Resampling.NEAREST if array.ndim == 2 else Image.Resampling.BOX
    return np.asarray(Image.fromarray(np.ascontiguousarray(array)).resize((size[0], size[1]), how))
