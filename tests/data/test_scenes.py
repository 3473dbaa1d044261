"""Drawn scenes: the same bytes everywhere, correct labels, and cues that are independent of the rest of an image."""

import hashlib

import numpy as np
import pytest
import torch
from tests.data.layouts import fails

from repgraph.data import load
from repgraph.data.scenes import Scenes, paint, painting, sample_scene
from repgraph.data.scenes.painting import INBOUND, OUTBOUND, SAND, SNOW


@pytest.mark.parametrize(
    ("split", "expected"), [("train", "65628d39b07557e0"), ("val", "aa19f7608922b05f"), ("test", "3703cd1aa19c03ca")]
)
def test_images_are_equal_to_the_byte(split, expected):
    samples = Scenes(None, split, length=4)
    content = b"".join(image.permute(1, 2, 0).numpy().tobytes() + mask.numpy().tobytes() for image, mask in samples)
    assert hashlib.sha256(content).hexdigest()[:16] == expected


def test_the_data_set():
    data = load("scenes", None, "val", length=3, size=(48, 65), seed=2)
    image, mask = data[2]
    assert image.shape == (3, 48, 65) and mask.shape == (48, 65) and image.dtype == mask.dtype == torch.uint8
    assert len(data) == len(list(data)) == 3 and data.labelled and data.missing == []
    assert [len(Scenes(None, split)) for split in ("train", "val", "test")] == [1600, 100, 400]
    with pytest.raises(IndexError):
        data[3]
    last, data.items = data[2], data.items[1:]  # a part of the split
    assert len(data) == 2 and torch.equal(data[1][0], last[0]) and torch.equal(data[1][1], last[1])


def test_scenes_differ():
    keys = [(seed, split, index) for seed in (0, 2**62) for split in ("train", "val", "test") for index in (0, 1)]
    assert len({paint(sample_scene(*key), (32, 43))[0].tobytes() for key in keys}) == len(keys)


@pytest.mark.parametrize("index", range(4))
def test_swapped_cues(index):
    """Swapping a cue changes pixels near it, and the class of a region at least 17 pixels away."""
    data = Scenes()
    scene = data.scene(index)
    image, mask = data[index]

    other, swapped = data.draw(scene.swapped(sky=True))
    changed = (image != other).any(0)
    assert changed[:20].float().mean() > 0.9 and not changed[int(scene.horizon) + 1 :].any()
    expected = mask.clone()
    expected[mask == SAND], expected[mask == SNOW] = SNOW, SAND
    assert torch.equal(swapped, expected) and not torch.equal(swapped, mask)
    assert (mask != swapped).nonzero()[:, 0].min() - changed.nonzero()[:, 0].max() > 17

    for number, lighthouse in enumerate(scene.lighthouses):
        other, swapped = data.draw(scene.swapped(lights=(number,)))
        changed, moved = (image != other).any(0), mask != swapped
        x, y = painting.lamp(scene, lighthouse)
        rows, columns = changed.nonzero(as_tuple=True)
        assert changed[int(y), int(x)] and rows.max() < y + painting.HALO + 1
        assert (columns - x).abs().max() < painting.BEAM + 2
        (boat,) = (boat for boat in scene.boats if boat.lighthouse == number)
        assert (moved.nonzero()[:, 1] - boat.x).abs().max() < 10 * boat.size
        assert moved.nonzero()[:, 0].min() - rows.max() > 17
        pairs = {(int(a), int(b)) for a, b in zip(mask[moved], swapped[moved], strict=True)}
        assert pairs == {(OUTBOUND, INBOUND) if lighthouse.blue else (INBOUND, OUTBOUND)}


def test_sizes():
    scene = sample_scene(0, "train", 5)
    (small, labels), (large, finer) = paint(scene, (96, 128)), paint(scene, (192, 256))
    assert np.abs(large.reshape(96, 2, 128, 2, 3).mean((1, 3)) - small).mean() < 3
    assert (finer[::2, ::2] == labels).mean() > 0.96


def test_errors():
    fails("scenes has no split 'trainval'", load, "scenes", None, "trainval")
    for options in (dict(size=(16, 64)), dict(size=96), dict(length=0), dict(seed=-1)):
        fails(f"{next(iter(options))} is", load, "scenes", None, **options)
