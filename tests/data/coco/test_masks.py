"""Run lengths and polygons: against definitions, and bit for bit against COCO's own tools where they are installed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from repgraph.data.coco import polygon, rle

MASKS = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda size: arrays(np.uint8, size, elements=st.integers(0, 1))
)


@given(MASKS)
@settings(max_examples=100, deadline=None)
def test_runs_give_the_mask_back(mask):
    runs = rle.encode(mask)
    assert runs[1:].min(initial=1) > 0 and runs.sum() == mask.size
    np.testing.assert_array_equal(rle.decode(runs, *mask.shape), mask)
    np.testing.assert_array_equal(rle.unpack(rle.pack(runs)), runs)
    assert rle.area(runs) == mask.sum()
    y, x = np.nonzero(mask)
    wanted = (x.min(), y.min(), np.ptp(x) + 1, np.ptp(y) + 1) if x.size else (0, 0, 0, 0)
    assert rle.box(runs, mask.shape[0]) == wanted


@given(st.lists(st.integers(0, 2**40), max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_runs_can_be_packed(runs):
    assert rle.unpack(rle.pack(runs)).tolist() == runs
    assert rle.unpack(rle.pack(runs).encode()).tolist() == runs


def test_a_packed_text_of_coco():
    """Runs that were written out by hand from the format's rule."""
    assert rle.unpack("o1o1").tolist() == [63, 63]  # 63 = 31 + 1 * 32: 'o' is 31 + 32 + 48, '1' is 1 + 48
    assert rle.unpack("245O").tolist() == [2, 4, 5, 3]  # the fourth is 4 - 1: 'O' is -1 in five bits


@pytest.mark.parametrize(
    ("text", "message"),
    [("1!", "characters that do not belong"), ("1o", "cut short"), ("o" * 20 + "1", "too long"), ("1漢", "characters")],
)
def test_packed_texts_that_are_none(text, message):
    with pytest.raises(ValueError, match=message):
        rle.unpack(text)


def test_runs_that_do_not_fill_the_mask():
    with pytest.raises(ValueError, match="cover 5 pixels instead of 3 x 2"):
        rle.decode(np.array([2, 3]), 2, 3)
    with pytest.raises(ValueError, match="a run is -1 long"):
        rle.decode(np.array([7, -1]), 2, 3)


def test_a_rectangle_on_pixel_borders_is_exact():
    mask = polygon.rasterise([np.array([2, 3, 8, 3, 8, 9, 2, 9])], 20, 30)
    wanted = np.zeros((20, 30), np.uint8)
    wanted[3:9, 2:8] = 1
    np.testing.assert_array_equal(mask, wanted)


def test_polygons_are_united_and_cut_at_the_rim():
    whole = polygon.rasterise([np.array([-5, -5, 50, -5, 50, 50, -5, 50])], 6, 9)
    assert whole.all() and whole.dtype == np.uint8
    two = polygon.rasterise([np.array([0, 0, 4, 0, 4, 4, 0, 4]), np.array([2, 2, 6, 2, 6, 6, 2, 6])], 6, 6)
    assert two.sum() == 16 + 16 - 4
    assert not polygon.rasterise([], 6, 9).any()


def outlines(rng: np.random.Generator) -> list[np.ndarray]:
    """Inside, half outside, on pixel borders, with corners twice, as thin as a line."""
    corners = int(rng.integers(3, 12))
    return [
        rng.uniform(0, 60, (corners, 2)),
        rng.uniform(-30, 90, (corners, 2)),
        rng.integers(-5, 65, (corners, 2)).astype(float),
        np.repeat(rng.integers(0, 120, (corners, 2)) / 2, 2, axis=0),
        rng.uniform(0, 60, (1, 2)) + rng.uniform(0, 1, (corners, 2)) * [30, 0.3],
    ]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # the package's
def test_bit_for_bit_as_the_package():
    package = pytest.importorskip("pycocotools.mask", reason="pip install 'repgraph[detection]'")
    rng = np.random.default_rng(0)
    for _ in range(100):
        height, width = (int(side) for side in rng.integers(1, 64, 2))
        drawn = [shape.ravel() for shape in outlines(rng)]
        for parts in (*([one] for one in drawn), drawn):
            theirs = package.merge(package.frPyObjects([part.tolist() for part in parts], height, width))
            ours = polygon.rasterise(parts, height, width)
            np.testing.assert_array_equal(ours, package.decode(theirs))
            runs = rle.encode(ours)
            packed = package.encode(np.asfortranarray(ours))
            assert rle.pack(runs).encode() == packed["counts"]
            np.testing.assert_array_equal(rle.unpack(packed["counts"]), runs)
            assert rle.area(runs) == package.area(packed) and rle.box(runs, height) == tuple(package.toBbox(packed))
