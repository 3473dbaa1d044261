"""Pictures of objects: what is drawn where, in which colours, and unusual names."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

from repgraph.data.coco import masks as coco_masks
from repgraph.drawing.detections import COLOURS, MIN_SIDE, draw

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
    picture, colour = np.asarray(draw(grey(600, 800), found, NAMES)), np.array(COLOURS[0])
    assert picture.shape == (600, 800, 3) and tuple(picture[300, 301]) == tuple(colour)  # the box
    assert np.abs(picture[300, 400] - np.round(128 * 0.55 + colour * 0.45)).max() <= 1  # the mask
    changed = np.argwhere((picture != 128).any(-1))
    (top, left), (bottom, right) = changed.min(0), changed.max(0)
    assert left >= 294 and right <= 502 and bottom <= 352 and 215 <= top < 240  # the name is above


def labels_of(found: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, image: np.ndarray) -> list[tuple]:
    """Return the rectangle, colour, text and text colour of every label that is drawn."""
    rectangles, texts = [], []
    original = ImageDraw.ImageDraw.rectangle

    def rectangle(self, xy, fill=None, **options):
        original(self, xy, fill=fill, **options)
        if fill is not None:
            rectangles.append((xy, fill))

    with monkeypatch.context() as patch:
        patch.setattr(ImageDraw.ImageDraw, "rectangle", rectangle)
        patch.setattr(ImageDraw.ImageDraw, "text", lambda self, xy, text, fill, **_: texts.append((text, fill)))
        draw(image, found, NAMES, score=0)
    return [(*rectangle, *text) for rectangle, text in zip(rectangles, texts, strict=True)]


def common(a, b) -> int:
    return max(0, min(a[2], b[2]) - max(a[0], b[0]) + 1) * max(0, min(a[3], b[3]) - max(a[1], b[1]) + 1)


@pytest.mark.parametrize("side", [6, 25, 90, 400])
def test_labels_cover_neither_each_other_nor_small_objects(side, monkeypatch):
    rng = np.random.default_rng(side)
    corners = rng.integers(0, 600 - side, (60, 2))
    sizes = rng.integers(side // 2, side, (60, 2))
    boxes = np.concatenate([corners, corners + sizes], axis=1)
    found = objects(*((tuple(box), 1 + k % 3, 1 - k / 60) for k, box in enumerate(boxes.tolist())))
    drawn = labels_of(found, monkeypatch, grey(600, 600))
    assert len(drawn) >= 10 and drawn[0][2] == "cat 100 %"
    rectangles = [rectangle for rectangle, *_ in drawn]
    assert not any(common(a, b) for a, b in itertools.combinations(rectangles, 2))
    for left, top, right, bottom in boxes.tolist():
        covered = sum(common(label, (left, top, right - 1, bottom - 1)) for label in rectangles)
        assert covered <= 0.3 * (right - left) * (bottom - top)


def test_labels_are_moved_shortened_or_left_out(monkeypatch):
    def texts(*boxes):
        found = objects(*((box, 1, 0.9) for box in boxes))
        return [text for _, _, text, _ in labels_of(found, monkeypatch, grey(500, 500))]

    apart = [(200.0, 200.0 + 10 * k, 210.0, 210.0 + 10 * k) for k in range(30)]
    assert texts(*apart[:3]) == ["cat 90 %"] * 3
    found = texts(*apart)
    assert {"cat 90 %"} <= set(found) <= {"cat 90 %", "cat"} and len(found) < 30


def test_labels_can_be_read_on_every_colour(monkeypatch):
    def luminance(colour):
        parts = np.array(colour) / 255
        return np.where(parts <= 0.04, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)

    found = objects(*(((20.0 + 90 * (k % 5), 30.0 + 80 * (k // 5), 60.0, 60.0), 1, 0.9) for k in range(24)))
    drawn = labels_of(found, monkeypatch, grey(500, 500))
    assert len({colour for _, colour, _, _ in drawn}) == 24  # also tells objects of a class apart
    for _, colour, _, ink in drawn:
        dark, light = sorted((luminance(colour), luminance(ink)))
        assert (light + 0.05) / (dark + 0.05) >= 4


def test_minimum_score():
    image = grey(500, 500)
    found = objects(((10.0, 10.0, 90.0, 90.0), 1, 0.3), ((200.0, 200.0, 400.0, 400.0), 2, 0.6))
    assert np.array_equal(np.asarray(draw(image, found, NAMES, score=0.7)), image)
    some, both = (np.asarray(draw(image, found, NAMES, score=score)) for score in (0.5, 0.2))
    assert (some[10:90, 10:90] == 128).all() and (both[10:90, 10:90] != 128).any()
    assert np.array_equal(np.asarray(draw(image, objects(), NAMES)), image)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (700, 2), (24, 40), (479, 300)])
def test_small_images_have_room_for_names(height, width):
    found = objects(((0.0, 0.0, float(width), float(height)), 1, 0.99), masks=[np.ones((height, width), np.uint8)])
    picture = draw(grey(height, width), found, ["a rather long name of a class"])
    factor = max(1, -(-MIN_SIDE // max(height, width)))
    assert picture.width >= max(150, width * factor) and picture.height >= max(18, height * factor)
    assert (np.asarray(picture) == np.array(COLOURS[0])).all(-1).sum() > 500  # the background of the name


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "x" * 500, "", "a\nb\tc", "猫", "\x00", "{0} %s [bold]"])
def test_unusual_names(name):
    picture = draw(grey(500, 500), objects(((100.0, 100.0, 200.0, 200.0), 1, 1.0)), [name])
    assert picture.size == (500, 500) and (np.asarray(picture) != 128).any()


def test_boxes_outside():
    boxes = ((-50.0, -50.0, 900.0, 900.0), (0.0, 0.0, 0.0, 0.0), (600.0, 600.0, 700.0, 700.0))
    found = objects(*((box, 1, 1.0) for box in boxes))
    assert draw(Image.fromarray(grey(500, 500)), found, NAMES).size == (500, 500)
    assert draw(grey(2000, 3000), found, NAMES, side=600).size == (600, 400)
