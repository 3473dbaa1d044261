"""Coordinates stay exact in half precision."""

import torch

from repgraph.models import MaskRCNN


def anchors(model):
    """Those of an image 400 pixels wide, and the boxes that become of them, under autocast."""
    found = {}
    rpn = model.detector.rpn
    seen = [
        rpn.anchor_generator.register_forward_hook(lambda module, inputs, output: found.update(anchors=output[0])),
        rpn.register_forward_hook(lambda module, inputs, output: found.update(proposals=output[0][0])),
    ]
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        model.eval()([torch.zeros(3, 32, 400)])
    for hook in seen:
        hook.remove()
    return found


def test_anchors_and_boxes_are_in_float32():
    torch.manual_seed(0)
    model = MaskRCNN(2, "resnet18", min_size=64, max_size=400)
    fine = anchors(model)
    assert fine["anchors"].dtype == fine["proposals"].dtype == torch.float32
    for part in model.detector.modules():
        part._forward_hooks.clear()
    rough = anchors(model)
    assert rough["anchors"].dtype == rough["proposals"].dtype == torch.bfloat16  # what torchvision does by itself
    assert float((fine["anchors"] - rough["anchors"].float()).abs().max()) >= 1


def test_nothing_changes_in_float32():
    torch.manual_seed(0)
    model, image = MaskRCNN(2, "resnet18", min_size=64).eval(), torch.rand(3, 48, 64)
    with_hooks = model([image])[0]
    for part in model.detector.modules():
        part._forward_hooks.clear()
    without = model([image])[0]
    assert all(torch.equal(with_hooks[name], without[name]) for name in without)
