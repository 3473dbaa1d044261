"""Parts of large images: they cover the image once, fit in the memory, and repeat little work."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repgraph.engine.inference import Settings, tiles
from repgraph.engine.inference.views import views
from repgraph.engine.inference.windows import Axis


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 60))
def test_windows_cover_an_axis_and_end_with_it(size, window, step):
    axis = Axis(size, window, min(step, window))
    starts = axis.starts
    assert starts[0] == 0 and list(starts) == sorted(set(starts))
    assert starts[-1] + window == max(size, window)
    assert all(later - earlier <= min(step, window) for earlier, later in pairwise(starts))
    seen = [[first for first in starts if first <= i < first + window] for i in range(size)]
    assert axis.share(0, size).tolist() == [1 / len(found) for found in seen]
    low, high = size // 3, size // 3 + 1 + (size - size // 3 - 1) // 2
    assert list(axis.covering(low, high)) == sorted({first for found in seen[low:high] for first in found})


def weight(found, part) -> int:
    """Pixels of the maps of one part: its own, and the largest of other scales."""
    (top, bottom), (left, right) = part.rows, part.columns
    scaled = [0]
    for view in found:
        if not view.identity:
            rows, columns = view.rows.back.needs(part.rows), view.columns.back.needs(part.columns)
            scaled.append((rows[1] - rows[0]) * (columns[1] - columns[0]))
    return (bottom - top) * (right - left) + max(scaled)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(16, 50),
    st.lists(st.sampled_from([0.5, 1.0, 1.25]), min_size=1, max_size=3),
    st.integers(100, 60_000),
)
def test_parts_cover_the_image_once_and_fit(height, width, crop, scales, pixels):
    found = views(height, width, Settings(mode="slide", crop=crop, scales=tuple(scales)))
    parts = tiles.tiles(found, height, width, pixels)
    covered = [[0] * width for _ in range(height)]
    for part in parts:
        for y in range(*part.rows):
            for x in range(*part.columns):
                covered[y][x] += 1
    assert all(count == 1 for row in covered for count in row)
    largest = max(weight(found, part) for part in parts)
    side = crop / max(scales) + 3  # a window in the image's own pixels; rounding, and what resizing reads beyond
    floor = side**2 + (side * max(scales) + 2) ** 2
    assert largest <= max(pixels, floor)


def test_a_huge_image_is_never_held_as_a_whole():
    memory, classes, height, width = 2 * 2**30, 150, 10_000, 20_000
    for scales, most in (((1.0,), 1.6), ((0.5, 0.75, 1.0, 1.25), 2.1)):
        found = views(height, width, Settings(mode="slide", crop=520, scales=scales))
        parts = tiles.tiles(found, height, width, memory // (4 * classes))
        whole = [tiles.Tile((0, height), (0, width))]
        assert max(weight(found, part) for part in parts) * classes * 4 <= memory
        assert tiles.windows(found, parts) <= most * tiles.windows(found, whole)  # what cutting costs


def test_an_image_that_fits_is_not_cut():
    found = views(1024, 2048, Settings(mode="slide", crop=769, scales=(0.5, 1.0, 1.5)))
    assert len(tiles.tiles(found, 1024, 2048, 2**31 // (4 * 19))) == 1


MEASURE = """
import resource, sys, torch
from torch import nn
from repgraph.engine.inference import predict

class Many(nn.Module):
    classes = 150
    def forward(self, x):
        return x[:, :1].expand(-1, 150, -1, -1)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

image = torch.zeros(3, 1000, 1200, dtype=torch.uint8)
settings = dict(mode="slide", crop=256, stride=1.0, batch=1, memory=100 * 2**20)
predict(Many(), image[:, :256, :256], **settings)
before = peak()
labels = predict(Many(), image, **settings)
assert labels.shape == (1000, 1200)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs the peak of a process's memory")
def test_memory_stays_near_what_was_allowed():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250 * 2**20 < 1000 * 1200 * 150 * 4 / 2
