"""Positions worth looking at, where none are given: in the middle of regions, on objects, or evenly spread."""

from collections.abc import Sequence

import numpy as np

SIDE = 96  # regions are looked at in so many steps along the longer side, about
SCORE = 0.5  # of objects
NEAR = 0.08  # of the longer side: positions are farther apart

Pixel = tuple[float, float]


def of_regions(labels: np.ndarray, count: int) -> list[Pixel]:
    """Pixels x, y in the middle of regions of a label map (H, W): the broadest of each class first, then others.

    >>> labels = np.zeros((40, 60), int)
    >>> labels[10:30, 35:55] = 1
    >>> of_regions(labels, 2)
    [(17.0, 19.0), (44.0, 19.0)]
    """
    step = max(1, -(-max(labels.shape) // SIDE))
    coarse = np.asarray(labels)[step // 2 :: step, step // 2 :: step]
    depth = _depth(coarse)
    rows, columns = (np.asarray(part) for part in np.indices(coarse.shape))
    free = np.ones(coarse.shape, dtype=bool)
    fresh = free.copy()  # of classes that have no position yet
    chosen: list[Pixel] = []
    for _ in range(count):
        among = fresh & free & (depth > 1)
        among = among if among.any() else free
        if not among.any():
            break
        deepest = among & (depth == depth[among].max())
        row, column = _middle(rows[deepest], columns[deepest])
        chosen.append((float(column * step + step // 2), float(row * step + step // 2)))
        fresh &= coarse != coarse[row, column]
        free &= np.hypot(rows - row, columns - column) > NEAR * max(coarse.shape)
    return chosen + spread((labels.shape[0], labels.shape[1]), count)[len(chosen) :]


def of_objects(boxes: np.ndarray, scores: np.ndarray, size: Sequence[int], count: int) -> list[Pixel]:
    """The middle of the boxes (N, 4) with the best scores; what is missing is spread over the image of ``size`` (H, W).

    >>> of_objects(np.array([[10, 10, 21, 31]]), np.array([0.9]), (40, 60), 2)
    [(15.0, 20.0), (44.5, 25.5)]
    """
    chosen: list[Pixel] = []
    for k in np.argsort(-scores, kind="stable"):
        left, top, right, bottom = boxes[k]
        x, y = (
            float(np.clip(round((a + b - 1) / 2), 0, most - 1))
            for a, b, most in ((left, right, size[1]), (top, bottom, size[0]))
        )
        if scores[k] >= SCORE and all(np.hypot(x - a, y - b) > NEAR * max(size) for a, b in chosen):
            chosen.append((x, y))
    return (chosen[:count] + spread(size, count)[len(chosen) :])[:count]


def spread(size: Sequence[int], count: int) -> list[Pixel]:
    """Pixels spread over an image of ``size`` (H, W), from left to right, up and down in turns.

    >>> spread((40, 60), 3)
    [(9.5, 13.5), (29.5, 25.5), (49.5, 13.5)]
    """
    height, width = size
    return [(width * (k + 0.5) / count - 0.5, height * (0.35, 0.65)[k % 2] - 0.5) for k in range(count)]


def _depth(labels: np.ndarray) -> np.ndarray:
    """How many steps each pixel is from one of another label, or from the rim."""
    height, width = labels.shape
    padded = np.pad(labels.astype(np.int64), 1, constant_values=-1)
    inner = np.ones((height, width), dtype=bool)
    depth = np.zeros((height, width), dtype=int)
    same = [
        padded[1 + down : 1 + down + height, 1 + across : 1 + across + width] == labels
        for down, across in ((0, 1), (0, -1), (1, 0), (-1, 0))
    ]
    while inner.any():
        depth += inner
        around = np.pad(inner, 1)
        shifts = [around[1:-1, 2:], around[1:-1, :-2], around[2:, 1:-1], around[:-2, 1:-1]]
        inner = inner & np.logical_and.reduce([a & b for a, b in zip(same, shifts, strict=True)])
    return depth


def _middle(rows: np.ndarray, columns: np.ndarray) -> tuple[int, int]:
    """The one of some places that is nearest to their middle."""
    best = np.argmin(np.hypot(rows - rows.mean(), columns - columns.mean()))
    return int(rows[best]), int(columns[best])
