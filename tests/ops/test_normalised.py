"""Fused batch normalisation of a product with a residual, and with ReLU, against float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.ops.problem import DEVICE, FORMATS, LAST, as_convolution, conv, distance, normal
from torch import Tensor

from repgraph.ops.normalised import fold_running, moments, normalised_product, normalised_relu, running_relu

EPS, MOMENTUM = 1e-5, 0.3


def mixed(*shape: int, dtype=torch.float32, seed: int = 0, device=DEVICE) -> Tensor:
    """Return a channels-last map whose channels are correlated and have non-zero means."""
    own = normal(shape[1], shape[1], dtype=torch.float64, seed=seed + 1, device=device) / shape[1] ** 0.5
    mean = normal(shape[1], 1, 1, dtype=torch.float64, seed=seed + 2, device=device)
    t = torch.einsum("oc,bchw->bohw", own, normal(*shape, dtype=torch.float64, seed=seed, device=device)) + mean
    return t.to(dtype).contiguous(memory_format=LAST)


def batch_norm(z: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    mean = z.mean((0, 2, 3), keepdim=True)
    y = (z - mean) / ((z - mean).square().mean((0, 2, 3), keepdim=True) + EPS).sqrt()
    return y * gamma[:, None, None] + beta[:, None, None]


class TestMoments:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("memory_format", FORMATS, ids=str)
    def test_mean_and_covariance(self, memory_format, dtype: torch.dtype) -> None:
        a = mixed(3, 5, 4, 7, dtype=dtype).contiguous(memory_format=memory_format)
        mean, covariance = moments(a)
        rows = a.double().permute(1, 0, 2, 3).flatten(1)
        assert mean.dtype == covariance.dtype == torch.promote_types(dtype, torch.float32)
        tolerance = 16 * torch.finfo(mean.dtype).eps
        assert distance(mean, rows.mean(1)) < tolerance
        assert distance(covariance, torch.cov(rows, correction=0)) < tolerance

    def test_gradients(self) -> None:
        a = mixed(2, 3, 2, 3, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(moments, a)
        assert torch.autograd.gradcheck(moments, a.detach().contiguous().requires_grad_())

    @pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck reads it
    def test_opcheck(self) -> None:
        for memory_format in FORMATS:
            a = mixed(2, 3, 4, 5).contiguous(memory_format=memory_format).requires_grad_()
            torch.library.opcheck(torch.ops.repgraph.moments.default, (a,))


# dtype of the map, whether the weights are in float32, memory format of the gradient
KINDS = [
    (torch.float32, True, LAST),
    (torch.float16, True, torch.contiguous_format),
    (torch.float16, False, LAST),
    pytest.param(torch.bfloat16, True, LAST, marks=pytest.mark.gpu),  # not in the interpreter
    pytest.param(torch.bfloat16, False, torch.contiguous_format, marks=pytest.mark.gpu),
]
PRODUCTS = [(2, 8, 24, 3, 5), (1, 40, 136, 2, 3), (1, 8, 8, 1, 5), (7, 72, 16, 1, 1)]  # B, C', C, H, W


def parameters(channels: int, dtype: torch.dtype) -> list[Tensor]:
    return [normal(channels, dtype=dtype, seed=5) + 1, normal(channels, dtype=dtype, seed=6)]


def fresh(channels: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return gamma, beta and running statistics of a new batch normalisation."""
    ones, zeros = torch.ones(channels, device=DEVICE), torch.zeros(channels, device=DEVICE)
    return ones, zeros, (zeros.clone(), ones.clone())


def assert_near_plain(functions, tensors: list[Tensor], cotangent: Tensor, slack: float = 1.0) -> None:
    """Assert that results and gradients have at most the error of plain PyTorch plus a few roundings.

    ``functions`` are the one tested, plain PyTorch in the same dtype, and the definition, which is run in float64.
    """
    found = []
    for function, exact in zip(functions, (False, False, True), strict=True):
        leaves = [(t.double() if exact else t).detach().requires_grad_() for t in tensors]
        y = function(*leaves)
        found.append([y, *torch.autograd.grad(y, leaves, cotangent.to(y.dtype))])
    for index, (mine, theirs, true) in enumerate(zip(*found, strict=True)):
        assert mine.shape == true.shape and mine.dtype == theirs.dtype
        rounding = 8 * torch.finfo(torch.float32).eps + (2 * torch.finfo(cotangent.dtype).eps)
        size = 1e-3  # of terms, for results in which they cancel
        error, allowed = distance(mine, true, size), slack * distance(theirs, true, size) + rounding
        assert error <= allowed, f"result {index}: error {error:.2e}, allowed {allowed:.2e}"


