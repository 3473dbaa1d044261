"""Channel products as the layers call them, on any device: by PyTorch's products or by kernels."""

import pytest
import torch
from tests.ops.problem import FORMATS, LAST, LAYOUTS, as_convolution, assert_as_good_as, conv, distance, normal
from torch import Tensor

from repgraph.ops.backends import transformed
from repgraph.ops.formats import as_rows, is_channels_last
from repgraph.ops.product import fits, fork, product, relu_product, residual_fits, residual_product, wide_product

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HALF = [torch.float16, torch.bfloat16]
pytestmark = pytest.mark.usefixtures("convolutions_in_float32")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 6, 1, 1), (1, 1, 3, 4), (0, 6, 3, 3)], ids=str)
def test_product_is_the_convolution(shape: tuple, layout: str, bias: bool) -> None:
    a = LAYOUTS[layout](normal(*shape, dtype=torch.float64)).requires_grad_()
    weight = normal(4, shape[1], dtype=torch.float64).requires_grad_()
    shift = normal(4, dtype=torch.float64).requires_grad_() if bias else None
    got, want = product(a, weight, shift), as_convolution(a, weight, shift)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    if a.is_contiguous(memory_format=LAST) or a.is_contiguous():
        assert got.is_contiguous(memory_format=LAST if is_channels_last(a) else torch.contiguous_format)
    leaves = [t for t in (a, weight, shift) if t is not None]
    cotangent = torch.randn_like(got)
    for one, other in zip(*(torch.autograd.grad(y, leaves, cotangent) for y in (got, want)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_residual_product(dtype: torch.dtype, memory_format, device: str) -> None:
    kind = dict(dtype=dtype, device=device)
    x, a = (normal(2, channels, 5, 7, **kind).contiguous(memory_format=memory_format) for channels in (24, 16))
    weight = normal(24, 16, **kind)
    for bias in (None, normal(24, **kind), normal(24, device=device)):
        got = residual_product(x, a, weight, bias)
        want = x.double() + as_convolution(a, weight, bias)
        assert_as_good_as(got, x + conv(a, weight, bias), want)
        assert got.is_contiguous(memory_format=memory_format)
        got = residual_product(x, a, weight, bias, relu=True)
        assert_as_good_as(got, (x + conv(a, weight, bias)).relu(), want.relu())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("features", [torch.float32, torch.float64, *HALF], ids=str)
@pytest.mark.parametrize("weights", ["float32", "same"])
def test_wide_product_is_in_float32(features: torch.dtype, weights: str, memory_format, device: str) -> None:
    wide = torch.promote_types(features, torch.float32)
    dtype = features if weights == "same" else wide
    a = normal(2, 16, 5, 7, dtype=features, device=device).contiguous(memory_format=memory_format)
    weight, bias = normal(6, 16, dtype=dtype, device=device), 20 * normal(6, dtype=dtype, device=device)
    for autocast in (False, True):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            got = wide_product(a, weight, bias)
        assert got.dtype == wide
        assert distance(got, as_convolution(a, weight, bias)) < 8 * torch.finfo(wide).eps


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
def test_relu_product(dtype: torch.dtype, memory_format, device: str) -> None:
    a = normal(2, 16, 5, 7, dtype=dtype, device=device).contiguous(memory_format=memory_format)
    weight, bias = normal(24, 16, dtype=dtype, device=device), normal(24, dtype=dtype, device=device)
    got = relu_product(a, weight, bias)
    assert_as_good_as(got, conv(a, weight, bias).relu(), as_convolution(a, weight, bias).relu())
    assert got.is_contiguous(memory_format=memory_format) and (got == 0).any()
    if dtype != torch.float64:
        with torch.autocast(device, torch.bfloat16):
            assert relu_product(a.float(), weight.float(), bias.float()).dtype == torch.bfloat16


class TestFork:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_gradients(self, layout: str, device: str) -> None:
        x = LAYOUTS[layout](normal(2, 6, 5, 7, dtype=torch.float64, device=device)).requires_grad_()
        weight = normal(4, 6, dtype=torch.float64, device=device).requires_grad_()
        feature, same = fork(x, weight)
        want = as_convolution(x, weight)
        torch.testing.assert_close(feature, want, rtol=1e-12, atol=1e-12)
        assert torch.equal(same, x)
        got = torch.autograd.grad(feature.pow(3).sum() + same.pow(2).sum(), (x, weight))
        for one, other in zip(got, torch.autograd.grad(want.pow(3).sum() + x.pow(2).sum(), (x, weight)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
    @pytest.mark.parametrize("memory_format", FORMATS, ids=str)
    @pytest.mark.parametrize("batch", [1, 2])
    def test_low_precision(self, batch: int, dtype: torch.dtype, memory_format, device: str) -> None:
        """The gradients come in either format."""
        kind = dict(dtype=dtype, device=device)
        x = normal(batch, 24, 5, 7, **kind).contiguous(memory_format=LAST).requires_grad_()
        weight = normal(16, 24, **kind).requires_grad_()
        grads = [normal(batch, c, 5, 7, **kind).contiguous(memory_format=memory_format) for c in (16, 24)]
        got = torch.autograd.grad(fork(x, weight), (x, weight), grads)
        plain = torch.autograd.grad((conv(x, weight), x.view_as(x)), (x, weight), grads)
        exact = [t.detach().double().requires_grad_() for t in (x, weight)]
        both = (as_convolution(*exact), exact[0].view_as(exact[0]))
        want = torch.autograd.grad(both, exact, [t.double() for t in grads])
        for mine, theirs, true in zip(got, plain, want, strict=True):
            assert_as_good_as(mine, theirs, true)

    def test_second_order(self) -> None:
        x, weight = (normal(*s, dtype=torch.float64, device="cpu").requires_grad_() for s in ((1, 3, 2, 2), (2, 3)))
        assert torch.autograd.gradgradcheck(lambda x, w: [t.tanh() for t in fork(x, w)], (x, weight))

    def test_the_strides_of_a_single_image_are_kept(self) -> None:
        x = normal(1, 6, 5, 7, device="cpu").contiguous(memory_format=LAST).requires_grad_()
        _, same = fork(x, normal(4, 6, device="cpu"))
        assert same.stride() == x.stride()
        assert torch.cat((same, same), 1).is_contiguous(memory_format=LAST)


@pytest.mark.gpu
def test_what_the_kernels_support() -> None:
    t = torch.randn(2, 8, 4, 5, device="cuda").contiguous(memory_format=LAST)
    half = t.half()
    assert fits(t) and fits(half) and fits(as_rows(t)) and residual_fits(t, t) and residual_fits(half, half)
    assert not fits(t.cpu()) and not fits(t.contiguous()) and not fits(t.double()) and not fits(t[:0])
    assert not fits(t[:, :, ::2])
    assert not residual_fits(t, half) and not residual_fits(half[:, :4].contiguous(memory_format=LAST), half)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_products_inside_of_vmap(memory_format, device: str) -> None:
    """Strides of tensors are not available there."""
    x, a = (normal(6, c, 4, 5, device=device).contiguous(memory_format=memory_format) for c in (12, 8))
    weight, bias = normal(12, 8, device=device), normal(12, device=device)

    def both(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        assert transformed()
        return residual_product(x, a, weight, bias), wide_product(a, weight, bias)

    got = torch.vmap(both)(*(t.unflatten(0, (3, 2)) for t in (x, a)))
    wide = as_convolution(a, weight, bias)
    for mine, want in zip(got, (x + wide, wide), strict=True):
        assert distance(mine.flatten(0, 1), want) < 1e-6
    assert not transformed()
