"""A product, batch normalisation and what is added, in one; and ReLU of a batch normalisation: against float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.ops.problem import DEVICE, distance, normal
from torch import Tensor

from repgraph.ops.normalised import moments, normalised_fits, normalised_product, normalised_relu

LAST = torch.channels_last
FORMATS = (torch.contiguous_format, LAST)
EPS, MOMENTUM = 1e-5, 0.3
BFLOAT = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)  # the interpreter has no product of that


def mixed(*shape: int, dtype=torch.float32, seed: int = 0, device=DEVICE) -> Tensor:
    """A channels-last map whose channels have means and are correlated."""
    own = normal(shape[1], shape[1], dtype=torch.float64, seed=seed + 1, device=device) / shape[1] ** 0.5
    mean = normal(shape[1], 1, 1, dtype=torch.float64, seed=seed + 2, device=device)
    t = torch.einsum("oc,bchw->bohw", own, normal(*shape, dtype=torch.float64, seed=seed, device=device)) + mean
    return t.to(dtype).contiguous(memory_format=LAST)


def batch_norm(z: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """By its definition."""
    mean = z.mean((0, 2, 3), keepdim=True)
    y = (z - mean) / ((z - mean).square().mean((0, 2, 3), keepdim=True) + EPS).sqrt()
    y = y if gamma is None else y * gamma[:, None, None]
    return y if beta is None else y + beta[:, None, None]


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

    @pytest.mark.parametrize("mean", [30.0, 1000.0])
    def test_a_large_mean_does_not_hide_a_small_variance(self, mean: float) -> None:
        a = mean + mean * 1e-3 * mixed(2, 5, 17, 19)
        rows = a.double().permute(1, 0, 2, 3).flatten(1)
        assert distance(moments(a)[1], torch.cov(rows, correction=0)) < 1e-3

    @pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself looks there
    def test_opcheck(self) -> None:
        for memory_format in FORMATS:
            a = mixed(2, 3, 4, 5).contiguous(memory_format=memory_format).requires_grad_()
            torch.library.opcheck(torch.ops.repgraph.moments.default, (a,))


CASES = [(False, torch.contiguous_format), (True, LAST)]
PRODUCTS = [(2, 8, 24, 3, 5), (1, 40, 136, 3, 11), (1, 8, 8, 1, 5), (7, 72, 16, 1, 1)]  # B, C', C, H, W


def parameters(channels: int, dtype: torch.dtype) -> list[Tensor]:
    return [normal(channels, dtype=dtype, seed=5) + 1, normal(channels, dtype=dtype, seed=6)]


def assert_near_plain(functions, tensors: list[Tensor | None], cotangent: Tensor, slack: float = 1.0) -> None:
    """Results and gradients of three forms: ours, plain PyTorch in the same dtype, and the definition in float64.

    Ours err no more than plain PyTorch, and a few roundings.
    """
    found = []
    for function, exact in zip(functions, (False, False, True), strict=True):
        leaves = [None if t is None else (t.double() if exact else t).detach().requires_grad_() for t in tensors]
        y = function(*leaves)
        wanted = [leaf for leaf in leaves if leaf is not None]
        found.append([y, *torch.autograd.grad(y, wanted, cotangent.to(y.dtype))])
    for index, (mine, theirs, true) in enumerate(zip(*found, strict=True)):
        assert mine.shape == true.shape and mine.dtype == theirs.dtype
        rounding = 8 * torch.finfo(torch.float32).eps + (2 * torch.finfo(cotangent.dtype).eps)
        size = 1e-3  # what is left where all cancels is compared with that
        error, allowed = distance(mine, true, size), slack * distance(theirs, true, size) + rounding
        assert error <= allowed, f"result {index}: error {error:.2e}, allowed {allowed:.2e}"


@pytest.mark.parametrize(("affine", "memory_format"), CASES, ids=str)
@pytest.mark.parametrize("weights", ["same", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT], ids=str)
@pytest.mark.parametrize("sizes", PRODUCTS, ids=str)
def test_normalised_product(kernels, poisoned, sizes: tuple, dtype, weights: str, affine: bool, memory_format) -> None:
    """The gradient comes in either format."""
    batch, inner, channels, height, width = sizes
    wide = dtype if weights == "same" else torch.float32
    x = mixed(batch, channels, height, width, dtype=dtype, seed=1)
    a = mixed(batch, inner, height, width, dtype=dtype, seed=2)
    weight = normal(channels, inner, dtype=wide)
    gamma, beta = parameters(channels, wide) if affine else (None, None)
    cotangent = normal(batch, channels, height, width, dtype=dtype, seed=3).contiguous(memory_format=memory_format)
    got = [torch.zeros(channels, device=DEVICE), torch.ones(channels, device=DEVICE)]
    want = [t.clone() for t in got]

    def ours(x, a, weight, gamma, beta):
        return normalised_product(x, a, weight, gamma, beta, tuple(got), EPS, MOMENTUM)

    def plain(x, a, weight, gamma, beta):
        z = F.conv2d(a, weight.to(dtype)[:, :, None, None])
        own = [None if t is None else t.float() for t in (gamma, beta)]
        return x + F.batch_norm(z.float(), None, None, *own, True, 0.0, EPS).to(dtype)

    def definition(x, a, weight, gamma, beta):
        z = torch.einsum("oc,bchw->bohw", weight, a)
        F.batch_norm(z.detach().float(), *want, None, None, True, MOMENTUM, EPS)
        return x + batch_norm(z, gamma, beta)

    assert_near_plain((ours, plain, definition), [x, a, weight, gamma, beta], cotangent, slack=2.0)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_two_positions(kernels) -> None:
    """The fewest that can be normalised: everything is 1 or -1."""
    x, a, weight = (
        torch.zeros(1, 8, 1, 2, device=DEVICE).contiguous(memory_format=LAST),
        mixed(1, 4, 1, 2),
        normal(8, 4),
    )
    y = normalised_product(x, a, weight, None, None, None, 1e-12, MOMENTUM)
    torch.testing.assert_close(y.abs(), torch.ones_like(y), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y.sum(3), torch.zeros_like(y.sum(3)), rtol=1e-4, atol=1e-4)


def test_normalised_product_without_running_statistics(kernels) -> None:
    x, a, weight = mixed(1, 8, 3, 5), mixed(1, 4, 3, 5), normal(8, 4)
    y = normalised_product(x, a, weight, None, None, None, EPS, MOMENTUM)
    want = x + F.batch_norm(F.conv2d(a, weight[:, :, None, None]), None, None, None, None, True)
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
    assert y.is_contiguous(memory_format=LAST)


def test_large_mean_and_small_variance(kernels) -> None:
    x, a, weight = torch.zeros(1, 8, 9, 15, device=DEVICE), 100 + 0.1 * mixed(1, 4, 9, 15), normal(8, 4)
    x, a = (t.contiguous(memory_format=LAST) for t in (x, a))
    z = torch.einsum("oc,bchw->bohw", weight.double(), a.double())
    plain = F.batch_norm(F.conv2d(a, weight[:, :, None, None]), None, None, None, None, True)
    error = distance(normalised_product(x, a, weight, None, None, None, EPS, 0.1), batch_norm(z, None, None))
    assert error < 2 * distance(plain, batch_norm(z, None, None)) + 1e-5


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize(("channels", "inner"), [(1, 1), (8, 3), (136, 40), (9, 300)])
def test_fold(kernels, poisoned, channels: int, inner: int, tracked: bool, affine: bool) -> None:
    rows = mixed(1, inner, 20, 25)[0].flatten(1).t().double()
    weight = normal(channels, inner)
    mean, covariance = rows.mean(0), torch.cov(rows.t(), correction=0).view(inner, inner)
    gamma, beta = parameters(channels, torch.float32) if affine else (None, None)
    running = [normal(channels, seed=7), normal(channels, seed=8).abs()] if tracked else None
    before = [t.clone() for t in running] if running else None
    projected = (weight.double() @ covariance).float()
    folded, shift, means, rstds = kernels.fold(
        weight, projected, mean.float(), gamma, beta, running, EPS, MOMENTUM, 500, torch.float16
    )
    z = rows @ weight.double().t()
    true_mean, true_var = z.mean(0), z.var(0, correction=0)
    scale = (true_var + EPS).rsqrt() * (1 if gamma is None else gamma.double())
    torch.testing.assert_close(means.double(), true_mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rstds.double(), (true_var + EPS).rsqrt(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shift.double(), (0 if beta is None else beta) - true_mean * scale, rtol=1e-4, atol=1e-4)
    assert folded.dtype == torch.float16
    torch.testing.assert_close(folded.double(), weight * scale[:, None], rtol=2e-3, atol=1e-4)
    if running is not None and before is not None:
        for now, old, new in zip(running, before, (true_mean, z.var(0)), strict=True):
            torch.testing.assert_close(now.double(), old + MOMENTUM * (new - old), rtol=1e-4, atol=1e-4)


RELUS = [(2, 8, 3, 5), (1, 24, 3, 43), (1, 3, 1, 2), (2, 1, 1, 1), (1, 300, 1, 3)]


@pytest.mark.parametrize(("affine", "memory_format"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT], ids=str)
@pytest.mark.parametrize("sizes", RELUS, ids=str)
def test_normalised_relu(kernels, poisoned, sizes: tuple, dtype: torch.dtype, affine: bool, memory_format) -> None:
    x = mixed(*sizes, dtype=dtype)
    gamma, beta = parameters(sizes[1], torch.float32) if affine else (None, None)
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


def test_normalised_relu_of_a_large_mean(kernels) -> None:
    x = (1000 + mixed(1, 8, 9, 15)).contiguous(memory_format=LAST)
    want = batch_norm(x.double(), None, None).relu()
    plain = F.batch_norm(x, None, None, None, None, True).relu()
    error = distance(normalised_relu(x, None, None, None, EPS, 0.1), want)
    assert error < 2 * distance(plain, want) + 1e-5


def test_normalised_relu_of_constants_and_of_nan(kernels) -> None:
    x = mixed(1, 4, 5, 7)
    x[:, 1] = 3.0
    y = normalised_relu(x, None, None, None, EPS, 0.1)
    assert (y[:, 1].abs() < 1e-3).all()
    x[0, 2, 4, 6] = math.nan
    y = normalised_relu(x, None, None, None, EPS, 0.1)
    assert y[:, 2].isnan().all() and y[:, [0, 1, 3]].isfinite().all()


def test_they_can_be_differentiated_once(kernels) -> None:
    x, a, weight = mixed(1, 8, 3, 5).requires_grad_(), mixed(1, 4, 3, 5), normal(8, 4)
    for y in (
        normalised_product(x, a, weight.requires_grad_(), None, None, None, EPS, 0.1),
        normalised_relu(x, None, None, None, EPS, 0.1),
    ):
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


def test_elsewhere_the_modules_run() -> None:
    x, a, weight = (t.cpu() for t in (mixed(1, 8, 3, 5), mixed(1, 4, 3, 5), normal(8, 4)))
    assert not normalised_fits(x, a, weight)


@pytest.mark.gpu
def test_what_the_kernels_take() -> None:
    x, a, weight = mixed(1, 8, 3, 5), mixed(1, 4, 3, 5), normal(8, 4)
    half = mixed(1, 8, 3, 5, dtype=torch.bfloat16)
    assert normalised_fits(x, a, weight) and normalised_fits(half, half, normal(8, 8))
    assert not normalised_fits(x, a, weight.half()) and not normalised_fits(x.contiguous(), a, weight)
    assert not torch.compile(normalised_fits, fullgraph=True, backend="eager")(x, a, weight)
