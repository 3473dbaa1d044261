"""The training transform: image and mask stay aligned, padding, randomness from the generator alone; normalisation."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.tv_tensors import Image, Mask

from repgraph.data.labels import IGNORE, DataError
from repgraph.data.transforms import MEAN, SCALES, STD, TrainTransform, mean_colour, normalise, resize

SIDES = st.integers(1, 40)
SEEDS = st.integers(0, 2**31)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def coded(labels: Tensor) -> tuple[Image, Mask]:
    """A mask, and an image whose colour says the label of each pixel: (label, label + 50, 250 - label)."""
    image = torch.stack([labels, labels + 50, 250 - labels])
    return Image(image.contiguous()), Mask(labels)


def agrees(image: Tensor, mask: Tensor) -> Tensor:
    """Where the image has the colour of the label, or of padding where the mask has IGNORE."""
    padding = torch.tensor(mean_colour(), dtype=torch.uint8).view(3, 1, 1)
    expected = torch.where(mask == IGNORE, padding, torch.stack([mask, mask + 50, 250 - mask]))
    return (image == expected).all(0)


def uniform(mask: Tensor, reach: int) -> Tensor:
    """Where all pixels in reach are there and have one label."""
    wide = torch.nn.functional.pad(mask.double(), [reach] * 4, value=-1)[None, None]
    size = 2 * reach + 1
    highest = torch.nn.functional.max_pool2d(wide, size, 1)
    return (highest == -torch.nn.functional.max_pool2d(-wide, size, 1))[0, 0]


@settings(deadline=None, max_examples=60)
@given(height=SIDES, width=SIDES, crop=st.tuples(SIDES, SIDES), seed=SEEDS, flip=st.booleans())
def test_crop_and_flip_keep_every_pixel_with_its_label(height, width, crop, seed, flip):
    labels = torch.randint(0, 200, (height, width), dtype=torch.uint8, generator=generator(seed))
    image, mask = TrainTransform(crop, scales=(1.0,), flip=flip)(*coded(labels), generator(seed))
    assert (tuple(image.shape), tuple(mask.shape)) == ((3, *crop), crop)
    assert (image.dtype, mask.dtype) == (torch.uint8, torch.uint8)
    assert agrees(image, mask).all()
    inside = min(height, crop[0]) * min(width, crop[1])  # nothing is lost that fits
    assert (mask != IGNORE).sum() == inside


@settings(deadline=None, max_examples=60)
@given(crop=st.tuples(SIDES, SIDES), seed=SEEDS, scale=st.sampled_from(SCALES))
def test_scales_keep_labels_with_their_pixels(crop, seed, scale):
    """Away from the borders of regions, where colours mix, a pixel has exactly its label's colour."""
    blocks = torch.randint(0, 200, (3, 4), dtype=torch.uint8, generator=generator(seed))
    labels = blocks.repeat_interleave(13, 0).repeat_interleave(15, 1)
    image, mask = TrainTransform(crop, scales=(scale,))(*coded(labels), generator(seed))
    assert agrees(image, mask)[uniform(mask, 3)].all()
    whole, truth = resize(*coded(labels), scale)
    assert uniform(truth, 3).sum() > 20 and agrees(whole, truth)[uniform(truth, 3)].all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("across", [True, False])
def test_scales_do_not_shift_the_mask(scale, across):
    """On a slope of 10 per pixel, image and mask differ by half a pixel at most: 5, and rounding (twice)."""
    labels = (10 * torch.arange(24, dtype=torch.uint8)).expand(24, 24)
    labels = labels if across else labels.T
    image, mask = resize(Image(labels.expand(3, 24, 24).contiguous()), Mask(labels.contiguous()), scale)
    inner = slice(4, -4)
    assert (image[0].int() - mask.int())[inner, inner].abs().max() <= 6


def test_padding_is_the_mean_and_ignored():
    image, mask = coded(torch.full((4, 6), 7, dtype=torch.uint8))
    image, mask = TrainTransform((30, 20), scales=(1.0,))(image, mask, generator())
    padded = mask == IGNORE
    assert padded.sum() == 30 * 20 - 4 * 6
    assert normalise(image)[:, padded].abs().max() < 0.5 / 255 / min(STD) + 1e-6


def test_labels_that_are_ignored_stay_so():
    image, mask = coded(torch.zeros(10, 10, dtype=torch.uint8))
    mask[:] = IGNORE
    assert (TrainTransform((9, 9))(image, Mask(mask), generator())[1] == IGNORE).all()


@pytest.mark.parametrize(("length", "crop"), [(7, 5), (5, 7), (6, 6)])
def test_every_place_is_possible_and_equally_likely(length, crop):
    labels = torch.arange(length, dtype=torch.uint8).expand(1, length)
    transform = TrainTransform((1, crop), scales=(1.0,), flip=False)
    firsts = [tuple(transform(*coded(labels), generator(seed))[1][0].tolist()) for seed in range(300)]
    counts = {first: firsts.count(first) for first in firsts}
    assert len(counts) == abs(length - crop) + 1
    assert min(counts.values()) > 60  # of 100 expected where there are three places


