"""What the page says of networks on images: the scores of each class, and the images that come out best and worst."""

import abc
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from repgraph.pictures.report import Panel, Scores, Sheet, Shown, Test

PICTURES = 4  # best ones, worst ones, and so on
SIDE = 320  # of a picture on the page, at most


class Tested(abc.ABC):
    """A network on images: ``run`` is its number on the page, ``each`` has a score of every image.

    ``images`` were looked at, the first of ``data``. ``of`` says which network it is where that is not the one at the
    end of the run.
    """

    measure: str  # of classes
    score: str  # of an image
    run: int
    data: Any
    images: int
    each: Sequence[float]
    of: str

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tests need to share to stand side by side: classes and images."""
        names = tuple(item.name for item in self.data.items[: self.images])
        return self.data.name, self.data.split, tuple(self.data.labels.names), names

    @abc.abstractmethod
    def scores(self) -> list[Scores]:
        """Of each class, in one column or several."""

    @abc.abstractmethod
    def how(self) -> str:
        """How images went through the network, for a sentence."""

    @abc.abstractmethod
    def truth(self, index: int) -> list[Panel]:
        """An image, and what it shows."""

    @abc.abstractmethod
    def prediction(self, index: int) -> np.ndarray:
        """What the network says about an image, as a picture (H, W, 3)."""

    @property
    def colours(self) -> Sequence[Sequence[int]]:
        """Of classes."""
        return ()

    @property
    def shares(self) -> Sequence[float]:
        """Of the pixels that are of each class, or nothing."""
        return ()


def described(tests: Sequence[Tested], names: Sequence[str], pictures: int = PICTURES) -> list[Test]:
    """Tests for the page, those on the same images together; ``names`` are the runs', ``pictures`` how many of each.

    With no pictures, images are not read again.
    """
    groups: dict[Any, list[Tested]] = {}
    for tested in tests:
        groups.setdefault(tested.identity, []).append(tested)
    found = []
    for group in groups.values():
        first = group[0]
        data = first.data
        found.append(
            Test(
                title="Scores" if len(groups) == 1 else f"Scores on {data.name} {data.split}",
                about=_about(first),
                measure=first.measure,
                names=data.labels.names,
                colours=first.colours,
                shares=first.shares,
                scores=[scores for tested in group for scores in tested.scores()],
                sheets=_sheets(group, names, pictures) if pictures else (),
            )
        )
    return found


def _about(tested: Tested) -> str:
    data, images = tested.data, tested.images
    of = f"the first {images} of {len(data)}" if images < len(data) else f"all {images}"
    return f"{data.name} {data.split}, {of} images, {tested.how()}."


def per_cent(value: float) -> str:
    """
    >>> per_cent(0.8371), per_cent(math.nan)
    ('83.71 %', 'not known')
    """
    return f"{100 * value:.2f} %" if math.isfinite(value) else "not known"


def _sheets(group: Sequence[Tested], names: Sequence[str], count: int) -> list[Sheet]:
    """The best and the worst images by their mean score over the runs, and those that runs differ on most."""
    table = np.array([tested.each for tested in group], dtype=float)  # [runs, images]
    known = [int(i) for i in np.flatnonzero(np.isfinite(table).all(0))]
    mean = {i: float(table[:, i].mean()) for i in known}
    ordered = sorted(known, key=lambda i: -mean[i])
    best = ordered[: min(count, (len(known) + 1) // 2)]  # no image is among the best and the worst
    worst = ordered[::-1][: min(count, len(known) // 2)]
    what = f"{group[0].score} of their own" + (", mean over the runs" if len(group) > 1 else "")
    chosen = [
        ("Best images", f"Those with the highest {what}.", best),
        ("Worst images", f"Those with the lowest {what}; the worst first.", worst),
    ]
    if len(group) > 1:
        rest = [i for i in known if i not in (*best, *worst)]
        differ = sorted(rest, key=lambda i: -float(np.ptp(table[:, i])))[:count]
        chosen.append(
            ("Where the runs differ most", f"By the {group[0].score} of each image; not those above.", differ)
        )
    return [
        Sheet(title, about, [_shown(group, names, index) for index in indices])
        for title, about, indices in chosen
        if indices
    ]


def _shown(group: Sequence[Tested], names: Sequence[str], index: int) -> Shown:
    panels = list(group[0].truth(index))
    for tested in group:
        said = f"{names[tested.run]}: {tested.score} {per_cent(tested.each[index])}"
        panels.append(Panel(tested.prediction(index), said, photo=not tested.colours))
    return Shown(str(group[0].data.items[index].name), panels)


def small(array: np.ndarray) -> np.ndarray:
    """A picture (H, W, 3) or a label map (H, W) no larger than :data:`SIDE`.

    >>> small(np.zeros((640, 320, 3), np.uint8)).shape
    (320, 160, 3)
    """
    longest = max(array.shape[:2])
    if longest <= SIDE:
        return np.ascontiguousarray(array)
    size = [max(1, round(side * SIDE / longest)) for side in (array.shape[1], array.shape[0])]
    how = Image.Resampling.NEAREST if array.ndim == 2 else Image.Resampling.BOX
    return np.asarray(Image.fromarray(np.ascontiguousarray(array)).resize((size[0], size[1]), how))
