"""One image through a detector: what torchvision's own steps give, in any size, and nothing that is not finite."""

import numpy as np
import pytest
import torch
from tests.engine import objects

from repgraph.data.coco import rle
from repgraph.engine.detection import Found, detect
from repgraph.engine.detection import network as module
from repgraph.engine.detection.found import encoded_part
from repgraph.engine.inference.network import NotFinite
from repgraph.errors import UsageError
from repgraph.models import MaskRCNN


@pytest.fixture(scope="module")
def model() -> MaskRCNN:
    return objects.network()


def picture(height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(height))


def assert_same(found: Found, wanted: Found) -> None:
    assert found.size == wanted.size
    for name in ("boxes", "labels", "scores"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name))
    assert [runs.tolist() for runs in found.masks or []] == [runs.tolist() for runs in wanted.masks or []]


@pytest.mark.parametrize("size", [(48, 64), (1, 1), (33, 97), (90, 20)])
def test_bit_for_bit_what_the_network_gives(model, size):
    image = picture(*size)
    found = detect(model, image)
    assert_same(found, Found.of(model([image])[0], size))
    assert 0 < len(found) <= 4 and found.masks is not None and all(runs.sum() == np.prod(size) for runs in found.masks)
    assert_same(detect(model, image.float() / 255), found)


def test_a_large_image_goes_channel_by_channel(model, monkeypatch):
    image = picture(75, 60)
    wanted = detect(model, image)
    monkeypatch.setattr(module, "LARGE", 75 * 60 - 1)
    found = detect(model, image)
    assert np.allclose(found.boxes, wanted.boxes, atol=1e-3) and np.allclose(found.scores, wanted.scores, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 500), (700, 2)])
def test_images_so_narrow_that_torchvision_has_nothing_left_of_them(model, size):
    with pytest.raises(RuntimeError, match="sizes should be greater than 0"):
        model([picture(*size)])
    found = detect(model, picture(*size))
    assert found.size == size and found.masks is not None
    assert (found.boxes >= 0).all() and (found.boxes[:, 2:] <= [size[1], size[0]]).all()
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all() and len(found) > 0
    assert all(rle.decode(runs, *size).shape == size for runs in found.masks)


def test_low_precision(model):
    image = picture(40, 56)
    scores = detect(model, image, precision="bf16").scores
    assert scores.dtype == np.float32 and np.allclose(scores, detect(model, image).scores, atol=0.05)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("backbone.body.conv1", "the backbone"),
        ("rpn.head.cls_logits", "the region proposal network"),
        ("roi_heads.box_predictor.cls_score", "the box head"),
        ("roi_heads.mask_predictor.mask_fcn_logits", "the mask head"),
    ],
)
def test_weights_that_are_not_finite(name, part, model):
    weight = model.detector.get_submodule(name).weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[0].fill_(torch.nan)
        model([picture(40, 56)])  # torchvision says nothing
    with pytest.raises(NotFinite, match=f"{part} gives numbers that are not finite: its weights are not$"):
        detect(model, picture(40, 56))
    with pytest.raises(NotFinite, match=r"its weights are not, or bf16 is too narrow for them: try precision fp32"):
        detect(model, picture(40, 56), precision="bf16")
    with torch.no_grad():
        weight.copy_(before)
    detect(model, picture(40, 56))


def test_modes_are_as_before(model):
    model.train()
    model.detector.backbone.eval()
    before = [module.training for module in model.modules()]
    detect(model, picture(20, 30))
    assert [module.training for module in model.modules()] == before
    model.eval()


@pytest.mark.parametrize("image", [torch.zeros(1, 8, 8), torch.zeros(3, 0, 8), torch.zeros(3, 8), "photo.jpg"])
def test_what_is_no_image(model, image):
    with pytest.raises(UsageError, match=r"an image is .*; a tensor \(3, height, width\) is needed"):
        detect(model, image)
    with pytest.raises(UsageError, match="precision is 'half'; choose one of"):
        detect(model, picture(8, 8), precision="half")


@pytest.mark.parametrize("corner", [(0, 0), (2, 3), (3, 4), (0, 4), (3, 0)])
def test_a_part_of_a_mask_is_encoded_as_the_whole(corner):
    generator = np.random.default_rng(sum(corner))
    for part in (np.ones((3, 4), bool), np.zeros((3, 4), bool), generator.random((3, 4)) > 0.5, np.ones((0, 0), bool)):
        whole = np.zeros((6, 8), bool)
        whole[corner[0] : corner[0] + part.shape[0], corner[1] : corner[1] + part.shape[1]] = part
        runs = encoded_part(part, corner, (6, 8))
        assert np.array_equal(rle.decode(runs, 6, 8), whole)
        assert rle.pack(runs) == rle.pack(rle.encode(whole))
