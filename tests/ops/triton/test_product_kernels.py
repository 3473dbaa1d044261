"""The kernels of products of channels and their operators, on a GPU or in Triton's interpreter."""

import contextlib
import math

import pytest
import torch
import torch.nn.functional as F
from tests.ops.problem import distance, normal
from tests.ops.products import FORMATS, HALF_KERNELS, LAST, LAYOUTS, as_convolution, assert_as_good_as
from torch import Tensor

from repgraph.bench.measure import Budget, graph_times
from repgraph.ops.product import _WideFork
from repgraph.ops.tf32 import tensor_float_32

pytestmark = pytest.mark.usefixtures("convolutions_in_float32")
RESIDUALS = [(1, 8, 8), (5, 24, 40), (129, 136, 72), (300, 8, 136), (257, 264, 8)]


def assert_residuals(residual_product, dtype: torch.dtype, rows: int, columns: int, inner: int) -> None:
    x, a, weight = (normal(*s, dtype=dtype) for s in ((rows, columns), (rows, inner), (columns, inner)))
    for bias in (None, normal(columns, dtype=dtype), normal(columns)):
        want = x.double() + a.double() @ weight.double().t()
        plain = x + a @ weight.t()
        if bias is not None:
            want, plain = want + bias.double(), plain + bias.to(dtype)
        assert_as_good_as(residual_product(x, a, weight, bias), plain, want)


@pytest.mark.parametrize(("rows", "columns", "inner"), RESIDUALS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF_KERNELS], ids=str)
def test_residual_kernel(kernels, poisoned, dtype: torch.dtype, rows: int, columns: int, inner: int) -> None:
    assert_residuals(kernels.residual_product, dtype, rows, columns, inner)


def test_how_float32_is_multiplied(kernels) -> None:
    precision = kernels.product._precision
    for dtype, inner, want in ((torch.float32, 4, "ieee"), (torch.float32, 8, "bf16x6"), (torch.float16, 8, "tf32")):
        assert precision(dtype, inner) == want
        with tensor_float_32():
            assert precision(dtype, inner) == "tf32"
    for dtype, weight, parts in (("float32", "float32", 0), ("float16", "float32", 3), ("float16", "float16", 1)):
        shape = torch.Size((1, 8, 2, 2))
        plan = kernels.product._wide_plan(shape, 6, *(getattr(torch, d) for d in (dtype, weight, weight)), -1, True)
        assert plan.constants["PARTS"] == parts


def test_residual_kernel_of_the_shortest_sums(kernels, poisoned) -> None:
    assert_residuals(kernels.residual_product, torch.float32, 70, 12, 4)


def test_residual_kernel_in_tf32(kernels, poisoned) -> None:
    x, a, weight = (normal(*s) for s in ((129, 136), (129, 72), (136, 72)))
    exact = x.double() + a.double() @ weight.double().t()
    with tensor_float_32():
        assert distance(kernels.residual_product(x, a, weight, None), exact) < 1e-3
    assert distance(kernels.residual_product(x, a, weight, None), exact) < 1e-6  # and not where it is not allowed


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_KERNELS], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of the interpreter
def test_residual_kernel_of_what_is_not_finite(kernels, value: float, dtype: torch.dtype) -> None:
    x, a, weight = (normal(*s, dtype=dtype) for s in ((37, 24), (37, 40), (24, 40)))
    x[7, 9], a[20, 3], weight[5, 39] = value, value, value
    got = kernels.residual_product(x, a, weight, None)
    assert torch.equal(got.isfinite(), (x.double() + a.double() @ weight.double().t()).isfinite())


@pytest.mark.gpu
@pytest.mark.parametrize("inner", [32, 40, 256])
@pytest.mark.parametrize(("dtype", "in_tf32"), [(torch.bfloat16, False), (torch.float32, True), (torch.float32, False)])
def test_residual_kernel_is_not_slower(kernels, dtype: torch.dtype, in_tf32: bool, inner: int) -> None:
    """Than PyTorch's product and sum: it was, forty times, where float32 was multiplied number by number."""
    x, a, weight, bias = (normal(*s, dtype=dtype) for s in ((8192, 2048), (8192, inner), (2048, inner), (2048,)))

    def milliseconds(function) -> float:
        function()  # compiles
        return graph_times(lambda: function, 1e-3, Budget(repeat=10)).least

    with tensor_float_32() if in_tf32 else contextlib.nullcontext():
        ours = milliseconds(lambda: kernels.residual_product(x, a, weight, bias))
        assert ours < 1.2 * milliseconds(lambda: torch.addmm(bias, a, weight.t()).add_(x))


