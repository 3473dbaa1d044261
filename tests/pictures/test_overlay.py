"""Colours, overlays and legends: what is painted where, and what is written below."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import tv_tensors

from repgraph.data.labels import DataError, Labels, spread_palette
from repgraph.pictures import legend
from repgraph.pictures.overlay import colour, overlay

INFO = Labels(("sky", "sea", "land"), ((200, 0, 0), (0, 200, 0), (0, 0, 200)), ids=(3, 5, 7), ignored=(0,))


@pytest.fixture
def written(monkeypatch):
    """The texts of the legends that are drawn."""
    found: list[str] = []
    from PIL import ImageDraw

    original = ImageDraw.ImageDraw.text

    def text(self, place, content, *more, **options):
        found.append(content)
        return original(self, place, content, *more, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    return found


def test_colours_are_those_of_the_palette():
    labels = torch.tensor([[0, 1], [2, 255]], dtype=torch.uint8)
    assert colour(labels, INFO.palette).tolist() == [[[200, 0, 0], [0, 200, 0]], [[0, 0, 200], [0, 0, 0]]]


def test_the_image_shines_through_by_the_opacity_and_alone_where_nothing_is_labelled():
    image = np.full((6, 8, 3), 100, np.uint8)
    labels = np.full((6, 8), 1, np.uint8)
    labels[:, 6:] = 255
    painted = np.asarray(overlay(image, labels, INFO, 0.25, legend=False))
    assert painted[2, 2].tolist() == [75, 125, 75]
    assert painted[2, 5].tolist() == [0, 200, 0]  # the edge of the region
    assert painted[2, 6].tolist() == painted[2, 7].tolist() == [100, 100, 100]
    assert np.array_equal(np.asarray(overlay(image, labels, INFO, 0.0, legend=False)), image)
    flat = np.asarray(overlay(image, labels, INFO, 0.25, legend=False, edges=False))
    assert flat[2, 5].tolist() == [75, 125, 75]


def test_images_of_any_kind():
    array = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    labels = np.zeros((9, 7), np.int64)
    wanted = np.asarray(overlay(array, labels, INFO))
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    for given in (Image.fromarray(array), tensor, tv_tensors.Image(tensor), Image.fromarray(array).convert("RGBA")):
        assert np.array_equal(np.asarray(overlay(given, torch.from_numpy(labels), INFO)), wanted)


def test_an_image_three_pixels_high_is_not_taken_for_channels():
    array = np.zeros((3, 5, 3), np.uint8)
    assert overlay(array, np.zeros((3, 5), np.uint8), INFO, legend=False).size == (5, 3)


def test_the_legend_has_the_classes_that_are_there_with_their_shares(written):
    labels = np.zeros((20, 50), np.uint8)
    labels[:5] = 2
    labels[0, 0] = 255
    painted = overlay(np.zeros((20, 50, 3), np.uint8), labels, INFO)
    assert written == ["sky", "75.0 %", "land", "24.9 %", "not labelled", "0.1 %"]
    assert painted.width >= 50 and painted.height > 20
    below = np.asarray(painted)[20:]
    for present, absent in (((200, 0, 0), (0, 200, 0)), ((0, 0, 200), (0, 200, 0))):
        assert (below == present).all(-1).any() and not (below == absent).all(-1).any()


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (37, 91), (700, 900)])
def test_legends_fit_below_pictures_of_any_size(size, written):
    info = Labels(tuple(f"class number {k}" for k in range(40)), spread_palette(40), tuple(range(40)))
    labels = (np.arange(size[0] * size[1]) % 40).astype(np.uint8).reshape(size)
    painted = np.asarray(overlay(np.zeros((*size, 3), np.uint8), labels, info, opacity=1.0, edges=False))
    present = min(40, size[0] * size[1])
    assert len(written) == 2 * present
    # Signs and text keep a margin on all sides, and the picture stands there pixel by pixel.
    ground = np.array(legend.GROUND)
    assert (painted[-6:] == ground).all() and (painted[size[0] :, :6] == ground).all()
    assert (painted[size[0] :, -6:] == ground).all()
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
        ("?", "?"),
        ("", "class 0"),
    ],
)
def test_names_stay_text(name, text, written):
    info = Labels((name,), ((9, 9, 9),), (0,))
    overlay(np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8), info)
    assert written == [text, "100 %"]


def test_large_images_are_shrunk_on_request_but_shares_are_of_the_whole(written):
    labels = np.zeros((100, 400), np.uint8)
    labels[50, 7] = 1  # which the shrunk picture does not show
    painted = overlay(np.zeros((100, 400, 3), np.uint8), labels, INFO, side=40)
    assert painted.width < 400 and "sea" in written and "< 0.1 %" in written
    assert overlay(np.zeros((100, 400, 3), np.uint8), labels, INFO, side=40, legend=False).size == (40, 10)
    assert overlay(np.zeros((100, 400, 3), np.uint8), labels, INFO, side=400, legend=False).size == (400, 100)


@pytest.mark.parametrize(
    ("image", "labels", "error", "message"),
    [
        (np.zeros((4, 4, 3), np.uint8), np.zeros((4, 5), np.uint8), ValueError, "has 4 x 4 pixels, its labels 5 x 4"),
        (np.zeros((4, 4), np.uint8), np.zeros((4, 4), np.uint8), ValueError, r"shape \(4, 4\) and dtype uint8"),
        (np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8), ValueError, "dtype float32"),
        (np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.float32), ValueError, "integers"),
        (
            np.zeros((4, 4, 3), np.uint8),
            np.full((4, 4), 3),
            DataError,
            "class 3 has no colour: there are classes 0 to 2",
        ),
        (np.zeros((4, 4, 3), np.uint8), np.full((4, 4), -1), DataError, "class -1 has no colour"),
    ],
)
def test_what_cannot_be_painted(image, labels, error, message):
    with pytest.raises(error, match=message):
        overlay(image, labels, INFO)


def test_opacity_is_a_fraction():
    with pytest.raises(ValueError, match="opacity is 2; give a number from 0"):
        overlay(np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.uint8), INFO, 2)
