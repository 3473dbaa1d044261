"""Transforms: alignment of image and mask, padding, randomness from the generator only, normalisation."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.layouts import fails
from torch import Tensor
from torchvision.tv_tensors import BoundingBoxes, Image, Mask

from repgraph.constants import IGNORE, MEAN, STD
from repgraph.data.transforms import SCALES, RandomFlip, TrainTransform, distort_colors, normalise, resize

SIDES = st.integers(1, 40)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def coded(labels: Tensor) -> tuple[Image, Mask]:
    """Return an image whose colours encode the labels, (label, label + 50, 250 - label), and the mask."""
    image = torch.stack([labels, labels + 50, 250 - labels])
    return Image(image.contiguous()), Mask(labels)


def agrees(image: Tensor, mask: Tensor) -> Tensor:
    """Return where the image has the colour of the label, or of the padding for IGNORE."""
    padding = torch.tensor([124, 116, 104], dtype=torch.uint8).view(3, 1, 1)
    expected = torch.where(mask == IGNORE, padding, torch.stack([mask, mask + 50, 250 - mask]))
    return (image == expected).all(0)


@settings(deadline=None, max_examples=60)
@given(height=SIDES, width=SIDES, crop=st.tuples(SIDES, SIDES), seed=st.integers(0, 2**31), flip=st.booleans())
def test_crop_and_flip_keep_every_pixel_with_its_label(height, width, crop, seed, flip):
    labels = torch.randint(0, 200, (height, width), dtype=torch.uint8, generator=generator(seed))
    image, mask = TrainTransform(crop, scales=(1.0,), flip=flip)(*coded(labels), generator(seed))
    assert (tuple(image.shape), tuple(mask.shape)) == ((3, *crop), crop) and agrees(image, mask).all()
    assert (image.dtype, mask.dtype) == (torch.uint8, torch.uint8)
    assert (mask != IGNORE).sum() == min(height, crop[0]) * min(width, crop[1])


@pytest.mark.parametrize("scale", SCALES)
def test_scales_do_not_shift_the_mask(scale):
    """On a ramp of 10 per pixel, image and mask differ by at most half a pixel, 5, and rounding."""
    ramp = (10 * torch.arange(24, dtype=torch.uint8)).expand(24, 24)
    for labels in (ramp, ramp.T):
        image, mask = resize(Image(labels.expand(3, 24, 24).contiguous()), Mask(labels.contiguous()), scale)
        assert (image[0].int() - mask.int())[4:-4, 4:-4].abs().max() <= 6


@pytest.mark.parametrize(("length", "crop"), [(7, 5), (5, 7), (6, 6)])
def test_offsets_are_uniform(length, crop):
    labels = torch.arange(length, dtype=torch.uint8).expand(1, length)
    transform = TrainTransform((1, crop), scales=(1.0,), flip=False)
    firsts = [tuple(transform(*coded(labels), generator(seed))[1][0].tolist()) for seed in range(300)]
    counts = Counter(firsts).values()
    assert len(counts) == abs(length - crop) + 1 and min(counts) > 60  # 100 expected for three offsets


@pytest.mark.parametrize("photometric", [0.0, 1.0])
def test_randomness_comes_only_from_the_generator(photometric):
    image, mask = coded(torch.randint(0, 200, (31, 45), dtype=torch.uint8))
    kept = image.clone(), mask.clone()
    transform = TrainTransform((24, 24), photometric=photometric)
    first = transform(image, mask, generator(5))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = transform(image, mask, generator(5))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    drawn = [transform(image, mask, generator(seed))[1] for seed in range(40)]
    assert len({tuple(each.flatten().tolist()) for each in drawn}) > 30
    for part in TrainTransform((31, 45), scales=(1.0,), photometric=photometric)(image, mask, generator()):
        part.zero_()
    assert torch.equal(image, kept[0]) and torch.equal(mask, kept[1])  # inputs do not change


def test_colors_change_neither_crops_nor_padding():
    plain, colored = (TrainTransform((40, 30), photometric=strength) for strength in (0.0, 1.0))
    image, mask = coded(torch.randint(0, 200, (31, 45), dtype=torch.uint8))
    shifts = []
    for seed in range(40):
        (before, where), (after, other) = (each(image, mask, generator(seed)) for each in (plain, colored))
        assert torch.equal(where, other) and after.dtype == torch.uint8
        assert torch.equal(before[:, where == IGNORE], after[:, where == IGNORE])
        shifts.append((after.float() - before.float())[:, where != IGNORE].abs().mean().item())
    assert shifts.count(0.0) < 8 and 1 < sum(shifts) / 40 < 40  # one in 16 has none of the four changes
    gray = Image(torch.full((3, 4, 4), 100, dtype=torch.uint8))  # only brightness changes it, and rounding
    levels = {int(distort_colors(gray, 1.0, generator(seed))[0, 0, 0]) for seed in range(200)}
    assert levels <= set(range(86, 113)) and {88, 111} <= levels


def test_errors():
    image, mask = coded(torch.zeros(9, 9, dtype=torch.uint8))
    fails(r"image \(3, 9, 9\) and mask \(8, 9\) differ in size", TrainTransform((8, 8)), image, mask[:8], generator())
    fails(r"images are torch\.float32; expected torch\.uint8", normalise, image.float())


@pytest.mark.parametrize("channels_last", [True, False])
def test_normalise(channels_last):
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last) if channels_last else images
    expected = (images.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    given = normalise(images)
    assert type(given) is Tensor and given.dtype == torch.float32
    torch.testing.assert_close(given.double(), expected, rtol=0, atol=2e-6)
    assert given.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert type(normalise(Image(images))) is Tensor


def test_normalise_in_inference_mode_and_compiled():
    images = torch.randint(0, 256, (1, 3, 4, 4), dtype=torch.uint8)
    statistics = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}  # not cached yet
    with torch.inference_mode():
        normalise(images, **statistics)
    weight = torch.ones(1, requires_grad=True)
    (normalise(images, **statistics) * weight).sum().backward()
    assert weight.grad is not None
    torch._dynamo.reset()
    assert (torch.compile(normalise, backend="eager", fullgraph=True)(images) == normalise(images)).all()


def test_random_flip():
    boxes = BoundingBoxes(torch.tensor([[2.0, 3, 8, 9]]), format="XYXY", canvas_size=(20, 30))
    masks = Mask(torch.arange(600, dtype=torch.uint8).view(1, 20, 30))
    image = Image(torch.arange(1800, dtype=torch.uint8).view(3, 20, 30))
    target = {"boxes": boxes, "masks": masks, "labels": torch.tensor([5]), "image_id": 1}
    flipped, other = RandomFlip(1.0)(image, target, generator())
    assert torch.equal(flipped, image.flip(-1)) and torch.equal(other["masks"], masks.flip(-1))
    assert other["boxes"].tolist() == [[22, 3, 28, 9]] and boxes.tolist() == [[2, 3, 8, 9]]
    assert other["labels"] is target["labels"] and other["image_id"] == 1
    assert 10 < sum(RandomFlip()(image, target, generator(seed))[0] is image for seed in range(40)) < 30
    assert RandomFlip(0.0)(image, target, generator())[0] is image