def test_residual_kernel_of_memory_that_is_not_aligned(kernels) -> None:
    def moved(t: Tensor) -> Tensor:
        return torch.cat((t.new_zeros(1), t.flatten()))[1:].view(t.shape)

    tensors = [moved(normal(*s)) for s in ((37, 8), (37, 12), (8, 12))]
    assert all(t.data_ptr() % 16 for t in tensors)
    x, a, weight = tensors
    torch.testing.assert_close(kernels.residual_product(x, a, weight, None), x + a @ weight.t())


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_KERNELS], ids=str)
@pytest.mark.parametrize("weights", ["float32", "same"])
@pytest.mark.parametrize(
    ("shape", "outputs"), [((2, 8, 5, 7), 18), ((1, 72, 9, 15), 6), ((3, 5, 1, 1), 1), ((1, 16, 3, 43), 128)], ids=str
)
def test_wide_kernel(kernels, poisoned, shape: tuple, outputs: int, weights: str, dtype: torch.dtype) -> None:
    a = normal(*shape, dtype=dtype).contiguous(memory_format=LAST)
    weight = normal(outputs, shape[1], dtype=dtype if weights == "same" else torch.float32)
    for bias in (20 * normal(outputs), 20 * normal(outputs, dtype=dtype)):
        got = kernels.wide_product(a, weight, bias)
        want = as_convolution(a, weight, bias)
        assert got.dtype == torch.float32 and got.shape == want.shape and got.is_contiguous()
        assert distance(got, want) < 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_KERNELS], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of the interpreter
def test_wide_kernel_of_what_is_not_finite(kernels, value: float, dtype: torch.dtype) -> None:
    a, weight, bias = normal(1, 40, 5, 7, dtype=dtype).contiguous(memory_format=LAST), normal(6, 40), normal(6)
    a[0, 3, 1, 2] = value
    weight[2, 39] = value
    got = kernels.wide_product(a, weight, bias)
    assert torch.equal(got.isfinite(), as_convolution(a, weight, bias).isfinite())


@pytest.mark.parametrize(
    ("rows", "columns", "dtype"),
    [(1, 1, torch.float32), (2, 7, torch.float16), (129, 24, torch.float32), (150, 300, torch.float16)],
)
def test_sums_kernel(kernels, poisoned, rows: int, columns: int, dtype: torch.dtype) -> None:
    x = normal(rows, columns, dtype=dtype)
    got = kernels.column_sums(x)
    assert got.dtype == torch.float32 and distance(got, x.double().sum(0), least=1.0) < 1e-5
    assert torch.equal(got, kernels.column_sums(x))


def gradients(function, tensors: list[Tensor], cotangent: Tensor) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    return list(torch.autograd.grad(function(*leaves), leaves, cotangent))


