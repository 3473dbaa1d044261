"""Masks: against NumPy, and malformed input on which pycocotools crashes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from repgraph.data.coco import masks

SIZES = st.tuples(st.integers(1, 12), st.integers(1, 12))
MASKS = SIZES.flatmap(lambda size: arrays(np.uint8, size, elements=st.integers(0, 2)))


@given(MASKS)
@settings(max_examples=100, deadline=None)
def test_encode_and_decode(mask):
    rle = masks.encode(mask)
    np.testing.assert_array_equal(masks.decode(rle), mask != 0)
    flat = (mask != 0).ravel(order="F")
    runs = np.diff(np.flatnonzero(np.diff(flat, prepend=False, append=not flat[-1])), prepend=0).tolist()
    assert masks.check_counts(rle["counts"], *mask.shape) == masks.check_counts(runs, *mask.shape) == rle["counts"]


@pytest.mark.parametrize(
    "counts",
    ["", "1!", "1o", "1", "o" * 20 + "1", "1漢", "\0", "PPP", [], [7], [-1, 13], [2**63, -(2**63), 12]],
)
def test_malformed_counts(counts):
    with pytest.raises(ValueError, match="counts"):
        masks.check_counts(counts, 3, 4)


@given(SIZES, st.text(st.characters(min_codepoint=46, max_codepoint=113), max_size=8) | st.binary(max_size=6).map(list))
@settings(max_examples=200, deadline=None)
def test_any_counts_are_refused_or_decoded(size, counts):
    try:
        rle = {"size": list(size), "counts": masks.check_counts(counts, *size)}
    except ValueError:
        return
    assert masks.decode(rle).sum() == masks.tools().area(rle) <= size[0] * size[1]


@pytest.mark.parametrize(
    "polygon",
    [[], [1] * 4, [1] * 7, [1, 1, 5, 5, 1e12, 4], [1e308, -1e308, 5] * 2, [1e300] * 6],
)
def test_malformed_polygons(polygon):
    with pytest.raises(ValueError, match="polygon"):
        masks.check_polygons([polygon])
