"""Products of channels as the layers call them: composed of PyTorch's, or by kernels, on any device."""

import pytest
import torch
import torch.nn.functional as F
from tests.ops.problem import distance, normal
from tests.ops.products import FORMATS, HALF, LAST, LAYOUTS, as_convolution, assert_as_good_as
from torch import Tensor

from repgraph.ops import backends
from repgraph.ops import product as products
from repgraph.ops.backends import splits_float32, transformed
from repgraph.ops.product import (
    as_map,
    as_rows,
    column_sums,
    fits,
    fork,
    product,
    relu_product,
    relu_products,
    residual_fits,
    residual_product,
    wide_fits,
    wide_product,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
pytestmark = pytest.mark.usefixtures("convolutions_in_float32")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 6, 1, 1), (1, 1, 3, 4), (3, 6, 1, 5), (0, 6, 3, 3)], ids=str)
def test_product_is_the_convolution(shape: tuple, layout: str, bias: bool) -> None:
    a = LAYOUTS[layout](normal(*shape, dtype=torch.float64)).requires_grad_()
    weight = normal(4, shape[1], dtype=torch.float64).requires_grad_()
    shift = normal(4, dtype=torch.float64).requires_grad_() if bias else None
    got, want = product(a, weight, shift), as_convolution(a, weight, shift)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    if a.is_contiguous(memory_format=LAST) or a.is_contiguous():
        memory_format = LAST if products.is_channels_last(a) else torch.contiguous_format
        assert got.is_contiguous(memory_format=memory_format)
    leaves = [t for t in (a, weight, shift) if t is not None]
    cotangent = torch.randn_like(got)
    grads = [torch.autograd.grad(y, leaves, cotangent) for y in (got, want)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_residual_product(dtype: torch.dtype, memory_format, device: str) -> None:
    x, a = (
        normal(2, channels, 5, 7, dtype=dtype, device=device).contiguous(memory_format=memory_format)
        for channels in (24, 16)
    )
    weight = normal(24, 16, dtype=dtype, device=device)
    for bias in (None, normal(24, dtype=dtype, device=device), normal(24, device=device)):
        got = residual_product(x, a, weight, bias)
        plain = x + F.conv2d(a, weight[:, :, None, None], None if bias is None else bias.to(dtype))
        assert_as_good_as(got, plain, x.double() + as_convolution(a, weight, bias))
        assert got.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("features", [torch.float32, torch.float64, *HALF], ids=str)
@pytest.mark.parametrize("weights", ["float32", "same"])
def test_wide_product_never_rounds(features: torch.dtype, weights: str, memory_format, device: str) -> None:
    wide = torch.float64 if features == torch.float64 else torch.float32
    dtype = features if weights == "same" else torch.promote_types(wide, torch.float32)
    a = normal(2, 16, 5, 7, dtype=features, device=device).contiguous(memory_format=memory_format)
    weight, bias = normal(6, 16, dtype=dtype, device=device), 20 * normal(6, dtype=dtype, device=device)
    want = as_convolution(a, weight, bias)
    for autocast in (False, True):
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            got = wide_product(a, weight, bias)
        assert got.dtype == wide
        assert distance(got, want) < 8 * torch.finfo(wide).eps


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_relu_product(dtype: torch.dtype, memory_format, device: str) -> None:
    a = normal(2, 16, 5, 7, dtype=dtype, device=device).contiguous(memory_format=memory_format)
    weight, bias = normal(24, 16, dtype=dtype, device=device), normal(24, dtype=dtype, device=device)
    got = relu_product(a, weight, bias)
    assert_as_good_as(got, F.conv2d(a, weight[:, :, None, None], bias).relu(), as_convolution(a, weight, bias).relu())
    assert got.is_contiguous(memory_format=memory_format) and (got == 0).any()
    with torch.autocast(device, torch.bfloat16):
        assert relu_product(a.float(), weight.float(), bias.float()).dtype == torch.bfloat16


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("last", ["same", "float32"])
def test_relu_products(dtype: torch.dtype, last: str, memory_format, device: str) -> None:
    a = normal(2, 16, 5, 7, dtype=dtype, device=device).contiguous(memory_format=memory_format)
    weight, bias = normal(24, 16, dtype=dtype, device=device), normal(24, dtype=dtype, device=device)
    wide = torch.promote_types(dtype, torch.float32)
    kind = dtype if last == "same" else wide
    last_weight, last_bias = normal(6, 24, dtype=kind, device=device), 9 * normal(6, dtype=kind, device=device)
    feature, offsets = relu_products(a, weight, bias, last_weight, last_bias)
    plain = F.conv2d(a, weight[:, :, None, None], bias).relu()
    assert_as_good_as(feature, plain, as_convolution(a, weight, bias).relu())
    assert offsets.dtype == wide
    assert distance(offsets, as_convolution(feature, last_weight, last_bias)) < 8 * torch.finfo(wide).eps


def test_relu_products_as_an_operator() -> None:
    """What torch.compile sees, run in Triton's interpreter."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = normal(2, 16, 5, 7, dtype=torch.float16, device=device).contiguous(memory_format=torch.channels_last)
    others = [normal(*s, dtype=torch.float16, device=device) for s in ((24, 16), (24,), (6, 24), (6,))]
    torch.library.opcheck(torch.ops.repgraph.relu_products, (a, *others), test_utils=("test_schema", "test_faketensor"))
    feature, offsets = torch.ops.repgraph.relu_products(a, *others)
    want, want_offsets = relu_products(a, *others)
    assert distance(feature, want) < 2e-3 and distance(offsets, want_offsets) < 2e-3


def test_products_of_biases_that_are_not_contiguous() -> None:
    """Each operator in Triton's interpreter, where there is no GPU."""
    pytest.importorskip("triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = dict(dtype=torch.float16, device=device)
    a = normal(2, 16, 5, 7, **kind).contiguous(memory_format=LAST)
    x = normal(2, 24, 5, 7, **kind).contiguous(memory_format=LAST)
    weight, bias = normal(24, 16, **kind), normal(24, 3, **kind)[:, 1]
    last_weight, last_bias = normal(6, 24, **kind), normal(1, **kind).expand(6)
    ops = torch.ops.repgraph
    got = [ops.residual_product(x, a, weight, bias), ops.wide_product(a, weight, bias)]
    got += ops.relu_products(a, weight, bias, last_weight, last_bias)
    bias, last_bias = bias.contiguous(), last_bias.contiguous()
    want = [ops.residual_product(x, a, weight, bias), ops.wide_product(a, weight, bias)]
    want += ops.relu_products(a, weight, bias, last_weight, last_bias)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


def test_relu_products_with_gradients_and_of_nothing() -> None:
    tensors = [normal(*s).requires_grad_() for s in ((2, 16, 5, 7), (24, 16), (24,), (6, 24), (6,))]
    for result in relu_products(*tensors):
        assert all(g is not None for g in torch.autograd.grad(result.sum(), tensors[:3], retain_graph=True))
    with torch.no_grad():
        feature, offsets = relu_products(tensors[0][:0], *tensors[1:])
    assert feature.shape == (0, 24, 5, 7) and offsets.shape == (0, 6, 5, 7)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_column_sums(dtype: torch.dtype, device: str) -> None:
    rows = normal(300, 24, dtype=dtype, device=device)
    got = column_sums(rows)
    assert got.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(got.double(), rows.double().sum(0), rtol=1e-5, atol=1e-5)


class TestFork:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_gradients_are_those_of_autograd(self, layout: str, device: str) -> None:
        x = LAYOUTS[layout](normal(2, 6, 5, 7, dtype=torch.float64, device=device)).requires_grad_()
        weight = normal(4, 6, dtype=torch.float64, device=device).requires_grad_()
        feature, around = fork(x, weight)
        want = as_convolution(x, weight)
        torch.testing.assert_close(feature, want, rtol=1e-12, atol=1e-12)
        assert torch.equal(around, x)
        got = torch.autograd.grad(feature.pow(3).sum() + around.pow(2).sum(), (x, weight))
        for one, other in zip(got, torch.autograd.grad(want.pow(3).sum() + x.pow(2).sum(), (x, weight)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
    @pytest.mark.parametrize("grads_last", [False, True])
    def test_low_precision(self, dtype: torch.dtype, grads_last: bool, device: str) -> None:
        for batch in (1, 2):
            x = normal(batch, 24, 5, 7, dtype=dtype, device=device).contiguous(memory_format=LAST).requires_grad_()
            weight = normal(16, 24, dtype=dtype, device=device).requires_grad_()
            cotangents = (
                normal(batch, 16, 5, 7, dtype=dtype, device=device),
                normal(*x.shape, dtype=dtype, device=device),
            )
            if grads_last:
                cotangents = tuple(t.contiguous(memory_format=LAST) for t in cotangents)
            got = torch.autograd.grad(fork(x, weight), (x, weight), cotangents)
            plain = torch.autograd.grad((F.conv2d(x, weight[:, :, None, None]), x.view_as(x)), (x, weight), cotangents)
            exact = [t.detach().double().requires_grad_() for t in (x, weight)]
            want = torch.autograd.grad(
                (as_convolution(*exact), exact[0].view_as(exact[0])), exact, [t.double() for t in cotangents]
            )
            for mine, theirs, true in zip(got, plain, want, strict=True):
                assert_as_good_as(mine, theirs, true)

    def test_one_way_only(self) -> None:
        x = normal(2, 6, 5, 7, device="cpu").requires_grad_()
        weight = normal(4, 6, device="cpu").requires_grad_()
        (grad,) = torch.autograd.grad(fork(x, weight)[1].sum(), x)
        torch.testing.assert_close(grad, torch.ones_like(x))
        (grad,) = torch.autograd.grad(fork(x, weight)[0].sum(), x)
        torch.testing.assert_close(grad, weight.sum(0)[:, None, None].expand_as(x).contiguous())

    def test_without_gradients_of_the_input(self) -> None:
        x, weight = normal(2, 6, 5, 7, device="cpu"), normal(4, 6, device="cpu").requires_grad_()
        feature, around = fork(x, weight)
        assert around is x
        (grad,) = torch.autograd.grad(feature.sum(), weight)
        torch.testing.assert_close(grad, x.sum((0, 2, 3)).expand(4, 6), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            assert not fork(x.requires_grad_(), weight)[0].requires_grad

    def test_autocast(self) -> None:
        x = normal(2, 6, 5, 7, device="cpu").contiguous(memory_format=LAST).requires_grad_()
        weight = normal(4, 6, device="cpu").requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            feature, around = fork(x, weight)
        assert (feature.dtype, around.dtype) == (torch.bfloat16, torch.float32)
        grads = torch.autograd.grad(feature.float().pow(2).sum() + around.pow(2).sum(), (x, weight))
        want = torch.autograd.grad(as_convolution(x, weight).pow(2).sum() + x.pow(2).sum(), (x, weight))
        assert [grad.dtype for grad in grads] == [torch.float32] * 2
        for one, other in zip(grads, want, strict=True):
            assert distance(one, other) < 0.02

    def test_second_order(self) -> None:
        x, weight = (normal(*s, dtype=torch.float64, device="cpu").requires_grad_() for s in ((1, 3, 2, 2), (2, 3)))
        assert torch.autograd.gradgradcheck(lambda x, w: [t.tanh() for t in fork(x, w)], (x, weight))


def test_rows_and_maps() -> None:
    t = normal(2, 3, 4, 5, device="cpu")
    for layout in LAYOUTS.values():
        rows = as_rows(layout(t))
        assert rows.is_contiguous() and torch.equal(as_map(rows, t), layout(t))
    last = t.contiguous(memory_format=LAST)
    assert as_rows(last).data_ptr() == last.data_ptr()
    for shape in ((1, 3, 4, 5), (1, 1, 4, 5), (1, 3, 1, 1)):  # where strides are ambiguous
        one = normal(*shape, device="cpu")
        assert as_rows(one).is_contiguous() and torch.equal(as_map(as_rows(one), one), one)


def test_kernels_run_on_cuda_alone() -> None:
    t = normal(2, 8, 4, 5, device="cpu").contiguous(memory_format=LAST)
    assert not fits(t) and not residual_fits(t, t)


@pytest.mark.gpu
def test_what_the_kernels_take() -> None:
    t = torch.randn(2, 8, 4, 5, device="cuda").contiguous(memory_format=LAST)
    half = t.half()
    assert fits(t) and fits(half) and fits(as_rows(t)) and residual_fits(t, t) and residual_fits(half, half)
    assert not fits(t.contiguous()) and not fits(t.double()) and not fits(t[:0]) and not fits(t[:, :, ::2])
    assert not residual_fits(t, half) and not residual_fits(half[:, :4].contiguous(memory_format=LAST), half)


@pytest.mark.gpu
def test_what_older_gpus_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_capability", lambda index: (7, 5))
    t = torch.randn(2, 8, 4, 5, device="cuda").contiguous(memory_format=LAST)
    assert residual_fits(t.half(), t.half()) and not residual_fits(t, t) and not wide_fits(t, t[0, :, 0], t[0, :, 0, 0])


@pytest.mark.gpu
def test_float32_takes_the_wide_kernel_in_inference() -> None:
    a, weight, bias = normal(2, 8, 4, 5, device="cuda").contiguous(memory_format=LAST), normal(6, 8), normal(6)
    for t in (a, a.half()):
        assert wide_fits(t, weight, bias)
        assert not wide_fits(t.contiguous(), weight, bias) and not wide_fits(t, normal(130, 8), normal(130))
    weight.requires_grad_()
    assert wide_fits(a.half(), weight, bias) and not wide_fits(a, weight, bias)
    with torch.no_grad():
        assert wide_fits(a, weight, bias)


def test_where_float32_is_multiplied_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 0)
    for capability, answer in (((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True), (None, False)):
        monkeypatch.setattr(backends, "_capability", lambda index, c=capability: c)
        monkeypatch.setattr(torch.version, "hip", None)
        assert splits_float32(device) is answer
        monkeypatch.setattr(torch.version, "hip", "6.0")
        assert not splits_float32(device)


@pytest.mark.filterwarnings("error")  # that a cached function is traced, for one
def test_asked_while_compiling() -> None:
    torch._dynamo.reset()
    ask = torch.compile(lambda t: t + splits_float32(t.device), fullgraph=True, backend="eager")
    assert torch.equal(ask(torch.ones(2)), torch.ones(2) + splits_float32(torch.device("cpu")))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_products_of_what_is_wrapped(memory_format, device: str) -> None:
    """The layout of tensors inside of vmap cannot be asked."""
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


def test_what_the_wide_kernel_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine, what the kernels can read being given."""
    monkeypatch.setattr(products, "fits", lambda *maps: True)
    a, weight, bias = torch.zeros(1, 8, 2, 2), torch.zeros(6, 8), torch.zeros(6, requires_grad=True)
    for parts in (False, True):
        monkeypatch.setattr(products, "splits_float32", lambda device, parts=parts: parts)
        assert wide_fits(a.half(), weight, bias) and not wide_fits(a, weight, bias)
        assert wide_fits(a, weight, bias.detach()) is residual_fits(a, a) is parts and residual_fits(a.half(), a.half())
        assert not wide_fits(a.half(), torch.zeros(129, 8), torch.zeros(129))
        with torch.no_grad():
            assert wide_fits(a, weight, bias) is parts


def test_the_way_around_keeps_the_layout_of_a_single_image():
    x = normal(1, 6, 5, 7, device="cpu").contiguous(memory_format=torch.channels_last).requires_grad_()
    _, around = fork(x, normal(4, 6, device="cpu"))
    assert around.stride() == x.stride()
    assert torch.cat((around, around), 1).is_contiguous(memory_format=torch.channels_last)
