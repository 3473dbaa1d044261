"""Inference against a plain one written down in loops, and against itself where results must agree."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.networks import Global, Local, Pointwise, Spy
from torch import nn
from torchvision import tv_tensors

from repgraph.engine.inference import Settings, predict, resample
from repgraph.errors import UsageError


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(model, image, mode="whole", crop=None, scales=(1.0,), flip=False) -> torch.Tensor:
    """What inference is, with a map of the whole image for everything."""
    _, height, width = image.shape
    total = 0
    for scale in scales:
        size = max(1, round(height * scale)), max(1, round(width * scale))
        x = resized(image[None], size, smooth=True)
        window = size if mode == "whole" else crop
        padded = F.pad(x, (0, max(0, window[1] - size[1]), 0, max(0, window[0] - size[0])))
        summed = count = 0
        for mirror in (False, True) if flip else (False,):
            for y in starts(padded.shape[2], window[0]):
                for x0 in starts(padded.shape[3], window[1]):
                    part = padded[:, :, y : y + window[0], x0 : x0 + window[1]]
                    logits = model(part.flip(3)).flip(3) if mirror else model(part)
                    beyond = (x0, padded.shape[3] - x0 - window[1], y, padded.shape[2] - y - window[0])
                    summed = summed + F.pad(logits.softmax(1), beyond)
                    count = count + F.pad(torch.ones_like(logits[:, :1]), beyond)
        mean = (summed / count)[:, :, : size[0], : size[1]]
        total = total + resized(mean, (height, width), smooth=False)
    return total[0] / len(scales)


def resized(x: torch.Tensor, size: tuple[int, int], smooth: bool) -> torch.Tensor:
    return matrix(x.shape[2], size[0], smooth) @ x @ matrix(x.shape[3], size[1], smooth).T


def matrix(size: int, new: int, smooth: bool) -> torch.Tensor:
    """Bilinear resizing of an axis as a matrix: triangles around each new pixel's centre."""
    reach = max(1.0, size / new) if smooth else 1.0
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) * size / new
    weights = (1 - (torch.arange(size, dtype=torch.float64) + 0.5 - centres[:, None]).abs() / reach).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


@pytest.mark.parametrize(("size", "new"), [(20, 7), (7, 20), (9, 9), (40, 31), (31, 40), (3, 2)])
@pytest.mark.parametrize("smooth", [True, False])
def test_resizing_is_pytorchs(size, new, smooth):
    x = picture(size, size + 1)[None]  # (PyTorch's own errs for images of one column)
    wanted = F.interpolate(x, (new, new + 2), mode="bilinear", antialias=smooth)
    torch.testing.assert_close(resized(x, (new, new + 2), smooth), wanted, rtol=0, atol=1e-12)
    rows, columns = resample.make(size, new, smooth=smooth), resample.make(size + 1, new + 2, smooth=smooth)
    place, beside = (1, new - 1) if new > 2 else (0, 1), (0, new + 1)
    (top, bottom), (left, right) = rows.needs(place), columns.needs(beside)
    part = rows.apply(x[:, :, top:bottom, left:right], 2, place, top)
    part = columns.apply(part, 3, beside, left)
    torch.testing.assert_close(part, wanted[:, :, slice(*place), slice(*beside)], rtol=0, atol=1e-12)


def starts(size: int, window: int) -> list[int]:
    step, found = math.ceil(window * 2 / 3 - 1e-6), [0]
    while found[-1] + window < size:
        found.append(min(found[-1] + step, size - window))
    return found


sides = st.integers(1, 40)
crops = st.tuples(st.integers(7, 24), st.integers(7, 24))
some_scales = st.lists(st.sampled_from([0.3, 0.5, 0.75, 1.0, 1.25, 1.9]), min_size=1, max_size=3).map(tuple)


