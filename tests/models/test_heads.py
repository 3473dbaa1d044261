"""Heads: their parts, initialization and context layers, and upsampling of logits."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.models.networks import images, one_thread, stir  # noqa: F401
from torch import nn

from repgraph.layers import BottleneckRepGraph
from repgraph.models import AuxiliaryHead, Control, SegmentationHead, upsample
from repgraph.models.context import make_context
from repgraph.models.heads import Upsample


def test_heads_are_their_parts() -> None:
    x = torch.randn(1, 8, 9, 11)
    for head in (SegmentationHead(8, 3, channels=6, dropout=0.5), AuxiliaryHead(8, 3, channels=6, dropout=0.5)):
        stir(head).eval()
        feature = torch.relu(head.norm(F.conv2d(x, head.project.weight, padding=1)))
        feature = head.context(feature) if isinstance(head, SegmentationHead) else feature
        want = F.conv2d(feature, head.classifier.weight, head.classifier.bias)
        torch.testing.assert_close(head(x), want, rtol=1e-4, atol=1e-5)
        assert not torch.equal(head.train()(x), head(x))  # dropout


def test_the_control_is_the_bottleneck_with_all_nodes_on_the_query() -> None:
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
def test_initialisation(context: str) -> None:
    torch.manual_seed(0)
    head = SegmentationHead(64, 50, channels=64, context=context)
    for convolution in (head.project, head.context.reduce, head.context.expand, head.classifier):
        inputs = convolution.weight[0].numel()
        assert abs(convolution.weight.std().item() / math.sqrt(2 / inputs) - 1) < 0.1  # Kaiming
    assert not head.classifier.bias.any()
    if context == "repgraph":
        assert torch.equal(head.context.offset.bias, BottleneckRepGraph(64, radius=8.0).offset.bias)
        assert not head.context.offset.weight.any()


def test_context_layers_of_a_head() -> None:
    for name, out in dict(repgraph=16, simple=16, non_local=16, dual=8, control=16, none=8).items():
        layer = make_context(name, 8)
        assert layer.out_channels == layer(torch.randn(2, 8, 3, 4)).shape[1] == out
    assert make_context("repgraph", 8, fusion="sum").out_channels == 8
    bottleneck, simple, control, paper = (make_context(name, 8) for name in ("repgraph", "simple", "control", "paper"))
    assert bottleneck.node_view == simple.node_view == 15 and paper.node_view == 1
    assert (bottleneck.scale, simple.scale, paper.scale) == (1 / 4, 1 / 2, 1.0)
    assert bottleneck.spread.extent == simple.spread.extent == 8.0 and paper.spread.name == "default"
    kinds = [type(layer.expand_norm) for layer in (bottleneck, control, paper)]
    assert kinds == [nn.Identity, nn.Identity, nn.BatchNorm2d]
    layer = make_context("repgraph", 8, options={"node_view": 3, "norm_expand": True, "spread": "grid"})
    assert layer.node_view == 3 and layer.spread.name == "grid" and type(layer.expand_norm) is nn.BatchNorm2d


def test_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="classes is 0; expected a positive integer"):
        SegmentationHead(8, 0)
    with pytest.raises(ValueError, match=r"has shape \(1, 9, 4, 4\); expected \(B, 8, H, W\)"):
        SegmentationHead(8, 3, channels=4)(torch.zeros(1, 9, 4, 4))


def interpolate(x, size):
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def test_upsampling() -> None:
    logits = torch.randn(2, 3, 4, 5)
    want = interpolate(logits.double(), (33, 17))
    torch.testing.assert_close(upsample(logits, (33, 17)).double(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(upsample(logits, (4, 5)), logits)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = logits.to(dtype)
        assert torch.equal(upsample(rounded, (33, 17)), upsample(rounded.float(), (33, 17)))
    last = upsample(logits.to(memory_format=torch.channels_last), (33, 17))
    assert last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("small, large", [((1, 1), (7, 5)), ((5, 7), (33, 51)), ((9, 8), (4, 3))], ids=str)
def test_gradient_of_upsampling(small, large) -> None:
    x = torch.randn(2, 3, *small, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(2, 3, *large, dtype=torch.float64).to(memory_format=torch.channels_last)
    found = [(y, *torch.autograd.grad(y, x, grad)) for y in (Upsample.apply(x, *large), interpolate(x, large))]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_upsampling_on_a_gpu_is_deterministic(layout) -> None:
    x = torch.randn(4, 21, 40, 40, device="cuda").contiguous(memory_format=layout)
    grad = torch.randn(4, 21, 320, 320, device="cuda").contiguous(memory_format=layout)
    found = []
    for _ in range(3):
        ours = x.clone().requires_grad_()
        upsample(ours, (320, 320)).backward(grad)
        found.append(ours.grad)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    exact = x.double().requires_grad_()
    interpolate(exact, (320, 320)).backward(grad.double())
    torch.testing.assert_close(found[0].double(), exact.grad, rtol=1e-3, atol=1e-3 * float(exact.grad.abs().max()))
