"""The embedded scenes: the same bytes everywhere, right labels, and cues of which nothing else in a picture tells."""

import hashlib

import numpy as np
import pytest
import torch

from repgraph.data import load
from repgraph.data.labels import DataError
from repgraph.data.scenes import FAR, LABELS, SIZE, Scenes, paint, scene, things
from repgraph.data.scenes.chance import Stream, hashed, noise
from repgraph.data.scenes.painting import BUILDING, INBOUND, OUTBOUND, SAND, SKY, SNOW, WATER, WOODS

COUNT = 40
HASHES = {
    "train": "65628d39b07557e0",
    "val": "aa19f7608922b05f",
    "test": "3703cd1aa19c03ca",
}


def scenes(count: int = COUNT, split: str = "train", size: tuple[int, int] = SIZE) -> Scenes:
    return Scenes(None, split, length=count, size=size)


@pytest.mark.parametrize("split", HASHES)
def test_pictures_are_the_same_to_the_byte(split):
    digest = hashlib.sha256()
    for image, mask in scenes(4, split):
        digest.update(image.permute(1, 2, 0).numpy().tobytes() + mask.numpy().tobytes())
    assert digest.hexdigest()[:16] == HASHES[split]


def test_a_data_set_as_any_other():
    data = load("scenes", None, "val", length=3, size=(48, 65), seed=2)
    image, mask = data[2]
    assert image.shape == (3, 48, 65) and mask.shape == (48, 65)
    assert image.dtype == mask.dtype == torch.uint8
    assert len(data) == len(list(data)) == 3
    assert data.labels.names == LABELS.names and data.labelled and data.missing == []
    assert data.prediction_name(2) == "val-00002.png"
    assert repr(data) == "scenes val: 3 drawn pictures of 65 x 48, 8 classes"
    assert [len(Scenes(None, split)) for split in ("train", "val", "test")] == [1600, 100, 400]


def test_every_seed_split_and_index_has_pictures_of_its_own():
    pictures = [
        paint(scene(seed, split, index), SIZE)[0].tobytes()
        for seed in (0, 1, 2**70)
        for split in ("train", "val", "test")
        for index in range(3)
    ]
    assert len(set(pictures)) == len(pictures)


def test_labels_are_those_of_what_is_painted_there():
    for index in range(COUNT):
        what = scene(0, "train", index)
        _, labels = paint(what, SIZE)
        assert labels[2, 2] == SKY
        assert labels[int(what.horizon) + 4, 64] == WATER
        shore = labels[-1][labels[-1] != WOODS]  # pines stand before it
        assert (shore == (SNOW if what.moon else SAND)).all()
        for tower in what.lighthouses:
            x, y = things.lamp(what, tower)
            assert labels[int(y), int(x)] == BUILDING
        for boat in what.boats:
            outbound = what.lighthouses[boat.lighthouse].blue
            here = labels[int(boat.y - 4 * boat.size), int(boat.x)]
            assert here in (OUTBOUND if outbound else INBOUND, WOODS)


def test_all_classes_are_there_and_what_is_decided_far_away_is_balanced():
    masks = torch.stack([mask for _, mask in scenes(200)])
    share = torch.bincount(masks.flatten().long(), minlength=8).double() / masks.numel()
    assert share.min() > 0.01
    assert abs(share[SAND] / (share[SAND] + share[SNOW]) - 0.5) < 0.12
    assert abs(share[INBOUND] / (share[INBOUND] + share[OUTBOUND]) - 0.5) < 0.07


@pytest.mark.parametrize("index", range(8))
def test_a_swapped_sky_changes_the_sky_and_what_the_shore_is(index):
    data = scenes()
    what = data.scene(index)
    (image, mask), (other, swapped) = data[index], data.draw(what.swapped(sky=True))
    changed = (image != other).any(0)
    assert changed[:20].float().mean() > 0.9
    assert not changed[int(what.horizon) + 1 :].any()
    turned = mask.clone()
    turned[mask == SAND], turned[mask == SNOW] = SNOW, SAND
    assert torch.equal(swapped, turned) and not torch.equal(swapped, mask)


@pytest.mark.parametrize("index", range(8))
def test_a_swapped_light_changes_its_surroundings_and_what_its_boat_is(index):
    data = scenes()
    what = data.scene(index)
    image, mask = data[index]
    for number, tower in enumerate(what.lighthouses):
        other, swapped = data.draw(what.swapped(lights=(number,)))
        changed = (image != other).any(0)
        x, y = things.lamp(what, tower)
        rows, columns = changed.nonzero(as_tuple=True)
        assert changed[int(y), int(x)] and rows.max() < y + things.HALO + 1
        assert (columns - x).abs().max() < things.BEAM + 2
        (boat,) = (boat for boat in what.boats if boat.lighthouse == number)
        moved = mask != swapped
        assert moved.any() and (moved.nonzero()[:, 1] - boat.x).abs().max() < 10 * boat.size
        pairs = {(int(a), int(b)) for a, b in zip(mask[moved], swapped[moved], strict=True)}
        assert pairs == {(OUTBOUND, INBOUND) if tower.blue else (INBOUND, OUTBOUND)}


