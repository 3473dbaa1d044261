"""Sliding-window inference: against a plain implementation that keeps whole maps, and in bounded memory."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.networks import Global, Local, Pointwise, Spy
from torch import nn
from torchvision import tv_tensors

from repgraph.errors import UsageError
from repgraph.inference import predict
from repgraph.inference.sliding_window import length, make_tiles, make_views


def picture(height: int, width: int) -> torch.Tensor:
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def plain(model, image, mode="whole", crop=None, scales=(1.0,), flip=False) -> torch.Tensor:
    """Compute probabilities with a map of the whole image for every window."""
    _, height, width = image.shape
    total = 0
    for scale in scales:
        size = max(1, round(height * scale)), max(1, round(width * scale))
        window = size if mode == "whole" else crop
        x = resize(image[None], size, antialias=True)
        padded = F.pad(x, (0, max(0, window[1] - size[1]), 0, max(0, window[0] - size[0])))
        summed = count = 0
        for mirror in (False, True) if flip else (False,):
            for top in starts(padded.shape[2], window[0]):
                for left in starts(padded.shape[3], window[1]):
                    part = padded[:, :, top : top + window[0], left : left + window[1]]
                    logits = model(part.flip(3)).flip(3) if mirror else model(part)
                    around = (left, padded.shape[3] - left - window[1], top, padded.shape[2] - top - window[0])
                    summed = summed + F.pad(logits.softmax(1), around)
                    count = count + F.pad(torch.ones_like(logits[:, :1]), around)
        total = total + resize((summed / count)[:, :, : size[0], : size[1]], (height, width), antialias=False)
    return (total[0] / len(scales)).detach()


def starts(size: int, window: int) -> list[int]:
    step, found = math.ceil(window * 2 / 3 - 1e-6), [0]
    while found[-1] + window < size:
        found.append(min(found[-1] + step, size - window))
    return found


def resize(x: torch.Tensor, size: tuple[int, int], antialias: bool) -> torch.Tensor:
    return matrix(x.shape[2], size[0], antialias) @ x @ matrix(x.shape[3], size[1], antialias).T


def matrix(size: int, new: int, antialias: bool) -> torch.Tensor:
    """Bilinear resizing of an axis as a matrix: triangles around each new pixel's centre."""
    reach = max(1.0, size / new) if antialias else 1.0
    centres = (torch.arange(new, dtype=torch.float64) + 0.5) * size / new
    weights = (1 - (torch.arange(size, dtype=torch.float64) + 0.5 - centres[:, None]).abs() / reach).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


sides = st.integers(1, 40)
crops = st.tuples(st.integers(3, 24), st.integers(7, 24))
some_scales = st.lists(st.sampled_from([0.3, 0.5, 0.75, 1.0, 1.25, 1.9]), min_size=1, max_size=3).map(tuple)


@settings(deadline=None, max_examples=25)
@given(sides, sides, crops, some_scales, st.booleans(), st.integers(1, 5), st.sampled_from([1, 9000, 2**30]))
def test_windows_scales_and_flips_in_any_memory(height, width, crop, scales, flip, batch, memory):
    model, image = Global(classes=3), picture(height, width)
    options = dict(mode="slide", crop=crop, scales=scales, flip=flip)
    found = predict(model, image, output="probabilities", batch=batch, memory=memory, **options)
    torch.testing.assert_close(found, plain(model, image, **options), rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(sides, sides, some_scales, st.booleans())
def test_whole_images(height, width, scales, flip):
    model, image = Global(classes=3), picture(height, width)
    found = predict(model, image, output="probabilities", scales=scales, flip=flip)
    torch.testing.assert_close(found, plain(model, image, scales=scales, flip=flip), rtol=0, atol=1e-12)


def test_labels_are_the_argmax_of_probabilities():
    for classes, dtype in ((5, torch.uint8), (300, torch.int16)):
        model, image, options = Global(classes=classes), picture(30, 31), dict(mode="slide", crop=16, scales=(0.75, 1))
        labels = predict(model, image, **options)
        assert torch.equal(labels, predict(model, image, output="probabilities", **options).argmax(0).to(dtype))
        assert labels.dtype == dtype and len(labels.unique()) > 1


def test_windows_run_in_batches_and_are_padded_with_zeros():
    model = Spy(Pointwise())
    predict(model, picture(20, 50) + 5, mode="slide", crop=(24, 24), batch=2)
    # One row of windows at 0, 16 and 26; the first call counts the classes.
    assert model.shapes == [(1, 3, 24, 24), (2, 3, 24, 24), (1, 3, 24, 24)]
    for inputs in model.inputs[1:]:
        assert inputs[:, :, 20:].abs().max() == 0 and inputs[:, :, :20].abs().min() > 0
    model.shapes.clear()
    model.classes = 5  # known: not counted
    predict(model, picture(20, 50), mode="slide", crop=(24, 24), batch=4, flip=True)
    predict(model, picture(8, 32), mode="slide", crop=8, stride=0.5, batch=100)
    assert [shape[0] for shape in model.shapes] == [4, 2, 7]


def test_uint8_images_are_normalised_with_the_networks_mean_and_std():
    image = torch.randint(0, 256, (3, 12, 13), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    default, own = Spy(Pointwise()), Spy(Pointwise())
    own.mean, own.std = (0.5, 0.25, 0.0), (1.0, 0.5, 0.25)
    predict(default, image)
    predict(own, tv_tensors.Image(image))
    for spy, mean, std in ((default, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), (own, own.mean, own.std)):
        expected = (image.double() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        torch.testing.assert_close(spy.inputs[0][0], expected, rtol=0, atol=2e-6)
        assert type(spy.inputs[0]) is torch.Tensor


def test_modes_and_gradients_are_restored():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.9), nn.BatchNorm2d(4).eval())
    image = picture(16, 16).float()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first = predict(model, image, output="probabilities")
    assert torch.equal(first, predict(model, image, output="probabilities"))  # no dropout
    assert [module.training for module in model.modules()] == [True, True, True, True, False]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.is_grad_enabled() and not first.requires_grad
    broken = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout())
    with pytest.raises(RuntimeError):
        predict(broken, image)
    assert broken[1].training and torch.is_grad_enabled()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision(precision):
    model, image = nn.Conv2d(3, 6, 3, padding=1), picture(20, 20).float()
    seen: list[torch.dtype] = []
    model.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    half = predict(model, image, precision=precision, output="probabilities")
    full = predict(model, image, output="probabilities")
    assert seen == [{"bf16": torch.bfloat16, "fp16": torch.float16}[precision], torch.float32]
    assert half.dtype == torch.float32 and 0 < (half - full).abs().max() < 0.02
    torch.testing.assert_close(half.sum(0), torch.ones(20, 20), rtol=0, atol=1e-6)
    network = Spy(nn.Conv2d(3, 4, 1).bfloat16())  # a network in half precision gets such inputs
    assert predict(network, image, scales=(1, 2), output="probabilities").dtype == torch.float32
    assert network.inputs[0].dtype == torch.bfloat16