@pytest.mark.parametrize(("dtype", "wide_weights", "memory_format"), KINDS, ids=str)
@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
def test_normalised_product(kernels, poisoned, sizes, dtype, wide_weights: bool, memory_format) -> None:
    relu = sizes is PRODUCTS[0] and dtype == torch.float32  # in half precision some signs differ
    batch, inner, channels, height, width = sizes
    wide = torch.float32 if wide_weights else dtype
    x = mixed(batch, channels, height, width, dtype=dtype, seed=1)
    a = mixed(batch, inner, height, width, dtype=dtype, seed=2)
    weight = normal(channels, inner, dtype=wide)
    gamma, beta = parameters(channels, wide)
    cotangent = normal(batch, channels, height, width, dtype=dtype, seed=3).contiguous(memory_format=memory_format)
    got = [torch.zeros(channels, device=DEVICE), torch.ones(channels, device=DEVICE)]
    want = [t.clone() for t in got]

    def ours(x, a, weight, gamma, beta):
        return normalised_product(x, a, weight, gamma, beta, tuple(got), EPS, MOMENTUM, relu)

    def plain(x, a, weight, gamma, beta):
        z = conv(a, weight.to(dtype))
        y = x + F.batch_norm(z.float(), None, None, gamma.float(), beta.float(), True, 0.0, EPS).to(dtype)
        return y.relu() if relu else y

    def definition(x, a, weight, gamma, beta):
        z = as_convolution(a, weight)
        F.batch_norm(z.detach().float(), *want, None, None, True, MOMENTUM, EPS)
        y = x + batch_norm(z, gamma, beta)
        return y.relu() if relu else y

    assert_near_plain((ours, plain, definition), [x, a, weight, gamma, beta], cotangent, slack=2.0)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_large_mean_and_small_variance(kernels) -> None:
    x, a, weight = torch.zeros(1, 8, 9, 15, device=DEVICE), 100 + 0.1 * mixed(1, 4, 9, 15), normal(8, 4)
    x, a = (t.contiguous(memory_format=LAST) for t in (x, a))
    want = batch_norm(as_convolution(a, weight), *fresh(8)[:2])
    plain = F.batch_norm(conv(a, weight), None, None, None, None, True)
    error = distance(normalised_product(x, a, weight, *fresh(8), EPS, 0.1, False), want)
    assert error < 2 * distance(plain, want) + 1e-5


RELUS = [
    (1, 3, 1, 2),
    (2, 1, 1, 1),
    (2, 8, 3, 5),
    *(pytest.param(s, marks=pytest.mark.slow) for s in ((1, 300, 1, 3), (1, 24, 3, 43))),
]


@pytest.mark.parametrize(("dtype", "_", "memory_format"), KINDS, ids=str)
@pytest.mark.parametrize("sizes", RELUS, ids=str)
def test_normalised_relu(kernels, poisoned, sizes: tuple, dtype, _, memory_format) -> None:
    x = mixed(*sizes, dtype=dtype)
    gamma, beta = parameters(sizes[1], torch.float32)
    cotangent = normal(*sizes, dtype=dtype, seed=3).contiguous(memory_format=memory_format)
    got = [torch.zeros(sizes[1], device=DEVICE), torch.ones(sizes[1], device=DEVICE)]
    want = [t.clone() for t in got]

    def ours(x, gamma, beta):
        return normalised_relu(x, gamma, beta, tuple(got), EPS, MOMENTUM)

    def plain(x, gamma, beta):
        return F.batch_norm(x.float(), None, None, gamma, beta, True, 0.0, EPS).to(dtype).relu()

    def definition(x, gamma, beta):
        F.batch_norm(x.detach().float(), *want, None, None, True, MOMENTUM, EPS)
        return batch_norm(x, gamma, beta).relu()

    assert_near_plain((ours, plain, definition), [x, gamma, beta], cotangent, slack=2.0)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", [(2, 8, 3, 5), (1, 3, 1, 2)], ids=str)
def test_running_statistics(kernels, poisoned, sizes: tuple) -> None:
    batch, channels, height, width = sizes
    x, gamma_beta = mixed(*sizes), parameters(channels, torch.float32)
    running = normal(channels), normal(channels).square() + 0.1
    want = F.batch_norm(x.double(), *(t.double() for t in (*running, *gamma_beta)), False, 0.0, EPS)
    assert distance(running_relu(x, *gamma_beta, running, EPS), want.relu()) < 1e-6
    weight = normal(channels, 5)
    a = mixed(batch, 5, height, width)
    folded, shift = fold_running(weight, *gamma_beta, running, EPS)
    z = as_convolution(a, weight)
    want = F.batch_norm(z, *(t.double() for t in (*running, *gamma_beta)), False, 0.0, EPS)
    assert distance(as_convolution(a, folded, shift), want) < 1e-6


def test_normalised_relu_of_a_large_mean(kernels) -> None:
    x = (1000 + mixed(1, 8, 5, 7)).contiguous(memory_format=LAST)
    want = batch_norm(x.double(), *fresh(8)[:2]).relu()
    plain = F.batch_norm(x, None, None, None, None, True).relu()
    error = distance(normalised_relu(x, *fresh(8), EPS, 0.1), want)
    assert error < 2 * distance(plain, want) + 1e-5


@pytest.mark.slow
def test_normalised_relu_of_constants_and_of_nan(kernels) -> None:
    x = mixed(1, 4, 5, 7)
    x[:, 1] = 3.0
    y = normalised_relu(x, *fresh(4), EPS, 0.1)
    assert (y[:, 1].abs() < 1e-3).all()
    x[0, 2, 4, 6] = math.nan
    y = normalised_relu(x, *fresh(4), EPS, 0.1)
    assert y[:, 2].isnan().all() and y[:, [0, 1, 3]].isfinite().all()


def test_second_order_is_an_error(kernels) -> None:
    x, a, weight = mixed(1, 8, 3, 5).requires_grad_(), mixed(1, 4, 3, 5), normal(8, 4)
    for y in (
        normalised_product(x, a, weight.requires_grad_(), *fresh(8), EPS, 0.1, False),
        normalised_relu(x, *fresh(8), EPS, 0.1),
    ):
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()
