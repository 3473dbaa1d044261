"""Upsampled logits: their gradient by two products against PyTorch's own."""

import pytest
import torch
import torch.nn.functional as F

from repgraph.models import upsample
from repgraph.models.bilinear import Upsample

SIZES = [
    ((1, 1), (1, 1)),
    ((1, 1), (7, 5)),
    ((5, 7), (40, 56)),
    ((5, 7), (33, 51)),
    ((9, 8), (4, 3)),
    ((3, 11), (3, 64)),
]


def own(x, size):
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last, "strided"], ids=str)
@pytest.mark.parametrize(("small", "large"), SIZES, ids=str)
def test_values_and_gradient_are_pytorchs(small, large, layout):
    torch.manual_seed(0)
    x = torch.randn(2, 3, *small, dtype=torch.float64)
    grad = torch.randn(2, 3, *large, dtype=torch.float64)
    if layout == "strided":
        x, grad = x.transpose(0, 1).contiguous().transpose(0, 1), grad.repeat(1, 1, 1, 2)[..., ::2]
    else:
        x, grad = x.contiguous(memory_format=layout), grad.contiguous(memory_format=layout)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = Upsample.apply(ours, *large)
    assert torch.equal(y, own(theirs, large))
    y.backward(grad)
    own(theirs, large).backward(grad)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-13)


def test_it_is_differentiable_twice_and_under_autocast_stays_in_float32():
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: Upsample.apply(x, 7, 9).square(), x)
    x = torch.randn(2, 5, 3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        Upsample.apply(x, 24, 32).square().sum().backward()
    again = x.detach().clone().requires_grad_()
    own(again, (24, 32)).square().sum().backward()
    torch.testing.assert_close(x.grad, again.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")  # PyTorch's own, of its forward mode
def test_transforms_of_functions():
    x, tangent = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, 5, dtype=torch.float64)

    def ours(x):
        return Upsample.apply(x, 9, 7)

    _, moved = torch.func.jvp(ours, (x,), (tangent,))
    torch.testing.assert_close(moved, own(tangent, (9, 7)))
    each = torch.func.vmap(torch.func.grad(lambda x: ours(x[None]).square().sum()))(x)
    torch.testing.assert_close(each, torch.func.grad(lambda x: own(x, (9, 7)).square().sum())(x))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_on_a_gpu_it_is_the_same_every_time(layout):
    x = torch.randn(4, 21, 40, 40, device="cuda").contiguous(memory_format=layout)
    grad = torch.randn(4, 21, 320, 320, device="cuda").contiguous(memory_format=layout)
    found = []
    for _ in range(3):
        ours = x.clone().requires_grad_()
        upsample(ours, (320, 320)).backward(grad)
        found.append(ours.grad)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    exact = x.double().requires_grad_()
    own(exact, (320, 320)).backward(grad.double())
    torch.testing.assert_close(found[0].double(), exact.grad, rtol=1e-3, atol=1e-3 * float(exact.grad.abs().max()))
