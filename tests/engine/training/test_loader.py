"""What an iteration sees is a function of the seed and the iteration alone."""

import collections
import multiprocessing
import os
import signal

import pytest
import torch
from torchvision.tv_tensors import Image, Mask

from repgraph.data.transforms import TrainTransform
from repgraph.engine.tasks.segmentation import Batch, collate
from repgraph.engine.training import cache
from repgraph.engine.training.cache import Cached
from repgraph.engine.training.chance import chosen, generator, seed_of
from repgraph.engine.training.loader import Augmented, Batches, Failure, Stream, loader, workers_for
from repgraph.engine.training.parts import Part
from repgraph.errors import UsageError

TRANSFORM = TrainTransform((17, 23))


class Pictures:
    """Pictures of different sizes; picture 4 is broken if asked for."""

    def __init__(self, count=7, broken=False):
        self.count, self.broken, self.read = count, broken, collections.Counter()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.read[index] += 1
        if self.broken and index == 4:
            raise UsageError("images/4.png: broken")
        source = generator("pictures", index)
        size = (20 + index, 30 - index)
        image = torch.randint(0, 256, (3, *size), generator=source, dtype=torch.uint8)
        if index % 2:  # as images come from files
            image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        return Image(image), Mask(torch.randint(0, 3, size, generator=source, dtype=torch.uint8))

    def __repr__(self):
        return "pictures"


def batches(first=0, last=6, rank=0, world=1, batch=4, seed=0, length=7):
    return Batches(length, batch, seed, first, last, rank, world)


def load(data, workers=0, **options):
    return list(loader(data, TRANSFORM, batches(**options), collate, workers=workers, pin=False))


@pytest.mark.parametrize(("length", "batch"), [(7, 4), (8, 4), (3, 4), (1, 2), (100, 7)])
def test_every_image_comes_once_before_any_comes_again(length, batch):
    seen = [index for iteration in range(60) for index in chosen(5, length, iteration, batch)]
    turns = [seen[at : at + length] for at in range(0, len(seen) - length + 1, length)]
    assert all(sorted(turn) == list(range(length)) for turn in turns)
    if length > 4:
        assert len({tuple(turn) for turn in turns}) > 1  # in another order each time


def test_seeds_differ_in_every_part():
    parts = [(0, "step", 1), (0, "step", 11), (0, "step1", 1), (1, "step", 1), (0, 1, "step"), (0, "step")]
    assert len({seed_of(*each) for each in parts}) == len(parts)
    assert all(0 <= seed_of(*each) < 2**63 for each in parts)
    assert seed_of(0, "step", 7) == 696523040350803357  # on every machine, in every version


@pytest.mark.parametrize("world", [2, 4])
def test_devices_share_the_same_batch(world):
    whole = list(batches())
    parts = [list(batches(rank=rank, world=world)) for rank in range(world)]
    for iteration, batch in enumerate(whole):
        assert [key for part in parts for key in part[iteration]] == batch
        assert all(len(part[iteration]) == 4 // world for part in parts)


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(UsageError, match=r"train\.batch is 4, which 3 devices cannot share"):
        batches(world=3)


def assert_same(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.iteration == b.iteration
        assert torch.equal(a.images, b.images) and torch.equal(a.masks, b.masks)


def test_batches_do_not_depend_on_where_one_starts():
    assert_same(load(Pictures())[3:], load(Pictures(), first=3))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_batches_do_not_depend_on_workers():
    assert_same(load(Pictures()), load(Pictures(), workers=2))


def test_batches_depend_on_the_seed_and_the_iteration():
    first, other = load(Pictures(1), length=1, batch=1), load(Pictures(1), length=1, batch=1, seed=1)
    assert not torch.equal(first[0].images, other[0].images)
    assert not torch.equal(first[0].images, first[1].images)


def test_a_batch_is_bytes_and_plain_tensors():
    batch = load(Pictures())[0]
    assert type(batch) is Batch and type(batch.images) is torch.Tensor and type(batch.masks) is torch.Tensor
    assert batch.images.dtype == batch.masks.dtype == torch.uint8
    assert batch.images.shape == (4, 3, 17, 23) and batch.masks.shape == (4, 17, 23)


def test_global_chance_plays_no_part():
    torch.manual_seed(0)
    first = load(Pictures())
    torch.manual_seed(1)
    assert_same(first, load(Pictures()))


def test_a_stream_goes_on_where_the_last_period_ended():
    stream = Stream(load(Pictures()), period=4, first=1, last=6)
    stream.batches = stream.batches[1:]
    assert [[batch.iteration for batch in stream] for _ in range(3)] == [[1, 2, 3], [4, 5], []]


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_an_unusable_image_is_one_line(workers):
    before = set(multiprocessing.active_children())  # a pool of an earlier test may be idle still
    stream = Stream(loader(Pictures(broken=True), TRANSFORM, batches(), collate, workers=workers, pin=False), 6, 0, 6)
    with pytest.raises(UsageError) as caught:
        list(stream)
    assert str(caught.value) == "images/4.png: broken"
    stream.close()
    assert set(multiprocessing.active_children()) <= before


def test_an_image_without_mask_is_named():
    class Unlabelled(Pictures):
        def __getitem__(self, index):
            return super().__getitem__(index)[0], None

    assert Augmented(Unlabelled(), TRANSFORM, 0)[0, 3] == Failure("image 3 of pictures has no mask to learn from")
    with pytest.raises(UsageError, match="image 0 of pictures has no mask"):
        Cached(Unlabelled())
    with pytest.raises(UsageError, match="pictures has no images"):
        loader(Pictures(0), TRANSFORM, batches(), collate, workers=0, pin=False)


def test_a_cache_gives_the_same_and_reads_once(monkeypatch):
    monkeypatch.setattr(cache, "BLOCK", 5000)  # two images in a block
    data = Pictures()
    cached = Cached(data, threads=2)
    assert_same(load(cached), load(Pictures()))
    assert all(cached[i][0].stride() == Pictures()[i][0].stride() for i in range(7))
    assert len(cached) == 7 and set(data.read.values()) == {1}
    assert len(cached.blocks) > 2
    assert repr(cached) == "pictures"


def test_a_cache_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(cache, "available", lambda: 1000.0)
    with pytest.raises(UsageError, match=r"data\.cache would need about .* GiB for 20 images"):
        Cached(Pictures(20))
    assert cache.available.__wrapped__() > 2**20 if hasattr(cache.available, "__wrapped__") else True


def test_memory_is_known_here():
    assert 2**20 < cache.available() < 2**60


def test_some_images_only():
    data = Part(Pictures(), range(3), "the first 3")
    assert len(data) == 3 and torch.equal(data[2][0], Pictures()[2][0])
    assert repr(data) == "the first 3 of pictures"
    with pytest.raises(IndexError):
        data[3]


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(24), raising=False)
    assert [workers_for(-1), workers_for(-1, 4), workers_for(-1, 100), workers_for(0), workers_for(5, 4)] == [
        16,
        6,
        1,
        0,
        5,
    ]


class Deaf(Pictures):
    """Sends its own process the signals of an interrupt before it reads."""

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_workers_leave_interrupts_to_the_training_process():
    assert_same(load(Deaf(), workers=1), load(Pictures()))