def test_scales_and_flips_are_all_drawn():
    labels = torch.arange(40, dtype=torch.uint8).expand(40, 40)
    transform = TrainTransform((40, 40))
    drawn = [transform(*coded(labels), generator(seed))[1] for seed in range(200)]
    flipped = [mask[20, 15].item() > mask[20, 25].item() for mask in drawn]
    assert 70 < sum(flipped) < 130
    assert len({len(mask.unique()) for mask in drawn}) >= 5  # a different part of the picture at every scale


def test_without_flip_nothing_is_mirrored():
    labels = torch.arange(12, dtype=torch.uint8).expand(9, 12)
    for seed in range(20):
        mask = TrainTransform((9, 12), scales=(1.0,), flip=False)(*coded(labels), generator(seed))[1]
        assert (mask == labels).all()


def test_the_generator_alone_decides():
    image, mask = coded(torch.randint(0, 200, (31, 45), dtype=torch.uint8))
    transform = TrainTransform((24, 24))
    torch.manual_seed(1)
    np.random.seed(1)
    first = transform(image, mask, generator(5))
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.manual_seed(2)
    np.random.seed(2)
    torch.set_num_threads(1)
    try:
        again = pickle.loads(pickle.dumps(transform))(image, mask, generator(5))
    finally:
        torch.set_num_threads(threads)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    torch.set_rng_state(state)
    assert any((transform(image, mask, generator(s))[0] != first[0]).any() for s in range(6, 12))


def test_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    TrainTransform((8, 8))(*coded(torch.zeros(9, 9, dtype=torch.uint8)), generator())
    assert (torch.get_rng_state() == before).all()


def test_inputs_are_not_changed():
    image, mask = coded(torch.randint(0, 200, (31, 45), dtype=torch.uint8))
    kept = image.clone(), mask.clone()
    out = TrainTransform((31, 45), scales=(1.0,))(image, mask, generator())
    out[0].zero_(), out[1].zero_()
    assert (image == kept[0]).all() and (mask == kept[1]).all()


@pytest.mark.parametrize("scale", [0.01, 0.3])
def test_tiny_pictures(scale):
    image, mask = TrainTransform((3, 5), scales=(scale,))(*coded(torch.zeros(1, 2, dtype=torch.uint8)), generator())
    assert (mask != IGNORE).sum() == 1 and tuple(image.shape) == (3, 3, 5)


def test_the_memory_layout_of_the_image_does_not_matter():
    """Images from files are views of (H, W, 3); the result may not depend on it."""
    image, mask = coded(torch.randint(0, 200, (31, 45), dtype=torch.uint8))
    view = Image(image.permute(1, 2, 0).contiguous().permute(2, 0, 1))
    for seed in range(12):
        plain, turned = (TrainTransform((24, 24))(each, mask, generator(seed))[0] for each in (image, view))
        assert (plain.int() - turned.int()).abs().max() <= 1  # two kernels, which round on their own


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": (0, 5)}, r"crop \(0, 5\): give height and width"),
        ({"crop": (5,)}, r"crop \(5,\): give height and width"),
        ({"crop": (5, 5), "scales": ()}, r"scales \(\): give one number or more"),
        ({"crop": (5, 5), "scales": (1, 0)}, r"scales \(1, 0\): give one number or more"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(DataError, match=message):
        TrainTransform(**options)


def test_image_and_mask_of_different_sizes():
    image, _ = coded(torch.zeros(9, 9, dtype=torch.uint8))
    with pytest.raises(DataError, match=r"an image of \(3, 9, 9\) and a mask of \(9, 8\) differ in size"):
        TrainTransform((8, 8))(image, Mask(torch.zeros(9, 8, dtype=torch.uint8)), generator())


def test_lists_from_json_will_do():
    assert TrainTransform([5, 6], scales=[1, 2]) == TrainTransform((5, 6), scales=(1, 2))


@pytest.mark.parametrize("channels_last", [True, False])
def test_normalise(channels_last):
    images = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last) if channels_last else images
    expected = (images.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    given = normalise(images)
    assert type(given) is Tensor and given.dtype == torch.float32
    torch.testing.assert_close(given.double(), expected, rtol=0, atol=2e-6)
    assert given.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert normalise(images, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_normalise_with_other_statistics():
    images = torch.full((3, 1, 1), 51, dtype=torch.uint8)
    transform = TrainTransform((5, 5), mean=(0.2, 0.2, 0.0), std=(1.0, 0.5, 0.1))
    torch.testing.assert_close(transform.normalise(images).flatten(), torch.tensor([0.0, 0.0, 2.0]), rtol=0, atol=1e-6)


def test_normalise_takes_images_and_bytes_only():
    assert type(normalise(Image(torch.zeros(3, 2, 2, dtype=torch.uint8)))) is Tensor
    with pytest.raises(DataError, match=r"takes images in bytes \(uint8\), not torch.float32"):
        normalise(torch.zeros(1, 3, 2, 2))


def test_normalise_first_used_for_inference_then_for_training():
    images = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    statistics = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}  # not used before
    with torch.inference_mode():
        normalise(images, **statistics)
    weight = torch.ones(1, requires_grad=True)
    (normalise(images, **statistics) * weight).sum().backward()
    assert weight.grad is not None


def test_normalise_compiles():
    images = torch.randint(0, 256, (1, 3, 4, 4), dtype=torch.uint8)
    torch._dynamo.reset()
    compiled = torch.compile(normalise, backend="eager", fullgraph=True)
    assert (compiled(images) == normalise(images)).all()
