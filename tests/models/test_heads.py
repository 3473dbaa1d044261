"""Heads: their parts, initialization and context layers, and upsampling of logits."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.models.networks import images, stir  # noqa: F401

from repgraph.layers import BottleneckRepGraph
from repgraph.models import Control, SegmentationHead, upsample
from repgraph.ops.resize import _Resize


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
    x = torch.randn(1, 64, 5, 7)
    assert not torch.equal(head(x), head(x)) and torch.equal(head.eval()(x), head(x))  # dropout, in training only
    if context == "repgraph":
        assert torch.equal(head.context.offset.bias, BottleneckRepGraph(64, radius=12.0).offset.bias)
        assert not head.context.offset.weight.any()


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
    results = _Resize.apply(x, *large, x.dtype, False), interpolate(x, large)
    found = [(y, *torch.autograd.grad(y, x, grad)) for y in results]
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
