"""A batch is a function of the seed and the iteration, for any number of devices and workers."""

import multiprocessing
import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.tv_tensors import Image, Mask

from repgraph.data.dataset import Cached
from repgraph.data.transforms import TrainTransform
from repgraph.errors import UsageError
from repgraph.recipes import Data, Recipe, Train
from repgraph.train import stream
from repgraph.train.segmentation import Segmentation
from repgraph.train.stream import Batches, batch_indices

forks = pytest.mark.filterwarnings(
    "ignore:This process.*is multi-threaded:DeprecationWarning", "ignore:This DataLoader will create:UserWarning"
)


class Images:
    """Images of different sizes; or broken, or their process receives signals."""

    def __init__(self, problem=""):
        self.problem = problem

    def __len__(self):
        return 7

    def __getitem__(self, index):
        if self.problem == "signals":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
        if self.problem == "broken" and index == 4:
            raise UsageError("images/4.png: broken")
        source, size = stream.generator("images", index), (20 + index, 30 - index)
        image = torch.randint(0, 256, (3, *size), generator=source, dtype=torch.uint8)
        return Image(image), Mask(torch.randint(0, 3, size, generator=source, dtype=torch.uint8))


def make_batches(images, seed=0, batch=4, rank=0, world_size=1):
    task = Segmentation(Recipe(name="x", data=Data(name="folder"), train=Train(batch=batch, seed=seed)))
    return Batches(images, task, TrainTransform((17, 23)), rank, world_size)


def load(images, workers=0, start=0):
    return stream.load(make_batches(images), start, 6, workers=workers)


@pytest.fixture(scope="module")
def expected():
    torch.manual_seed(0)
    return list(load(Images()))


@forks
@pytest.mark.parametrize(
    ("images", "workers", "start"),
    [(Images(), 0, 3), (Images(), 2, 0), (Images("signals"), 1, 0), (Cached(Images()), 0, 0)],
    ids=["resumed", "workers", "workers with signals", "cached"],
)
def test_batches_are_the_same(expected, images, workers, start):
    torch.manual_seed(1)
    for ours, theirs in zip(load(images, workers, start), expected[start:], strict=True):
        assert ours.iteration == theirs.iteration
        assert torch.equal(ours.images, theirs.images) and torch.equal(ours.targets, theirs.targets)


def test_batches_depend_on_seed_and_iteration():
    found = [make_batches(Images(), seed).augmented(iteration, 3)[0] for seed, iteration in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(each.flatten().tolist()) for each in found}) == 3
    assert batch_indices(0, [range(7)], 7, 0) != batch_indices(1, [range(7)], 7, 0)


@forks
@pytest.mark.parametrize("workers", [0, 1])
def test_unusable_image_is_one_line_and_ends_the_workers(workers):
    before = set(multiprocessing.active_children())
    loaded = load(Images("broken"), workers)
    with pytest.raises(UsageError, match=r"^images/4\.png: broken$"):
        list(loaded)
    loaded.close()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize(("length", "batch"), [(7, 4), (8, 4), (3, 4), (1, 2), (100, 7)])
def test_every_image_comes_once_per_epoch(length, batch):
    seen = [index for iteration in range(60) for index in batch_indices(5, [range(length)], batch, iteration)]
    epochs = [seen[at : at + length] for at in range(0, len(seen) - length + 1, length)]
    assert all(sorted(epoch) == list(range(length)) for epoch in epochs)
    assert length <= 4 or len({tuple(epoch) for epoch in epochs}) > 1  # in another order each time


@given(st.integers(1, 23), st.integers(0, 23), st.integers(1, 8), st.integers(0, 9), st.integers(0, 1000))
def test_batches_of_one_group(first, second, batch, seed, start):
    """A batch has images of one group, each group has its share, and all its images are used before any is repeated."""
    groups = [list(range(first)), list(range(first, first + second))]
    found = [batch_indices(seed, groups, batch, iteration) for iteration in range(40)]
    assert all(len(each) == batch and any(set(each) <= set(group) for group in groups) for each in found)
    for group in groups:
        seen = [index for each in found for index in each if index in group]
        epochs = [seen[at : at + len(group)] for at in range(0, len(seen), len(group) or 1)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
    later = [batch_indices(seed, groups, batch, iteration) for iteration in range(start, start + 30)]
    assert abs(sum(each[0] in groups[1] for each in later) - 30 * second / (first + second)) < 1


@pytest.mark.parametrize("world_size", [2, 4])
def test_devices_share_a_batch(world_size):
    for iteration in range(2, 8):
        parts = [make_batches(Images(), 3, 8, rank, world_size).indices(iteration) for rank in range(world_size)]
        assert [index for part in parts for index in part] == batch_indices(3, [range(7)], 8, iteration)
        assert all(len(part) == 8 // world_size for part in parts)


def test_seeds_differ_in_every_part():
    parts = [(0, "step", 1), (0, "step", 11), (0, "step1", 1), (1, "step", 1), (0, 1, "step"), (0, "step")]
    assert len({stream.seed_from(*each) for each in parts}) == len(parts)
    assert stream.seed_from(0, "step", 7) == 696523040350803357  # on every machine, in every version
