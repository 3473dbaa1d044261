"""Pictures of objects: what is drawn where, in which colours, and unusual names."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from repgraph.data.coco import masks as coco_masks
from repgraph.drawing.detections import MIN_SIDE, colours, draw

NAMES = ["cat", "dog", "kite"]


def objects(*found: tuple[tuple[float, float, float, float], int, float], masks=None) -> SimpleNamespace:
    boxes = np.array([box for box, _, _ in found], dtype=np.float64).reshape(-1, 4)
    runs = None if masks is None else [coco_masks.encode(mask) for mask in masks]
    labels, scores = (np.array([each[k] for each in found]) for k in (1, 2))
    return SimpleNamespace(boxes=boxes, labels=labels, scores=scores, masks=runs)


def grey(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), 128, dtype=np.uint8)


def rectangle(height: int, width: int, rows: slice, columns: slice) -> np.ndarray:
    mask = np.zeros((height, width), np.uint8)
    mask[rows, columns] = 1
    return mask


def test_masks_boxes_and_names():
    mask = rectangle(600, 800, slice(250, 350), slice(300, 500))
    found = objects(((300.0, 250.0, 500.0, 350.0), 2, 0.9), masks=[mask])
    picture, colour = np.asarray(draw(grey(600, 800), found, NAMES)), np.array(colours(3)[1])
    assert picture.shape == (600, 800, 3) and tuple(picture[300, 301]) == tuple(colour)  # the box
    assert np.abs(picture[300, 400] - np.round(128 * 0.55 + colour * 0.45)).max() <= 1  # the mask
    changed = np.argwhere((picture != 128).any(-1))
    (top, left), (bottom, right) = changed.min(0), changed.max(0)
    assert left >= 294 and right <= 502 and bottom <= 352 and 215 <= top < 240  # the name is above
    assert np.asarray(draw(grey(600, 800), found, NAMES, opacity=0))[300, 400].tolist() == [128] * 3


def test_minimum_score():
    image = grey(500, 500)
    found = objects(((10.0, 10.0, 90.0, 90.0), 1, 0.3), ((200.0, 200.0, 400.0, 400.0), 2, 0.6))
    assert np.array_equal(np.asarray(draw(image, found, NAMES, score=0.7)), image)
    some, both = (np.asarray(draw(image, found, NAMES, score=score)) for score in (0.5, 0.2))
    assert (some[10:90, 10:90] == 128).all() and (both[10:90, 10:90] != 128).any()
    assert np.array_equal(np.asarray(draw(image, objects(), NAMES)), image)


def test_colours():
    assert colours(3) == colours(80)[:3] and len(set(colours(24))) == 24 and colours(25)[24] == colours(1)[0]


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (700, 2), (24, 40), (479, 300)])
def test_small_images_have_room_for_names(height, width):
    found = objects(((0.0, 0.0, float(width), float(height)), 1, 0.99), masks=[np.ones((height, width), np.uint8)])
    picture = draw(grey(height, width), found, ["a rather long name of a class"])
    factor = max(1, -(-MIN_SIDE // max(height, width)))
    assert picture.width >= max(150, width * factor) and picture.height >= max(18, height * factor)
    assert (np.asarray(picture) == np.array(colours(1)[0])).all(-1).sum() > 500  # the background of the name


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "x" * 500, "", "a\nb\tc", "猫", "\x00", "{0} %s [bold]"])
def test_unusual_names(name):
    picture = draw(grey(500, 500), objects(((100.0, 100.0, 200.0, 200.0), 1, 1.0)), [name])
    assert picture.size == (500, 500) and (np.asarray(picture) != 128).any()


def test_boxes_outside():
    boxes = ((-50.0, -50.0, 900.0, 900.0), (0.0, 0.0, 0.0, 0.0), (600.0, 600.0, 700.0, 700.0))
    found = objects(*((box, 1, 1.0) for box in boxes))
    assert draw(Image.fromarray(grey(500, 500)), found, NAMES).size == (500, 500)
    assert draw(grey(2000, 3000), found, NAMES, side=600).size == (600, 400)
