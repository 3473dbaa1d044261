"""Networks for semantic segmentation on images: IoU of classes, confusions, and the mIoU of each image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from repgraph.engine.evaluate import Evaluation, evaluate
from repgraph.engine.inference import Settings, options, predict
from repgraph.engine.inference.memory import explained
from repgraph.engine.metrics import Confusion
from repgraph.engine.progress import Meter
from repgraph.engine.report.testing import Tested, per_cent, small
from repgraph.pictures.overlay import colour
from repgraph.pictures.report import Panel, Scores
from repgraph.recipes import Recipe


@dataclass(frozen=True)
class TestedLabels(Tested):
    """A network for segmentation on images; ``each`` has the mIoU of every image."""

    run: int
    model: nn.Module
    data: Any
    settings: Settings
    evaluation: Evaluation
    each: Sequence[float]
    of: str = ""
    measure = "IoU"
    score = "mIoU"

    @property
    def images(self) -> int:  # type: ignore[override]
        return self.evaluation.images

    @property
    def colours(self) -> Sequence[Sequence[int]]:
        return self.data.labels.palette

    @property
    def shares(self) -> Sequence[float]:
        pixels = max(self.evaluation.scores.pixels, 1)
        return [count / pixels for count in self.evaluation.confusion.sum(1).tolist()]

    def scores(self) -> list[Scores]:
        scores, of = self.evaluation.scores, f" ({self.of})" if self.of else ""
        about = (
            f"mIoU {per_cent(scores.miou)}, pixel accuracy {per_cent(scores.pixel_accuracy)}, "
            f"mean accuracy {per_cent(scores.mean_accuracy)}{of}"
        )
        return [Scores(self.run, about, scores.iou, self.evaluation.confusion.cpu().numpy())]

    def how(self) -> str:
        return f"over all labelled pixels, {options.described(self.settings)}"

    def truth(self, index: int) -> list[Panel]:
        image, mask = self.data[index]
        picture = small(np.asarray(image).transpose(1, 2, 0))
        return [Panel(picture, str(self.data.items[index].name), photo=True), Panel(self._coloured(mask), "truth")]

    def prediction(self, index: int) -> np.ndarray:
        return self._coloured(predict(self.model, self.data[index][0], self.settings))

    def _coloured(self, classes: Any) -> np.ndarray:
        return colour(small(np.asarray(classes).astype(np.uint8)), self.data.labels.palette)


class PerImage:
    """Collects the mIoU of each image: ``each`` of :func:`repgraph.engine.evaluate.evaluate`."""

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
    run: int, model: nn.Module, data: Any, recipe: Recipe, precision: str, limit: int | None, workers: int,
    meter: Meter, of: str = "",
) -> TestedLabels:  # fmt: skip
    """Run a network over images."""
    each, settings = PerImage(len(data.labels)), as_validated(recipe, precision)
    with explained(settings):
        found = evaluate(
            model, data, settings, limit=limit, workers=workers, progress=lambda done, _: meter.at(done), each=each
        )
    return TestedLabels(run, model, data, settings, found, each.scores, of)
