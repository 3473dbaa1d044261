"""Kernels of channel products and their operators, on a GPU or in Triton's interpreter."""

import math

import pytest
import torch
from tests.ops.problem import (
    FORMATS,
    HALF_KERNELS,
    LAST,
    LAYOUTS,
    as_convolution,
    assert_as_good_as,
    conv,
    distance,
    normal,
)
from torch import Tensor

from repgraph.ops.tf32 import tensor_float_32

DTYPES = [torch.float32, *HALF_KERNELS]
pytestmark = pytest.mark.usefixtures("kernels", "convolutions_in_float32")


def matrices(rows: int, columns: int, inner: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return x, a and weight of a residual product."""
    return [normal(*s, dtype=dtype) for s in ((rows, columns), (rows, inner), (columns, inner))]


@pytest.mark.parametrize("sizes", [(1, 8, 8), (70, 12, 4), (129, 136, 72), (300, 8, 136)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_residual_product(kernels, poisoned, dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    rows, columns, inner = sizes
    if dtype != torch.float32 and inner == 4:
        columns, inner = 16, 8  # rows of 16 bytes
    x, a, weight = matrices(rows, columns, inner, dtype)
    for bias in (None, normal(columns, dtype=dtype), normal(columns)):
        want, plain = x.double() + a.double() @ weight.double().t(), x + a @ weight.t()
        if bias is not None:
            want, plain = want + bias.double(), plain + bias.to(dtype)
        assert_as_good_as(kernels.residual_product(x, a, weight, bias), plain, want)
        assert_as_good_as(kernels.residual_product(x, a, weight, bias, relu=True), plain.relu(), want.relu())


def test_residual_product_in_tf32_where_it_is_allowed(kernels, poisoned) -> None:
    x, a, weight = matrices(129, 136, 72)
    exact = x.double() + a.double() @ weight.double().t()
    with tensor_float_32():
        assert distance(kernels.residual_product(x, a, weight, None), exact) < 1e-3
    assert distance(kernels.residual_product(x, a, weight, None), exact) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of numpy, in the interpreter
def test_numbers_that_are_not_finite(kernels, value: float, dtype: torch.dtype) -> None:
    x, a, weight = matrices(37, 24, 40, dtype)
    x[7, 9], a[20, 3], weight[5, 39] = value, value, value
    got = kernels.residual_product(x, a, weight, None)
    assert torch.equal(got.isfinite(), (x.double() + a.double() @ weight.double().t()).isfinite())
    a, weight, bias = normal(1, 40, 5, 7, dtype=dtype).contiguous(memory_format=LAST), normal(6, 40), normal(6)
    a[0, 3, 1, 2], weight[2, 39] = value, value
    got = kernels.wide_product(a, weight, bias)
    assert torch.equal(got.isfinite(), as_convolution(a, weight, bias).isfinite())


def test_unaligned_memory(kernels) -> None:
    x, a, weight = (torch.cat((t.new_zeros(1), t.flatten()))[1:].view(t.shape) for t in matrices(37, 8, 12))
    assert x.data_ptr() % 16
    torch.testing.assert_close(kernels.residual_product(x, a, weight, None), x + a @ weight.t())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weights", ["float32", "same"])
@pytest.mark.parametrize(
    ("shape", "outputs"), [((2, 8, 5, 7), 18), ((1, 72, 9, 15), 6), ((3, 5, 1, 1), 1), ((1, 16, 3, 43), 128)], ids=str
)
def test_wide_product(kernels, poisoned, shape: tuple, outputs: int, weights: str, dtype: torch.dtype) -> None:
    a = normal(*shape, dtype=dtype).contiguous(memory_format=LAST)
    weight = normal(outputs, shape[1], dtype=dtype if weights == "same" else torch.float32)
    for bias in (20 * normal(outputs), 20 * normal(outputs, dtype=dtype)):
        got = kernels.wide_product(a, weight, bias)
        want = as_convolution(a, weight, bias)
        assert got.dtype == torch.float32 and got.shape == want.shape and got.is_contiguous()
        assert distance(got, want) < 4 * torch.finfo(torch.float32).eps


LARGE_SUMS = pytest.param(150, 300, torch.float16, marks=pytest.mark.slow)


@pytest.mark.parametrize(("rows", "columns", "dtype"), [(1, 1, torch.float32), (2, 70, torch.float16), LARGE_SUMS])
def test_column_sums(kernels, poisoned, rows: int, columns: int, dtype: torch.dtype) -> None:
    x = normal(rows, columns, dtype=dtype)
    got = kernels.column_sums(x)
    assert got.dtype == torch.float32 and distance(got, x.double().sum(0), least=1.0) < 1e-5
    assert torch.equal(got, kernels.column_sums(x))


def gradients(function, tensors: list[Tensor], cotangent: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    return list(torch.autograd.grad(function(*leaves), leaves, cotangent))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("batch", "memory_format"), [(1, FORMATS[0]), (1, LAST), (2, LAST)], ids=str)
def test_gradients_of_the_residual_operator(memory_format, batch: int, dtype: torch.dtype) -> None:
    """The gradient may come in either format; a batch of one has ambiguous strides."""
    x, a = (normal(batch, c, 5, 7, dtype=dtype).contiguous(memory_format=LAST) for c in (24, 16))
    tensors = [x, a, normal(24, 16, dtype=dtype), normal(24)]
    cotangent = normal(batch, 24, 5, 7, dtype=dtype, seed=9).contiguous(memory_format=memory_format)
    got = gradients(torch.ops.repgraph.residual_product, tensors, cotangent)
    plain = gradients(lambda x, a, w, b: x + conv(a, w, b), tensors, cotangent)
    want = gradients(lambda x, a, w, b: x + as_convolution(a, w, b), [t.double() for t in tensors], cotangent.double())
    for mine, theirs, true, tensor in zip(got, plain, want, tensors, strict=True):
        assert mine.dtype == tensor.dtype
        assert_as_good_as(mine, theirs, true)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck reads it
@pytest.mark.parametrize("shape", [(2, 5, 7), pytest.param((1, 1, 1), marks=pytest.mark.slow)], ids=str)
def test_opcheck(shape: tuple) -> None:
    batch, height, width = shape
    x, a = (normal(batch, c, height, width).contiguous(memory_format=LAST).requires_grad_() for c in (8, 4))
    weight, bias = normal(8, 4).requires_grad_(), normal(8).requires_grad_()
    torch.library.opcheck(torch.ops.repgraph.residual_product.default, (x, a, weight, bias))
    torch.library.opcheck(torch.ops.repgraph.residual_product.default, (x, a, weight, None))
    half = a.detach().half().requires_grad_()
    torch.library.opcheck(torch.ops.repgraph.wide_product.default, (half, normal(6, 4).requires_grad_(), normal(6)))


def test_operators_support_maps_of_any_layout() -> None:
    """The layers pass channels-last maps only."""
    for layout in LAYOUTS.values():
        x, a = (layout(normal(2, c, 5, 7)) for c in (8, 4))
        weight, bias = normal(8, 4), normal(8, 3)[:, 1]
        want = x.double() + as_convolution(a, weight, bias)
        assert distance(torch.ops.repgraph.residual_product(x, a, weight, bias), want) < 1e-6
        got = torch.ops.repgraph.wide_product(a.half(), weight, bias)
        assert distance(got, as_convolution(a.half(), weight, bias)) < 1e-6
