"""The way through a bottleneck layer that training takes on CUDA, all of its kernels together, against float64."""

import copy

import pytest
import torch
from tests.ops.problem import DEVICE, distance, normal
from torch import Tensor, nn

from repgraph.layers import BottleneckRepGraph, batch_norm
from repgraph.ops import product
from repgraph.ops.backends import why_not

LAST = torch.channels_last


def gradients(layer: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    x = x.detach().requires_grad_()
    y = layer(x)
    names = ("x", *dict(layer.named_parameters()))
    return dict(zip(("y", *names), (y, *torch.autograd.grad(y, [x, *layer.parameters()], grad)), strict=True))


@pytest.mark.skipif(why_not("triton", DEVICE) is not None, reason="no Triton")
def test_training_step(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":  # in the interpreter, whose kernels take maps on the CPU
        for module in (product, batch_norm):
            monkeypatch.setattr(module, "fits", lambda *maps: all(map(_dense, maps)))
    torch.manual_seed(0)
    layer = BottleneckRepGraph(32, 16, nodes=5, radius=2.0, groups=2, final_act=False, backend="triton")
    with torch.no_grad():
        layer.offset.weight.normal_(0, 0.1)
        layer.expand_norm.weight.uniform_(0.5, 1.5)
        layer.expand_norm.bias.normal_()
    half = layer.to(DEVICE, torch.float16)
    exact = copy.deepcopy(half).double()
    exact.backend = "reference"
    x, grad = (normal(2, 32, 5, 6, dtype=torch.float16, seed=s).contiguous(memory_format=LAST) for s in (1, 2))
    forked = []
    apply = product._WideFork.apply
    monkeypatch.setattr(product._WideFork, "apply", lambda *a: forked.append(1) or apply(*a))
    got, want = gradients(half, x, grad), gradients(exact, x.double(), grad.double())
    assert forked == [1]
    for name, true in want.items():
        assert got[name].dtype == torch.float16 and distance(got[name], true) < 3e-3, name
    for name, buffer in half.named_buffers():
        torch.testing.assert_close(buffer.double(), exact.get_buffer(name).double(), rtol=5e-3, atol=5e-3, msg=name)


def _dense(t: Tensor) -> bool:
    return t.dtype != torch.float64 and t.is_contiguous(memory_format=LAST if t.dim() == 4 else torch.contiguous_format)
