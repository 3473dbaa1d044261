"""What can lie under the nodes: labels of pixels, or objects with boxes and masks, predicted or true."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repgraph.data.labels import IGNORE, Labels

NONE = 255  # in values: nothing there
MOST = 254  # objects of an image


@dataclass(frozen=True)
class Entry:
    """What a value stands for: a class, or one object."""

    name: str
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class Box:
    """Left, top, right, bottom of an object in pixels whose centres are at integers, and its entry."""

    corners: tuple[float, float, float, float]
    entry: int


@dataclass(frozen=True)
class Underlay:
    """A map (H, W) of bytes that says for each pixel which entry it is of, or NONE; and perhaps boxes."""

    title: str
    values: np.ndarray
    entries: tuple[Entry, ...]
    boxes: tuple[Box, ...] = ()


def of_labels(title: str, classes: Any, labels: Labels) -> Underlay:
    """The label of each pixel, (H, W); only classes that occur are kept, those with the most pixels first.

    >>> info = Labels(("sky", "sea"), ((70, 130, 180), (0, 60, 120)), ids=(0, 1))
    >>> made = of_labels("prediction", np.array([[1, 1, 255, 0]]), info)
    >>> made.values.tolist(), [entry.name for entry in made.entries]
    ([[0, 0, 255, 1]], ['sea', 'sky'])
    """
    array = np.asarray(classes)
    counts = np.bincount(array.reshape(-1), minlength=IGNORE + 1)
    present = sorted((k for k in range(len(labels)) if counts[k]), key=lambda k: -counts[k])
    table = np.full(IGNORE + 1, NONE, np.uint8)
    table[present] = np.arange(len(present))
    return Underlay(title, table[array], tuple(Entry(labels.names[k], labels.palette[k]) for k in present))


def of_objects(
    title: str,
    size: Sequence[int],
    boxes: Any,
    classes: Sequence[int],
    masks: Any,
    labels: Labels,
    scores: Sequence[float] | None = None,
) -> Underlay:
    """Objects in an image of ``size`` (H, W): boxes (N, 4) in pixels that begin at integers, masks (N, H, W) of 0, 1.

    ``classes`` are 0 to K - 1. Where masks overlap, the object that comes first lies on top; at most 254 are kept.
    """
    boxes, masks = np.asarray(boxes, dtype=float).reshape(-1, 4)[:MOST], np.asarray(masks)[:MOST]
    values = np.full(tuple(size), NONE, np.uint8)
    for i in reversed(range(len(boxes))):
        values[masks[i] > 0] = i
    entries = []
    for i in range(len(boxes)):
        name = labels.names[classes[i]]
        entries.append(Entry(name if scores is None else f"{name} {scores[i]:.2f}", labels.palette[classes[i]]))
    corners = [Box((a - 0.5, b - 0.5, c - 0.5, d - 0.5), i) for i, (a, b, c, d) in enumerate(boxes.tolist())]
    return Underlay(title, values, tuple(entries), tuple(corners))
