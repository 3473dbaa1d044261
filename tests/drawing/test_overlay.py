"""Label maps in colours, over their images, and their legends."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torchvision import tv_tensors

from repgraph.data.labels import DataError, Labels, spread_palette
from repgraph.drawing import legend
from repgraph.drawing.overlay import colour, overlay

INFO = Labels(("sky", "sea", "land"), ((200, 0, 0), (0, 200, 0), (0, 0, 200)), ids=(3, 5, 7), ignored=(0,))
BLACK = np.zeros((4, 4, 3), np.uint8)


@pytest.fixture
def written(monkeypatch):
    texts: list[str] = []
    original = ImageDraw.ImageDraw.text

    def text(self, place, content, *more, **options):
        texts.append(content)
        return original(self, place, content, *more, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    return texts


def test_opacity_edges_and_unlabelled_pixels():
    image, labels = np.full((6, 8, 3), 100, np.uint8), np.full((6, 8), 1, np.uint8)
    labels[:, 6:] = 255
    painted = np.asarray(overlay(image, labels, INFO, legend=False))
    assert painted[2, 2].tolist() == [45, 155, 45] and painted[2, 5].tolist() == [0, 200, 0]  # inside, and the edge
    assert painted[2, 6].tolist() == painted[2, 7].tolist() == [100, 100, 100]
    black = Labels(INFO.names, ((200, 0, 0), (0, 0, 0), (0, 0, 200)), ids=INFO.ids)  # such as VOC's background
    assert (np.asarray(overlay(image, labels, black, legend=False)) == 100).all()


def test_images_of_any_kind():
    array, labels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8), np.zeros((9, 7), np.int64)
    expected, tensor = np.asarray(overlay(array, labels, INFO)), torch.from_numpy(array).permute(2, 0, 1)
    for image in (Image.fromarray(array), tensor, tv_tensors.Image(tensor), Image.fromarray(array).convert("RGBA")):
        assert np.array_equal(np.asarray(overlay(image, torch.from_numpy(labels), INFO)), expected)
    three_rows = np.zeros((3, 5, 3), np.uint8)
    assert overlay(three_rows, np.zeros((3, 5), np.uint8), INFO, legend=False).size == (5, 3)


def test_legend_has_the_classes_that_occur(written):
    labels = np.zeros((20, 50), np.uint8)
    labels[:5], labels[0, 0] = 2, 255
    below = np.asarray(overlay(np.zeros((20, 50, 3), np.uint8), labels, INFO))[20:]
    assert written == ["sky", "75.0 %", "land", "24.9 %", "not labeled", "0.1 %"]
    assert [(below == entry).all(-1).any() for entry in INFO.palette] == [True, False, True]
    assert overlay(np.zeros((20, 50, 3), np.uint8), labels, INFO, side=10, legend=False).size == (10, 4)


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (37, 91), (700, 900)])
def test_legends_fit_below_pictures_of_any_size(size, written):
    info = Labels(tuple(f"class number {k}" for k in range(40)), spread_palette(40), tuple(range(40)))
    labels = (np.arange(size[0] * size[1]) % 40).astype(np.uint8).reshape(size)
    painted = np.asarray(overlay(colour(labels, info.palette), labels, info))
    assert len(written) == 2 * min(40, size[0] * size[1])
    for margin in (painted[-6:], painted[size[0] :, :6], painted[size[0] :, -6:]):
        assert (margin == np.array(legend.BACKGROUND)).all()
    left = (painted.shape[1] - size[1]) // 2
    assert np.array_equal(painted[: size[0], left : left + size[1]], colour(labels, info.palette))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("[red]x[/red] <b>y</b> {0} %s", "[red]x[/red] <b>y</b> {0} %s"),
        ("a class with a name of too many letters", "a class with a name of too…"),
        ("new\nline\r\tand\x00more", "new line and more"),
        ("kůň", "kun"),
        ("道路", "class 0"),
        ("A 道路", "A ??"),
    ],
)
def test_names_stay_text(name, text, written):
    overlay(BLACK, np.zeros((4, 4), np.uint8), Labels((name,), ((9, 9, 9),), (0,)))
    assert written == [text, "100.0 %"]


@pytest.mark.parametrize(
    ("image", "labels", "error", "message"),
    [
        (BLACK, np.zeros((4, 5), np.uint8), ValueError, r"image has size \(4, 4\), but its labels have size"),
        (BLACK[..., 0], np.zeros((4, 4), np.uint8), ValueError, r"the image is \(4, 4\) uint8; expected"),
        (BLACK, np.zeros((4, 4), np.float32), ValueError, "expected integers"),
        (BLACK, np.full((4, 4), 3), DataError, "class 3 has no color; expected classes 0 to 2"),
    ],
)
def test_errors(image, labels, error, message):
    with pytest.raises(error, match=message):
        overlay(image, labels, INFO)