class Returns(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:, :, ::2, ::2], r"returns \(1, 3, 4, 4\) for \(1, 3, 8, 8\); expected logits"),
        (lambda x: (x, x), "returns tuple for"),
        (lambda x: x * math.nan, "logits are not finite: .*, or they overflow in bf16"),
    ],
)
@pytest.mark.parametrize("mode", ["whole", "slide"])
def test_networks_with_wrong_outputs(function, message, mode):
    with pytest.raises(UsageError, match=message):
        predict(Returns(function), picture(8, 8), mode=mode, crop=8, precision="bf16")


@pytest.mark.parametrize(
    "image", [torch.zeros(1, 3, 8, 8), torch.zeros(3, 0, 8), torch.zeros(3, 8, 8, dtype=torch.int64), [[1]]]
)
def test_wrong_images(image):
    with pytest.raises(UsageError, match=r"image is .*; expected"):
        predict(Pointwise(), image)


@pytest.mark.parametrize(
    "changes",
    [
        dict(mode="sliding"), dict(crop=0), dict(crop="ab"), dict(scales=()), dict(scales=(1, -1)),
        dict(scales=(math.inf,)), dict(stride=0), dict(stride=1.5), dict(batch=0), dict(batch=True), dict(memory=0.5),
        dict(precision="fp8"), dict(output="logits"),
    ],
)  # fmt: skip
def test_wrong_settings(changes):
    (name,) = changes
    with pytest.raises(UsageError) as caught:
        predict(Pointwise(), picture(8, 8), **changes)
    assert str(caught.value).startswith(name)


def map_pixels(views, tile) -> int:
    """Pixels of the maps of a tile: its own, and the largest of other scales."""
    sources = [[axis.backward.source_span(span) for axis, span in zip(view, tile, strict=True)] for view in views]
    resized = [math.prod(map(length, spans)) for view, spans in zip(views, sources, strict=True) if view.is_resized]
    return math.prod(map(length, tile)) + max(resized, default=0)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(16, 50), some_scales, st.integers(100, 60_000))
def test_tiles_cover_the_image_once_and_fit(height, width, crop, scales, pixels):
    views = make_views((height, width), scales, (crop, crop), 2 / 3)
    tiles = make_tiles(views, pixels)
    covered = torch.zeros(height, width)
    for rows, columns in itertools.product(*tiles):
        covered[slice(*rows), slice(*columns)] += 1
    assert bool((covered == 1).all())
    side = crop / max(scales) + 3  # a window in the image's own pixels, and what resizing reads beyond
    least = side**2 + (side * max(scales) + 2) ** 2
    assert max(map_pixels(views, tile) for tile in itertools.product(*tiles)) <= max(pixels, least)


MEASURE = """
import resource, sys, torch
from torch import nn
from repgraph.inference import predict

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
assert predict(Many(), image, **settings).shape == (1000, 1200)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs the peak of a process's memory")
def test_memory_is_bounded():
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250 * 2**20 < 1000 * 1200 * 150 * 4 / 2


@pytest.mark.gpu
def test_cuda_agrees_with_the_cpu():
    model, image = Local(dtype=torch.float32), picture(50, 61).float()
    options = dict(mode="slide", crop=24, scales=(0.5, 1.0), flip=True, memory=20_000, output="probabilities")
    expected = predict(model, image, **options)
    found = predict(model.cuda(), image, **options)
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