def test_what_decides_is_far_from_what_is_decided():
    """At least 17 pixels lie between: more than a network sees whose positions see 31."""
    for index in range(COUNT):
        what = scene(0, "train", index)
        picture, labels = paint(what, SIZE)
        for swapped, classes in (
            (what.swapped(sky=True), (SAND, SNOW)),
            (what.swapped(lights=tuple(range(len(what.lighthouses)))), (INBOUND, OUTBOUND)),
        ):
            other, _ = paint(swapped, SIZE)
            cue = np.nonzero((picture != other).any(-1))[0].max()
            decided = np.nonzero(np.isin(labels, classes))[0].min()
            assert decided - cue > 17


def test_what_is_near_has_the_same_distribution_in_both_classes():
    """The same cues twice from their own stream: colours and sizes of shore and boats must not go with them."""
    shore: dict[bool, list[np.ndarray]] = {True: [], False: []}
    boats: dict[bool, list[list[float]]] = {True: [], False: []}
    for index in range(300):
        what = scene(3, "train", index)
        picture, labels = paint(what, SIZE)
        pixels = picture[np.isin(labels, (SAND, SNOW))].astype(float)
        shore[what.moon].append(np.concatenate([pixels.mean(0), pixels.std(0), [len(pixels), what.shore]]))
        for boat in what.boats:
            boats[what.lighthouses[boat.lighthouse].blue].append([boat.x, boat.y, boat.size, boat.left, *boat.hull])
    for groups in (shore, boats):
        one, two = (np.array(groups[key]) for key in (True, False))
        error = np.sqrt(one.var(0) / len(one) + two.var(0) / len(two))
        assert (np.abs(one.mean(0) - two.mean(0)) < 4 * error).all()


def test_a_larger_picture_is_the_same_scene():
    what = scene(0, "train", 5)
    (small, labels), (large, finer) = paint(what, (96, 128)), paint(what, (192, 256))
    shrunk = large.reshape(96, 2, 128, 2, 3).mean((1, 3))
    assert np.abs(shrunk - small).mean() < 3
    assert (finer[::2, ::2] == labels).mean() > 0.96


@pytest.mark.parametrize("size", [(32, 32), (96, 96), (97, 250), (200, 95)])
def test_any_size(size):
    image, mask = Scenes(None, "val", size=size, length=1)[0]
    assert image.shape[1:] == mask.shape == size
    assert {*FAR[:2]} & {LABELS.names[k] for k in mask.unique()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(split="trainval"), "scenes have no split 'trainval'; choose one of train, val, test"),
        (dict(size=(16, 64)), "size is 16; a whole number of at least 32"),
        (dict(size=96), "size is 96; give height and width"),
        (dict(size=(400, 100)), "size is 400 x 100; the width has to be at least 0.44 of the height"),
        (dict(length=0), "length is 0; a whole number of at least 1"),
        (dict(seed=-1), "seed is -1; a whole number of at least 0"),
        (dict(seed=1.5), "seed is 1.5; a whole number"),
        (dict(colour="red"), "scenes has no option 'colour'; its options are size, length, seed"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(DataError, match=message):
        load("scenes", None, **options)


def test_there_is_no_scene_beyond_the_last():
    with pytest.raises(IndexError, match="there is no scene 3: there are 3"):
        scenes(3)[3]


def test_streams_are_apart_and_even():
    names = [(0,), (1,), (-1,), (2**64,), ("0",), (0, "a"), (0, "b"), ("a", 0), (0, 0)]
    firsts = {Stream(*name).word() for name in names}
    assert len(firsts) == len(names)
    stream = Stream("even")
    numbers = [stream.number(2, 4) for _ in range(4000)]
    assert 2 <= min(numbers) < 2.01 < 3.99 < max(numbers) < 4
    assert abs(np.mean(numbers) - 3) < 0.05
    assert {stream.whole(3, 5) for _ in range(60)} == {3, 4, 5}
    assert 0.2 < np.mean([stream.coin(0.25) for _ in range(2000)]) < 0.3


def test_noise_is_smooth_and_does_not_depend_on_what_is_asked_for():
    x, y = np.arange(0, 12, 0.125, dtype=np.float32), np.arange(-3, 4, 0.25, dtype=np.float32)
    whole = noise(9, x, y)
    assert whole.dtype == np.float32 and 0 <= whole.min() < 0.2 and 0.8 < whole.max() <= 1
    assert np.abs(np.diff(whole, axis=1)).max() < 0.25
    np.testing.assert_array_equal(whole[5:9, 40:50], noise(9, x[40:50], y[5:9]))
    knots = hashed(9, np.arange(12)[None], np.arange(-3, 4)[:, None])
    np.testing.assert_array_equal(whole[::4, ::8], knots)
