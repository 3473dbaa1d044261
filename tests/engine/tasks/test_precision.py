"""Coordinates stay exact in half precision."""

import pytest
import torch
from tests.engine.tasks.shapes import shrink

from repgraph.engine.tasks.precision import keep_coordinates
from repgraph.models import MaskRCNN


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return shrink(MaskRCNN(2, "resnet18", min_size=64, max_size=600))


def anchors(model):
    """Those of an image 600 pixels wide, and the boxes that become of them, under autocast."""
    found = {}
    rpn = model.detector.rpn
    seen = [
        rpn.anchor_generator.register_forward_hook(lambda module, inputs, output: found.update(anchors=output[0])),
        rpn.register_forward_hook(lambda module, inputs, output: found.update(proposals=output[0][0])),
    ]
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model.eval()([torch.zeros(3, 32, 600)])
    for hook in seen:
        hook.remove()
    return found


def test_anchors_and_boxes_are_in_float32(model):
    rough = anchors(model)
    assert rough["anchors"].dtype == rough["proposals"].dtype == torch.bfloat16  # what torchvision does by itself
    keep_coordinates(model)
    keep_coordinates(model)
    fine = anchors(model)
    assert fine["anchors"].dtype == fine["proposals"].dtype == torch.float32
    assert float((fine["anchors"] - rough["anchors"].float()).abs().max()) >= 1
    assert len(model.detector.backbone._forward_hooks) == 1


def test_nothing_changes_in_float32():
    torch.manual_seed(0)
    first = shrink(MaskRCNN(2, "resnet18", min_size=64)).eval()
    image = torch.rand(3, 48, 64)
    before = first([image])[0]
    keep_coordinates(first)
    after = first([image])[0]
    assert all(torch.equal(before[name], after[name]) for name in before)