@settings(deadline=None, max_examples=40)
@given(sides, sides, crops, some_scales, st.booleans(), st.integers(1, 5), st.sampled_from([1, 9000, 2**30]))
def test_windows_scales_and_flips(height, width, crop, scales, flip, batch, memory):
    model, image = Global(classes=3), picture(height, width)
    options = dict(mode="slide", crop=crop, scales=scales, flip=flip)
    found = predict(model, image, output="probabilities", batch=batch, memory=memory, **options)
    torch.testing.assert_close(found, plain(model, image, **options).detach(), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(sides, sides, some_scales, st.booleans())
def test_whole_images(height, width, scales, flip):
    model, image = Global(classes=3), picture(height, width)
    found = predict(model, image, output="probabilities", scales=scales, flip=flip)
    torch.testing.assert_close(found, plain(model, image, scales=scales, flip=flip).detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("scales", [(1.0,), (0.5, 1.0, 1.5)])
def test_sliding_is_whole_for_a_network_that_looks_at_single_pixels(scales, flip):
    model, image = Pointwise(), picture(41, 57)
    options = dict(scales=scales, flip=flip, output="probabilities")
    whole = predict(model, image, **options)
    sliding = predict(model, image, mode="slide", crop=16, **options)
    torch.testing.assert_close(sliding, whole, rtol=0, atol=1e-13)


def test_sliding_is_whole_where_the_image_is_the_window():
    model, image = Global(), picture(19, 23)
    whole = predict(model, image, output="probabilities")
    assert torch.equal(predict(model, image, mode="slide", crop=(19, 23), output="probabilities"), whole)


def test_sliding_is_whole_away_from_windows_edges():
    model, image = Local(), picture(20, 40)
    whole = predict(model, image, output="probabilities")
    sliding = predict(model, image, mode="slide", crop=(20, 30), output="probabilities")  # windows at 0 and 10
    inside = [*range(8), *range(32, 40)]  # two pixels away from where a window ends
    torch.testing.assert_close(sliding[..., inside], whole[..., inside], rtol=0, atol=1e-13)
    assert not torch.allclose(sliding, whole)


@pytest.mark.parametrize("memory", [1, 60_000, 200_000])
@pytest.mark.parametrize("scales", [(1.0,), (0.5, 1.0, 1.25)])
def test_little_memory_changes_nothing(memory, scales):
    model, image = Global(classes=7), picture(64, 45)
    options = dict(mode="slide", crop=24, scales=scales, flip=True, output="probabilities")
    bounded = predict(model, image, memory=memory, **options)
    torch.testing.assert_close(bounded, predict(model, image, memory=2**40, **options), rtol=0, atol=1e-14)


def test_windows_of_one_pixel():
    model, image = Global(classes=3), picture(4, 5)
    options = dict(mode="slide", crop=(1, 1), scales=(0.5, 1.0))
    found = predict(model, image, output="probabilities", **options)
    torch.testing.assert_close(found, plain(model, image, **options).detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["whole", "slide"])
@pytest.mark.parametrize("size", [(1, 1), (1, 33), (33, 1), (2, 3)])
def test_images_of_a_few_pixels(size, mode):
    labels = predict(Global(), picture(*size), mode=mode, crop=16, scales=(0.5, 1, 2), flip=True)
    assert labels.shape == size and labels.dtype == torch.uint8


def test_labels_are_those_of_the_highest_probability():
    model, image = Global(), picture(30, 31)
    options = dict(mode="slide", crop=16, scales=(0.75, 1.0))
    labels = predict(model, image, **options)
    assert torch.equal(labels, predict(model, image, output="probabilities", **options).argmax(0).to(torch.uint8))
    assert len(labels.unique()) > 1


def test_more_than_256_classes():
    labels = predict(Pointwise(classes=300), picture(9, 9))
    assert labels.dtype == torch.int16 and int(labels.max()) > 255


def test_windows_go_in_batches_of_one_shape_and_beyond_the_image_they_are_zero():
    model = Spy(Pointwise())
    predict(model, picture(20, 50) + 5, mode="slide", crop=(24, 24), batch=2)
    # one row of windows at 0, 16, 26; the first pass counts the classes
    assert model.shapes == [(1, 3, 24, 24), (2, 3, 24, 24), (1, 3, 24, 24)]
    for inputs in model.inputs[1:]:
        assert inputs[:, :, 20:].abs().max() == 0 and inputs[:, :, :20].abs().min() > 0
    flipped = Spy(Pointwise())
    predict(flipped, picture(20, 50), mode="slide", crop=(24, 24), batch=5, flip=True)
    assert max(shape[0] for shape in flipped.shapes) == 4


def test_a_network_that_knows_its_classes_is_not_asked():
    model = Spy(Pointwise())
    model.classes = 5
    predict(model, picture(24, 24), mode="slide", crop=24)
    assert model.shapes == [(1, 3, 24, 24)]


def test_bytes_are_normalised_with_the_networks_own_mean_and_deviation():
    image = torch.randint(0, 256, (3, 12, 13), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    usual, own = Spy(Pointwise()), Spy(Pointwise())
    own.mean, own.std = (0.5, 0.25, 0.0), (1.0, 0.5, 0.25)
    predict(usual, image)
    predict(own, tv_tensors.Image(image))
    for spy, mean, std in ((usual, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), (own, own.mean, own.std)):
        wanted = (image.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        torch.testing.assert_close(spy.inputs[0][0], wanted, rtol=0, atol=2e-6)
        assert type(spy.inputs[0]) is torch.Tensor


def test_progress_ends_at_all_windows():
    seen: list[tuple[int, int]] = []
    image = picture(90, 61)
    predict(
        Pointwise(), image, mode="slide", crop=24, scales=(0.5, 1.0), memory=20_000, progress=lambda *x: seen.append(x)
    )
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1] and [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_modes_and_gradients_are_as_before():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.9), nn.BatchNorm2d(4).eval())
    image = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1))
    before = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first = predict(model, image, output="probabilities")
    assert [module.training for module in model.modules()] == before == [True, True, True, True, False]
    assert torch.equal(first, predict(model, image, output="probabilities"))  # no dropout
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.is_grad_enabled() and not first.requires_grad
    broken = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout())
    with pytest.raises(RuntimeError):
        predict(broken, image)
    assert broken.training and broken[1].training and torch.is_grad_enabled()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_near(precision):
    model, image = nn.Conv2d(3, 6, 3, padding=1), picture(20, 20).float()
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    half = predict(model, image, precision=precision, output="probabilities")
    full = predict(model, image, output="probabilities")
    assert seen == [{"bf16": torch.bfloat16, "fp16": torch.float16}[precision], torch.float32]
    assert half.dtype == torch.float32
    assert 0 < (half - full).abs().max() < 0.02
    torch.testing.assert_close(half.sum(0), torch.ones(20, 20), rtol=0, atol=1e-6)