@pytest.mark.parametrize("dtype", [torch.float32, *HALF_KERNELS], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_gradients_of_the_residual_operator(kernels, memory_format, batch: int, dtype: torch.dtype) -> None:
    """The gradient may come in either format; of a batch of one, its rows are a view with strides of its own."""
    x, a = (normal(batch, c, 5, 7, dtype=dtype).contiguous(memory_format=LAST) for c in (24, 16))
    tensors = [x, a, normal(24, 16, dtype=dtype), normal(24)]
    cotangent = normal(batch, 24, 5, 7, dtype=dtype, seed=9).contiguous(memory_format=memory_format)
    got = gradients(torch.ops.repgraph.residual_product, tensors, cotangent)
    plain = gradients(lambda x, a, w, b: x + F.conv2d(a, w[:, :, None, None], b.to(dtype)), tensors, cotangent)
    want = gradients(lambda x, a, w, b: x + as_convolution(a, w, b), [t.double() for t in tensors], cotangent.double())
    for mine, theirs, true, tensor in zip(got, plain, want, tensors, strict=True):
        assert mine.dtype == tensor.dtype
        assert_as_good_as(mine, theirs, true)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_gradients_of_the_wide_operator(kernels, memory_format, batch: int) -> None:
    a = normal(batch, 16, 5, 7, dtype=torch.float16).contiguous(memory_format=LAST)
    tensors = [a, normal(6, 16), normal(6)]
    cotangent = normal(batch, 6, 5, 7, seed=9).contiguous(memory_format=memory_format)
    got = gradients(torch.ops.repgraph.wide_product, tensors, cotangent)
    want = gradients(as_convolution, [t.double() for t in tensors], cotangent.double())
    for mine, true, tensor in zip(got, want, tensors, strict=True):
        assert mine.dtype == tensor.dtype and distance(mine, true) < 2 * torch.finfo(torch.float16).eps
    assert distance(got[2], want[2]) < 1e-6  # the bias: sums in float32


@pytest.mark.parametrize("dtype", HALF_KERNELS, ids=str)
@pytest.mark.parametrize(("shape", "outputs"), [((2, 16, 5, 7), 6), ((1, 24, 1, 1), 18), ((1, 8, 12, 13), 16)], ids=str)
def test_narrow_kernel(kernels, poisoned, shape: tuple, outputs: int, dtype: torch.dtype) -> None:
    y = normal(shape[0], outputs, *shape[2:])
    rows, sums = kernels.narrow_rows(y, dtype)
    flat = y.permute(0, 2, 3, 1).reshape(-1, outputs)
    assert rows.shape == (len(flat), -(-outputs // 8) * 8) and rows.dtype == dtype
    assert torch.equal(rows[:, :outputs], flat.to(dtype)) and not rows[:, outputs:].any()
    assert distance(sums, flat.double().sum(0), least=1.0) < 1e-5


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("weights", [torch.float32, torch.float16], ids=str)
def test_gradients_of_the_wide_fork(kernels, weights: torch.dtype, memory_format) -> None:
    """Of both results; and of either alone, where the other is not used."""
    a = normal(2, 16, 5, 7, dtype=torch.float16).contiguous(memory_format=LAST)
    tensors = [a, normal(6, 16, dtype=weights), normal(6, dtype=weights)]
    grads = [normal(2, 6, 5, 7, seed=9), normal(2, 16, 5, 7, dtype=torch.float16, seed=8)]
    grads[1] = grads[1].contiguous(memory_format=memory_format)

    def run(function, tensors, used, dtype):
        leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]
        results = function(*leaves)
        given = [grad.to(dtype or grad.dtype) for grad in grads]
        return torch.autograd.grad(
            [results[i] for i in used], leaves, [given[i] for i in used], allow_unused=True, materialize_grads=True
        )

    for used in ((0, 1), (0,), (1,)):
        got = run(_WideFork.apply, tensors, used, None)
        want = run(lambda a, w, b: (as_convolution(a, w, b), a), tensors, used, torch.float64)
        for mine, true, tensor in zip(got, want, tensors, strict=True):
            assert mine.dtype == tensor.dtype and distance(mine, true, 1e-6) < 2 * torch.finfo(torch.float16).eps
    assert got[0].shape == a.shape


def test_the_wide_fork_can_be_differentiated_once(kernels) -> None:
    a = normal(1, 16, 3, 4, dtype=torch.float16).contiguous(memory_format=LAST).requires_grad_()
    offsets, same = _WideFork.apply(a, normal(6, 16).requires_grad_(), normal(6).requires_grad_())
    (grad,) = torch.autograd.grad(offsets.square().sum() + same.float().square().sum(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.float().sum().backward()


def test_only_the_gradients_that_are_asked_for(kernels) -> None:
    x, a = (normal(1, c, 3, 5).contiguous(memory_format=LAST) for c in (8, 4))
    tensors = [x, a, normal(8, 4), normal(8)]
    for index, tensor in enumerate(tensors):
        leaves = [t.detach() for t in tensors]
        leaves[index] = tensor.detach().requires_grad_()
        y = torch.ops.repgraph.residual_product(*leaves)
        (grad,) = torch.autograd.grad(y.sum(), leaves[index])
        assert grad.shape == tensor.shape


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself looks there
@pytest.mark.parametrize("shape", [(2, 5, 7), (1, 1, 1)], ids=str)
def test_opcheck(kernels, shape: tuple) -> None:
    batch, height, width = shape
    x, a = (normal(batch, c, height, width).contiguous(memory_format=LAST).requires_grad_() for c in (8, 4))
    weight, bias = normal(8, 4).requires_grad_(), normal(8).requires_grad_()
    torch.library.opcheck(torch.ops.repgraph.residual_product.default, (x, a, weight, bias))
    torch.library.opcheck(torch.ops.repgraph.residual_product.default, (x, a, weight, None))
    half = a.detach().half().requires_grad_()
    torch.library.opcheck(torch.ops.repgraph.wide_product.default, (half, normal(6, 4).requires_grad_(), normal(6)))
    torch.library.opcheck(torch.ops.repgraph.column_sums.default, (normal(7, 5),))


def test_operators_take_maps_of_any_layout(kernels) -> None:
    """The layers hand over channels-last maps alone; called by others the operators are right too."""
    for layout in LAYOUTS.values():
        x, a = (layout(normal(2, c, 5, 7)) for c in (8, 4))
        weight, bias = normal(8, 4), normal(8)
        want = x.double() + as_convolution(a, weight, bias)
        assert distance(torch.ops.repgraph.residual_product(x, a, weight, bias), want) < 1e-6
        got = torch.ops.repgraph.wide_product(a.half(), weight, bias)
        assert distance(got, as_convolution(a.half(), weight, bias)) < 1e-6


def test_operators_in_compiled_code(kernels) -> None:
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def function(x, a, weight, bias):
        y = torch.ops.repgraph.residual_product(x + 1, a, weight, bias)
        return y.relu() + torch.ops.repgraph.wide_product(a.half(), weight, bias)

    for shape in ((2, 5, 7), (3, 4, 9)):
        batch, height, width = shape
        x, a = (normal(batch, c, height, width).contiguous(memory_format=LAST).requires_grad_() for c in (8, 4))
        weight, bias = normal(8, 4).requires_grad_(), normal(8).requires_grad_()
        got = function(x, a, weight, bias)
        want = (x + 1 + as_convolution(a, weight, bias)).relu() + as_convolution(a.half(), weight, bias)
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
        for one, other in zip(
            torch.autograd.grad(got.sum(), (x, a, weight, bias)),
            torch.autograd.grad(want.sum(), (x, a, weight, bias)),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
