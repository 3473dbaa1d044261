"""Batches of images with objects, and how they are kept in memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.tv_tensors import BoundingBoxes, BoundingBoxFormat, Image, Mask

from repgraph.data.coco import load
from repgraph.engine.tasks.objects import OBJECTS, collate, widened, without_slivers
from repgraph.engine.training.cache import Cached


def sample(seed, objects, planar=True):
    """An image with so many objects, of a size of its own."""
    source = torch.Generator().manual_seed(seed)
    height, width = (int(torch.randint(3, 20, (), generator=source)) for _ in range(2))
    image = torch.randint(0, 256, (3, height, width), generator=source, dtype=torch.uint8)
    if not planar:
        image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    boxes = torch.rand(objects, 4, generator=source)
    boxes[:, 2:] += boxes[:, :2] + 1
    target = {
        "boxes": BoundingBoxes(boxes, format=BoundingBoxFormat.XYXY, canvas_size=(height, width)),
        "labels": torch.randint(1, 9, (objects,), generator=source),
        "masks": Mask(torch.randint(0, 2, (objects, height, width), generator=source, dtype=torch.uint8)),
    }
    return Image(image), target


def assert_same(left, right):
    (image, target), (other, theirs) = left, right
    assert torch.equal(image, other)
    for name in ("boxes", "labels", "masks"):
        assert torch.equal(target[name].as_subclass(torch.Tensor), theirs[name].as_subclass(torch.Tensor))


SAMPLES = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 4), st.booleans()), min_size=1, max_size=6)


@given(SAMPLES)
@settings(max_examples=40, deadline=None)
def test_a_batch_gives_back_what_it_was_made_of(given):
    items = [sample(*each) for each in given]
    batch = collate(3, items)
    assert batch.iteration == 3 and all(type(value) is torch.Tensor for value in batch[1:-1])
    for item, image, target in zip(items, batch.images(), batch.targets(), strict=True):
        assert_same(item, (image, target))


@given(SAMPLES, st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_batch_in_parts(given, count):
    items = [sample(*each) for each in given for _ in range(count)]
    parts = collate(3, items).parts(count)
    assert len(parts) == count and len({len(part.shapes) for part in parts}) == 1
    found = [pair for part in parts for pair in zip(part.images(), part.targets(), strict=True)]
    for ours, theirs in zip(items, found, strict=True):
        assert_same(ours, theirs)


@given(SAMPLES)
@settings(max_examples=40, deadline=None)
def test_memory_gives_back_what_it_was_given(given):
    items = [sample(*each) for each in given]
    cached = Cached(items, threads=1, codec=OBJECTS)
    for item, found in zip(items, cached, strict=False):
        assert_same(item, found)
        assert found[0].stride() == item[0].stride()
        assert type(found[1]["boxes"]) is BoundingBoxes and type(found[1]["masks"]) is Mask
    assert cached.sizes == [tuple(image.shape[1:]) for image, _ in items] and len(cached) == len(items)


def test_masks_in_memory_take_a_bit_for_each_pixel():
    image, target = sample(0, 4)
    _, parts = OBJECTS.pack(image, target)
    assert [part.numel() for part in parts] == [image.numel(), -(-target["masks"].numel() // 8)]
    assert all(part.dtype == torch.uint8 for part in parts)


def test_the_drawn_images_are_the_same_from_memory(drawn):
    data = load(drawn, crowds=False)
    cached = Cached(data, codec=OBJECTS)
    assert cached.sizes == data.sizes
    for index in range(len(data)):
        assert_same(data[index], cached[index])


@pytest.mark.parametrize("axis", [0, 1])
def test_slivers_go(axis):
    _, target = sample(1, 3)
    boxes = np.array([[1, 1, 3, 3], [1, 1, 3, 3], [1, 1, 3, 3]], np.float32)
    boxes[1, 2 + axis] = boxes[1, axis] + 0.01
    target["boxes"] = torch.from_numpy(boxes)
    kept = without_slivers(target)
    assert kept["boxes"].tolist() == boxes[[0, 2]].tolist() and len(kept["masks"]) == len(kept["labels"]) == 2
    assert without_slivers(kept) is kept


def test_narrow_images_are_widened_with_their_objects():
    image = Image(torch.arange(30, dtype=torch.uint8).expand(3, 1, 30))
    masks = Mask(((torch.arange(30) >= 5) & (torch.arange(30) < 9)).view(1, 1, 30).byte())
    target = {"boxes": torch.tensor([[5.0, 0.0, 9.0, 1.0]]), "labels": torch.tensor([2]), "masks": masks}
    for turned in (False, True):
        if turned:
            image, masks = image.mT, masks.mT
            target |= {"boxes": target["boxes"][:, [1, 0, 3, 2]], "masks": masks}
        wide, moved = widened(image, target, 10)  # of 3 lines one would just be left, or by rounding nothing
        assert torch.equal(wide, image.as_subclass(torch.Tensor).repeat_interleave(4, 2 if turned else 1))
        wanted = [0, 5, 4, 9] if turned else [5, 0, 9, 4]
        assert moved["boxes"].tolist() == [wanted] and moved["labels"] is target["labels"]
        box = torch.zeros(wide.shape[1:], dtype=torch.uint8)
        box[wanted[1] : wanted[3], wanted[0] : wanted[2]] = 1
        assert torch.equal(moved["masks"][0], box)
        assert widened(image, target, 31) == (image, target)