def test_a_network_in_half_precision_gets_it():
    model = Spy(nn.Conv2d(3, 4, 1).bfloat16())
    found = predict(model, torch.zeros(3, 5, 5, dtype=torch.uint8), scales=(1, 2), output="probabilities")
    assert model.inputs[0].dtype == torch.bfloat16 and found.dtype == torch.float32


class Wrong(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.give = give

    def forward(self, x):
        return self.give(x)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda x: x[:, :, ::2, ::2], r"gives shape \(1, 3, 4, 4\) for inputs of shape \(1, 3, 8, 8\); logits"),
        (lambda x: (x, x), "gives a tuple for inputs"),
        (lambda x: x.mean((2, 3)), r"gives shape \(1, 3\)"),
        (lambda x: x * math.nan, "logits are not finite: its weights or the image are not$"),
    ],
)
@pytest.mark.parametrize("mode", ["whole", "slide"])
def test_networks_that_give_something_else(give, message, mode):
    with pytest.raises(UsageError, match=message):
        predict(Wrong(give), picture(8, 8), mode=mode, crop=8)


def test_a_narrow_precision_may_be_why_logits_are_not_finite():
    with pytest.raises(UsageError, match="or bf16 is too narrow for them: try precision fp32"):
        predict(Wrong(lambda x: x * math.nan), picture(8, 8), precision="bf16")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(1, 3, 8, 8), r"image has shape \(1, 3, 8, 8\); a tensor \(3, height, width\) is needed"),
        (torch.zeros(3, 0, 8), r"image has shape \(3, 0, 8\)"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "image has dtype torch.int64; uint8 RGB is needed"),
        ([[1]], "image has type list"),
    ],
)
def test_images_that_cannot_be(image, message):
    with pytest.raises(UsageError, match=message):
        predict(Pointwise(), image)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(mode="sliding"), "mode is 'sliding'; choose one of whole, slide"),
        (dict(mode="slide"), "mode 'slide' needs crop"),
        (dict(crop=0), "crop is 0; give a side in pixels"),
        (dict(crop=(5,)), "crop is"),
        (dict(crop="big"), "crop is 'big'"),
        (dict(scales=()), "scales is"),
        (dict(scales=(1, -1)), "scales is"),
        (dict(scales=(math.inf,)), "scales is"),
        (dict(stride=0), "stride is 0"),
        (dict(stride=1.5), "stride is 1.5; give a fraction"),
        (dict(batch=0), "batch is 0; a whole number"),
        (dict(memory=0.5), "memory is 0.5; a whole number"),
        (dict(precision="fp8"), "precision is 'fp8'; choose one of fp32, bf16, fp16"),
        (dict(output="logits"), "output is 'logits'; choose labels or probabilities"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UsageError, match=message):
        predict(Pointwise(), picture(8, 8), **changes)


def test_settings_can_be_changed_for_one_call():
    model, image, settings_ = Spy(Pointwise()), picture(8, 8), Settings(mode="slide", crop=4)
    predict(model, image, settings_, mode="whole")
    assert model.shapes == [(1, 3, 8, 8)]
    with pytest.raises(TypeError, match="windw"):
        predict(model, image, windw=3)


def test_steps_other_than_two_thirds():
    model = Spy(Pointwise())
    model.classes = 5
    predict(model, picture(8, 32), mode="slide", crop=8, stride=1, batch=100)
    predict(model, picture(8, 32), mode="slide", crop=8, stride=0.5, batch=100)
    assert [shape[0] for shape in model.shapes] == [4, 7]


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu_and_gives_labels_on_the_cpu():
    model, image = Local(dtype=torch.float32), picture(50, 61).float()
    options = dict(mode="slide", crop=24, scales=(0.5, 1.0), flip=True, memory=20_000, output="probabilities")
    wanted = predict(model, image, **options)
    found = predict(model.cuda(), image, **options)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
