"""Detection in one image: the same as torchvision, for any size; non-finite values are errors."""

import numpy as np
import pytest
import torch
from tests import objects
from tests.visualize.networks import picture

from repgraph.inference import Detections, NotFinite, detect


def assert_same(found: Detections, expected: Detections) -> None:
    for name in ("boxes", "labels", "scores"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    ids = objects.LABELS.ids
    assert found.size == expected.size and found.coco_results(1, ids) == expected.coco_results(1, ids)


@pytest.mark.parametrize("size", [(48, 64), (1, 1), (33, 97), (90, 20)])
def test_results_are_bit_for_bit_the_networks(model, size):
    image = picture(*size)
    found = detect(model, image)
    assert_same(found, Detections.from_output(model([image])[0], size))
    assert 0 < len(found) <= 4
    assert_same(detect(model, image.float() / 255), found)


@pytest.mark.parametrize("size", [(1, 500), (700, 2)])
def test_images_that_are_too_narrow_for_torchvision(model, size):
    with pytest.raises(RuntimeError, match="sizes should be greater than 0"):
        model([picture(*size)])
    found = detect(model, picture(*size))
    assert found.size == size and len(found) > 0
    assert (found.boxes >= 0).all() and (found.boxes[:, 2:] <= [size[1], size[0]]).all()
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()


def test_low_precision_and_modes(model):
    image = picture(40, 56)
    model.train()
    model.detector.backbone.eval()
    before = [module.training for module in model.modules()]
    scores = detect(model, image, precision="bf16").scores
    assert [module.training for module in model.modules()] == before
    model.eval()
    assert scores.dtype == np.float32 and np.allclose(scores, detect(model, image).scores, atol=0.05)


@pytest.mark.parametrize(
    "name",
    [
        "backbone.body.conv1",
        "rpn.head.cls_logits",
        "roi_heads.box_predictor.cls_score",
        "roi_heads.mask_predictor.mask_fcn_logits",
    ],
)
def test_weights_that_are_not_finite(name, model):
    weight = model.detector.get_submodule(name).weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[0].fill_(torch.nan)
        model([picture(40, 56)])  # torchvision does not notice
    with pytest.raises(NotFinite, match=r"outputs are not finite: its weights or the image are not finite$"):
        detect(model, picture(40, 56))
    with torch.no_grad():
        weight.copy_(before)
    detect(model, picture(40, 56))
