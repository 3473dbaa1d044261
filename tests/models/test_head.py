"""The heads by themselves: parts, initialisation, the way to the image's size."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from tests.models.networks import images, one_thread, stir  # noqa: F401
from torch import nn

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph
from repgraph.models import AuxiliaryHead, Control, SegmentationHead, upsample
from repgraph.models.context import make


def test_a_head_fits_any_encoder() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 24, 5, stride=4), nn.ReLU())
    model = nn.Sequential(encoder, SegmentationHead(24, 7, channels=16))
    logits = model(images(33, 47, batch=2))
    assert logits.shape == (2, 7, 8, 11)
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_a_head_is_its_parts() -> None:
    head, x = stir(SegmentationHead(8, 3, channels=6, dropout=0.5)).eval(), torch.randn(1, 8, 9, 11)
    feature = torch.relu(head.norm(F.conv2d(x, head.project.weight, padding=1)))
    want = F.conv2d(head.context(feature), head.classifier.weight, head.classifier.bias)
    torch.testing.assert_close(head(x), want, rtol=1e-4, atol=1e-5)
    assert not torch.equal(head.train()(x), head(x))  # dropout


def test_the_auxiliary_head_is_its_parts() -> None:
    head, x = stir(AuxiliaryHead(8, 3, channels=6)).eval(), torch.randn(1, 8, 9, 11)
    feature = torch.relu(head.norm(F.conv2d(x, head.project.weight, padding=1)))
    torch.testing.assert_close(head(x), F.conv2d(feature, head.classifier.weight, head.classifier.bias))


def test_the_control_is_the_bottleneck_that_looks_nowhere_else() -> None:
    """With all nodes on the query the attention gives the feature itself."""
    for fusion, norm in (("sum", True), ("concat", True), ("concat", False)):
        control = stir(Control(8, fusion=fusion, norm_expand=norm)).eval()
        points = [(0.0, 0.0), (0.0, 0.0)]
        layer = BottleneckRepGraph(8, nodes=2, fusion=fusion, norm_expand=norm, spread=points).eval()
        assert set(layer.state_dict()) - set(control.state_dict()) == {"offset.weight", "offset.bias"}
        layer.load_state_dict(control.state_dict(), strict=False)
        x = torch.randn(2, 8, 7, 5)
        assert control.out_channels == layer.out_channels == control(x).shape[1]
        torch.testing.assert_close(control(x), layer(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", ["repgraph", "control"])
def test_new_convolutions_start_by_kaiming_and_offsets_on_their_spread(context: str) -> None:
    torch.manual_seed(0)
    head = SegmentationHead(64, 50, channels=64, context=context)
    for convolution in (head.project, head.context.reduce, head.context.expand, head.classifier):
        inputs = convolution.weight[0].numel()
        assert abs(convolution.weight.std().item() / math.sqrt(2 / inputs) - 1) < 0.1
    assert not head.classifier.bias.any()
    if context == "repgraph":
        fresh = BottleneckRepGraph(64, radius=8.0)
        assert torch.equal(head.context.offset.bias, fresh.offset.bias)
        assert not head.context.offset.weight.any()


def test_what_suits_a_head() -> None:
    bottleneck, simple, control, paper = (make(name, 8) for name in ("repgraph", "simple", "control", "paper"))
    assert bottleneck.node_view == simple.node_view == 15 and paper.node_view == 1
    assert bottleneck.spread.extent == simple.spread.extent == 8.0 and paper.spread.name == "default"
    kinds = [type(layer.expand_norm) for layer in (bottleneck, control, paper)]
    assert kinds == [torch.nn.Identity, torch.nn.Identity, torch.nn.BatchNorm2d]
    assert make("repgraph", 8, layer_options={"node_view": 3, "norm_expand": True, "spread": "grid"}).node_view == 3


def test_upsampling_is_bilinear_between_centres() -> None:
    logits = torch.randn(2, 3, 4, 5)
    want = F.interpolate(logits.double(), (33, 17), mode="bilinear", align_corners=False)
    torch.testing.assert_close(upsample(logits, (33, 17)).double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(upsample(logits, (4, 5)), logits)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = logits.to(dtype)
        assert torch.equal(upsample(rounded, (33, 17)), upsample(rounded.float(), (33, 17)))
    assert upsample(logits.double(), (33, 17)).dtype == torch.float64
    last = upsample(logits.to(memory_format=torch.channels_last), (33, 17))
    assert last.is_contiguous(memory_format=torch.channels_last)


def test_contexts_know_their_channels() -> None:
    for name, out in dict(repgraph=16, simple=16, non_local=16, dual=8, control=16, none=8).items():
        layer = make(name, 8)
        assert layer.out_channels == layer(torch.randn(2, 8, 3, 4)).shape[1] == out
    assert make("repgraph", 8, fusion="sum").out_channels == 8


@pytest.mark.parametrize("dropout", [-0.1, 1, "0.1", True])
def test_dropout_is_checked(dropout: object) -> None:
    with pytest.raises(UsageError, match="dropout is"):
        AuxiliaryHead(8, 3, dropout=dropout)


def test_numbers_are_checked() -> None:
    with pytest.raises(ValueError, match="classes is 0; at least 1"):
        SegmentationHead(8, 0)
    with pytest.raises(TypeError, match=r"in_channels is 8\.0; a whole number"):
        SegmentationHead(8.0, 3)
    with pytest.raises(ValueError, match=r"has shape \(1, 9, 4, 4\); \(B, 8, H, W\)"):
        SegmentationHead(8, 3, channels=4)(torch.zeros(1, 9, 4, 4))


def test_copies_of_a_head() -> None:
    head, x = stir(SegmentationHead(8, 3, channels=6)).eval(), torch.randn(1, 8, 9, 11)
    assert torch.equal(copy.deepcopy(head)(x), head(x))
