"""Pictures of objects: what is drawn where, in which colours, and names that hurt."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from repgraph.data.coco import rle
from repgraph.pictures.detections import BASE, LEAST, colours, draw

NAMES = ["cat", "dog", "kite"]


def found(*objects: tuple[tuple[float, float, float, float], int, float], masks=None) -> SimpleNamespace:
    boxes = np.array([box for box, _, _ in objects], dtype=np.float64).reshape(-1, 4)
    runs = None if masks is None else [rle.encode(mask) for mask in masks]
    labels, scores = (np.array([each[k] for each in objects]) for k in (1, 2))
    return SimpleNamespace(boxes=boxes, labels=labels, scores=scores, masks=runs)


def grey(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), 128, dtype=np.uint8)


def square(height: int, width: int, rows: slice, columns: slice) -> np.ndarray:
    mask = np.zeros((height, width), np.uint8)
    mask[rows, columns] = 1
    return mask


def test_masks_boxes_and_names_are_where_they_belong():
    mask = square(600, 800, slice(250, 350), slice(300, 500))
    given = found(((300.0, 250.0, 500.0, 350.0), 2, 0.9), masks=[mask])
    picture = np.asarray(draw(grey(600, 800), given, NAMES))
    colour = np.array(colours(3)[1])
    assert picture.shape == (600, 800, 3)
    assert tuple(picture[300, 301]) == tuple(colour)  # the box
    mixed = np.round(128 * 0.55 + colour * 0.45)
    assert np.abs(picture[300, 400] - mixed).max() <= 1  # inside the mask
    changed = np.argwhere((picture != 128).any(-1))
    (top, left), (bottom, right) = changed.min(0), changed.max(0)
    assert left >= 294 and right <= 502 and bottom <= 352 and 215 <= top < 240  # the name stands above
    assert np.asarray(draw(grey(600, 800), given, NAMES, opacity=0))[300, 400].tolist() == [128] * 3


def test_what_scores_less_is_left_out():
    image = grey(500, 500)
    given = found(((10.0, 10.0, 90.0, 90.0), 1, 0.3), ((200.0, 200.0, 400.0, 400.0), 2, 0.6))
    assert np.array_equal(np.asarray(draw(image, given, NAMES, score=0.7)), image)
    both = [np.asarray(draw(image, given, NAMES, score=score)) for score in (0.5, 0.2)]
    assert (both[0][10:90, 10:90] == 128).all() and (both[1][10:90, 10:90] != 128).any()
    assert np.array_equal(np.asarray(draw(image, found(), NAMES)), image)  # nothing found


def test_colours_stay_and_differ():
    assert colours(3) == colours(80)[:3] and len(set(colours(24))) == 24 and colours(25)[24] == colours(1)[0]
    # As people see them who lack the cones for red or green (Viénot, Brettel and Mollon 1999), in linear light.
    linear = (np.array(BASE) / 255) ** 2.2
    for matrix in (
        [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
        [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
    ):
        seen = 255 * np.clip(linear @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + 1000 * np.eye(len(seen))
        assert apart.min() > 30


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (700, 2), (24, 40), (479, 300)])
def test_small_images_have_room_for_names(height, width):
    given = found(((0.0, 0.0, float(width), float(height)), 1, 0.99), masks=[np.ones((height, width), np.uint8)])
    picture = draw(grey(height, width), given, ["a rather long name of a class"])
    assert picture.width >= 150 and picture.height >= 18
    times = -(-LEAST // max(height, width)) if max(height, width) < LEAST else 1
    assert picture.size == (max(width * times, picture.width), max(height * times, picture.height))
    ground = np.asarray(picture)
    assert (ground == np.array(colours(1)[0])).all(-1).sum() > 500  # the name's ground


def test_large_images_are_shrunk_and_their_letters_grow():
    given = found(
        ((500.0, 500.0, 2500.0, 1500.0), 1, 0.8), masks=[square(2000, 3000, slice(500, 1500), slice(500, 2500))]
    )
    large, shrunk = draw(grey(2000, 3000), given, NAMES), draw(grey(2000, 3000), given, NAMES, side=600)
    assert large.size == (3000, 2000) and shrunk.size == (600, 400)
    colour = np.array(colours(1)[0])
    high = [np.flatnonzero((np.asarray(p) == colour).all(-1).any(1)) for p in (large, shrunk)]
    above = [500 - high[0].min(), 100 - high[1].min()]  # the height of the name above its box
    assert above[0] > 60 and 13 <= above[1] <= 25
    assert tuple(np.asarray(shrunk)[200, 300]) != (128, 128, 128)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "x" * 500, "", "a\nb\tc", "猫", "\x00", "{0} %s [bold]"])
def test_names_that_hurt(name):
    given = found(((100.0, 100.0, 200.0, 200.0), 1, 1.0))
    picture = draw(grey(500, 500), given, [name])
    assert picture.size == (500, 500) and (np.asarray(picture) != 128).any()


def test_names_do_not_cover_each_other_where_there_is_room():
    spots = [((200.0, 200.0, 201.0, 201.0), k, 1 - k / 10) for k in (1, 2, 3)]
    together = np.asarray(draw(grey(500, 500), found(*spots), NAMES))
    for spot, colour in zip(spots, colours(3), strict=True):
        alone = np.asarray(draw(grey(500, 500), found(spot), NAMES))
        areas = [int((picture == np.array(colour)).all(-1).sum()) for picture in (alone, together)]
        assert areas[0] > 300 and areas[1] >= 0.95 * areas[0]


def test_boxes_beyond_the_image_and_wrong_arguments():
    given = found(
        ((-50.0, -50.0, 900.0, 900.0), 1, 1.0), ((0.0, 0.0, 0.0, 0.0), 1, 1.0), ((600.0, 600.0, 700.0, 700.0), 1, 1.0)
    )
    assert draw(Image.fromarray(grey(500, 500)), given, NAMES).size == (500, 500)
    with pytest.raises(ValueError, match=r"opacity is 2; give a number from 0"):
        draw(grey(9, 9), given, NAMES, opacity=2)
    with pytest.raises(ValueError, match="uint8"):
        draw(np.zeros((9, 9)), given, NAMES)
