"""The rows of the appendix figure: an image, and what some of its positions look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from repgraph.data.labels import IGNORE, Labels, spread_palette
from repgraph.engine.detection import Found, detect
from repgraph.engine.figures import places
from repgraph.engine.figures.one import check_inside
from repgraph.engine.inference import predict
from repgraph.engine.sight import LayerSight, layers, look
from repgraph.engine.trained import Trained
from repgraph.errors import UsageError
from repgraph.layers.repgraph import RepGraph
from repgraph.pictures import detections, overlay
from repgraph.pictures.figure.nodes import Cell

GROUNDS = ("image", "prediction", "truth")
POSITIONS = 4


@dataclass(frozen=True)
class Wanted:
    """What is shown: of which layer (the last) and group (the mean of all), and on which ground.

    ``first`` is the ground of the first column, which has no marks, or "none". ``count`` positions are chosen where
    none are given. Of a layer that attends to all positions the ``strongest`` are shown.
    """

    layer: str | None = None
    group: int | None = None
    first: str = "image"
    under: str = "image"
    opacity: float = overlay.OPACITY
    count: int = POSITIONS
    strongest: int = 64


class Subject:
    """An image, uint8 (3, H, W), with what a network says of it, which is asked for when it is needed.

    ``truth`` (H, W) has the classes, where they are known, and ``labels`` are those of the data set.
    """

    def __init__(
        self, network: Trained, name: str, image: Tensor, truth: Any = None, labels: Labels | None = None
    ) -> None:
        self.network, self.name = network, name
        self.labels = network.labels or labels or _plain_labels(network.model.classes)
        self.of_truth = labels or self.labels
        self.image = image.as_subclass(Tensor)
        self.truth = None if truth is None or not isinstance(truth, Tensor) else np.asarray(truth.as_subclass(Tensor))
        self._said: Any = None

    @property
    def size(self) -> tuple[int, int]:
        return self.image.shape[1], self.image.shape[2]

    @property
    def said(self) -> Any:
        """Classes (H, W), or the :class:`~repgraph.engine.detection.Found` of a detector."""
        if self._said is None:
            model = self.network.model
            self._said = (
                detect(model, self.image) if self.network.detects else np.asarray(predict(model, self.image).cpu())
            )
        return self._said

    def ground(self, kind: str, opacity: float) -> np.ndarray:
        """The image alone, or under the colours of the prediction or the truth, (h, w, 3)."""
        if kind == "image":
            return np.ascontiguousarray(self.image.permute(1, 2, 0).cpu().numpy())
        if kind == "truth":
            if self.truth is None:
                raise UsageError(
                    f"the truth of {self.name} is not known; it is, for a data set with label maps: give --split"
                )
            return np.asarray(overlay.overlay(self.image.cpu(), self.truth, self.of_truth, opacity, legend=False))
        if isinstance(self.said, Found):
            return np.asarray(detections.draw(self.image.cpu(), self.said, self.labels.names, opacity=opacity))
        return np.asarray(overlay.overlay(self.image.cpu(), self.said, self.labels, opacity, legend=False))

    def places(self, count: int) -> list[places.Pixel]:
        """Positions worth looking at."""
        if isinstance(self.said, Found):
            return places.of_objects(self.said.boxes, self.said.scores, self.size, count)
        return places.of_regions(self.said, count)

    def word(self, x: float, y: float, kind: str) -> str:
        """The class at a pixel; for detectors, the pixel."""
        if self.network.detects:
            return f"{x:.0f}, {y:.0f}"
        told: tuple[Any, Labels] = (self.truth, self.of_truth) if kind == "truth" else (self.said, self.labels)
        classes, labels = told
        number = int(classes[int(y + 0.5), int(x + 0.5)])
        return overlay.UNLABELLED if number == IGNORE else labels.names[number]


def _plain_labels(count: int) -> Labels:
    """For a network that does not know what its classes are."""
    return Labels(tuple(f"class {k}" for k in range(count)), spread_palette(count), tuple(range(count)))


def choose(model: Any, path: str | None) -> str:
    """The path of the layer that is shown: the one that is named, or the last."""
    found = list(layers(model, None if path is None else [path]))
    if path is not None and len(found) > 1:
        raise UsageError(f"{path!r} is the end of several layers' paths: {', '.join(found)}; give one of them")
    return found[-1]


def has_nodes(model: Any, path: str | None) -> bool:
    """Whether a layer has nodes, and does not attend to all positions."""
    return isinstance(model.get_submodule(choose(model, path)), RepGraph)


def sight_of(subject: Subject, wanted: Wanted) -> LayerSight:
    """What the layer sees in the image."""
    model = subject.network.model
    found = look(model, subject.image, layers=[choose(model, wanted.layer)], strongest=wanted.strongest).layers[-1]
    if wanted.group is not None and wanted.group >= found.groups:
        there = f"0 to {found.groups - 1}" if found.groups > 1 else "one, 0"
        raise UsageError(f"--group {wanted.group}: the layer {found.path} has no such group; there is {there}")
    return found


def row(subject: Subject, wanted: Wanted, at: Sequence[places.Pixel] | None = None) -> list[Cell]:
    """One row of the figure: the first column, and a picture for each position ``at`` (x, y in pixels)."""
    for place in at or ():
        check_inside(place, subject.size, subject.name)
    sight = sight_of(subject, wanted)
    cells = []
    if wanted.first != "none":
        cells.append(Cell(subject.ground(wanted.first, wanted.opacity), subject.size, None, subject.name))
    ground = subject.ground(wanted.under, wanted.opacity)
    for x, y in at or subject.places(wanted.count):
        found = sight.look(x, y, wanted.group)
        cells.append(Cell(ground, subject.size, found, subject.word(x, y, wanted.under)))
    return cells
