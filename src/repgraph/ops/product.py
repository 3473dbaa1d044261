"""Products of a map's channels that the layers are made of, beyond what PyTorch has one kernel for.

``residual_product`` adds a map on the way out, ``wide_product`` is in float32 whatever it is of, and ``relu_products``
gives a feature and what is regressed from it. They have Triton kernels for channels-last maps on CUDA; elsewhere they
are composed of PyTorch's products.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.backends import direct, exporting_onnx, needs_grad, splits_float32, transformed, why_not
from repgraph.ops.checks import forward_mode
from repgraph.ops.formats import is_channels_last

MOST_OUTPUTS = 128  # of the wide product: what one tile holds

_library = torch.library.Library("repgraph", "FRAGMENT")
_library.define("residual_product(Tensor x, Tensor a, Tensor weight, Tensor? bias) -> Tensor")
_library.define("wide_product(Tensor a, Tensor weight, Tensor bias) -> Tensor")
_library.define(
    "relu_products(Tensor a, Tensor weight, Tensor bias, Tensor last_weight, Tensor last_bias) -> (Tensor, Tensor)"
)
_library.define("column_sums(Tensor rows, float factor=1.0) -> Tensor")


def residual_product(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x + W a + b at every position, in the memory format of ``x``.

    Args:
        x: (B, C, H, W).
        a: (B, C', H, W).
        weight: (C, C').
        bias: (C,).

    >>> x, a, weight = torch.randn(1, 6, 2, 3), torch.randn(1, 4, 2, 3), torch.randn(6, 4)
    >>> torch.allclose(residual_product(x, a, weight), x + F.conv2d(a, weight[:, :, None, None]), atol=1e-5)
    True
    """
    weight = weight.to(a.dtype)
    if not residual_fits(x, a):
        return x + product(a, weight, None if bias is None else bias.to(a.dtype))
    if direct(x, a, weight, bias) and not needs_grad(x, a, weight, bias):
        return _residual(x, a, weight, bias)
    return torch.ops.repgraph.residual_product(x, a, weight, bias)


def wide_product(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W a + b at every position, computed in float32 (float64 for float64), whatever the dtype of ``a``.

    Args:
        a: (B, C, H, W).
        weight: (O, C).
        bias: (O,).
    """
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    if wide_fits(a, weight, bias):
        if direct(a, weight, bias) and not needs_grad(a, weight, bias):
            return _wide(a, weight, bias)
        return torch.ops.repgraph.wide_product(a, weight, bias)
    with library.unrounded(a.device.type):
        return product(a.to(wide), weight.to(wide), bias.to(wide))


def relu_product(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(W a + b) at every position, for inference: on CUDA the activation is part of the product."""
    if not fits(a) or torch.is_autocast_enabled("cuda") or weight.dtype != a.dtype:
        return torch.relu(product(a, weight, bias))
    return as_map(torch._addmm_activation(bias, as_rows(a), weight.t()), a)


def relu_products(
    a: Tensor, weight: Tensor, bias: Tensor, last_weight: Tensor, last_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """f = relu(W a + b) at every position, and the :func:`wide_product` of f, for inference."""
    tensors = (a, weight, bias, last_weight, last_bias)
    same = a.dtype in (torch.float16, torch.bfloat16) and weight.dtype == bias.dtype == a.dtype
    composed = not same or last_weight.shape[0] > MOST_OUTPUTS or torch.is_autocast_enabled("cuda")
    if composed or needs_grad(*tensors) or not fits(a):
        feature = relu_product(a, weight, bias)
        return feature, wide_product(feature, last_weight, last_bias)
    return _relu_products(*tensors) if direct(*tensors) else torch.ops.repgraph.relu_products(*tensors)


def product(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W a + b at every position: a 1 x 1 convolution, in the memory format of ``a``.

    A channels-last map is a matrix (B H W, C), and PyTorch's matrix products are faster than its convolutions, with a
    bias above all. ONNX gets the convolution.
    """
    if not is_channels_last(a) or exporting_onnx():
        return F.conv2d(a, weight[:, :, None, None], bias)
    return F.linear(a.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def column_sums(rows: Tensor, factor: float = 1.0) -> Tensor:
    """Sums (C,) over the rows of a matrix (R, C) times a factor, in float32 at least; for use inside of derivatives:
    it has none."""
    if not fits(rows):
        return rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32)) * factor
    return _sums(rows, factor) if direct(rows) else torch.ops.repgraph.column_sums(rows, factor)


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return product(x, weight), torch.ops.aten.alias(x)  # view_as would lose the layout of a single image

    @staticmethod
    def backward(ctx, grad, grad_x):
        x, weight = ctx.saved_tensors  # read once: checkpointing allows no more
        grad_weight = as_rows(grad).t() @ as_rows(x).to(grad.dtype)
        return residual_product(grad_x, grad, weight.to(grad.dtype).t()), grad_weight.to(weight.dtype)


def fork(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """W x at every position, and x itself for the way around.

    The two gradients of x meet in one product, instead of a product and an addition.
    """
    if not torch.is_grad_enabled() or not x.requires_grad or forward_mode():
        return product(x, weight), x
    return _Fork.apply(x, weight)


class _WideFork(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, weight, bias):
        ctx.save_for_backward(a, weight, bias)
        ctx.set_materialize_grads(False)
        return _wide(a, weight, bias), torch.ops.aten.alias(a)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, grad_a):
        a, weight, bias = ctx.saved_tensors
        if grad is None:
            return grad_a, None, None
        rows, sums = library.kernels("triton").narrow_rows(grad.contiguous(), a.dtype)
        with library.unrounded(a.device.type):
            grad_weight = (rows.t() @ as_rows(a))[: len(weight)].to(weight.dtype)
            if grad_a is None:
                grad_a = as_map(rows[:, : len(weight)] @ weight.to(a.dtype), a)
            else:
                back = F.pad(weight.to(a.dtype).t(), (0, rows.shape[1] - len(weight)))
                grad_a = residual_product(grad_a, as_map(rows, a), back)
        return grad_a, grad_weight, sums.to(bias.dtype)


def wide_fork(a: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`wide_product`, and ``a`` itself for what else is done with it.

    The two gradients of ``a`` meet in one product, instead of a product and an addition.
    """
    if forks_wide(a, weight, bias):
        return _WideFork.apply(a, weight, bias)
    return wide_product(a, weight, bias), a


def forks_wide(a: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether :func:`wide_fork` has kernels for these: in training, where :func:`wide_product` has."""
    return (
        torch.is_grad_enabled()
        and a.requires_grad
        and a.dtype in (torch.float16, torch.bfloat16)
        and weight.shape[0] <= MOST_OUTPUTS
        and direct(a, weight, bias)
        and fits(a)
    )


def fits(*maps: Tensor) -> bool:
    """Whether the kernels can read maps (or matrices): dense, channels-last, on a device that has kernels.

    Not for forward-mode derivatives, which would be lost in them, and not for what is wrapped by a transform, whose
    layout cannot be asked.
    """
    if forward_mode() or transformed():
        return False
    for t in maps:
        if t.device.type != "cuda" or t.numel() == 0:
            return False
        if not (t.is_contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t.is_contiguous()):
            return False
        if exporting_onnx() or why_not("triton", t.device, t.dtype) is not None:
            return False
    return True


def residual_fits(x: Tensor, a: Tensor) -> bool:
    """Whether the kernel of :func:`residual_product` takes these: rows are multiples of 16 bytes, and tensor
    cores take float32 (without them PyTorch's products are faster)."""
    even = all(t.shape[1] * t.element_size() % 16 == 0 for t in (x, a))
    return x.dtype == a.dtype and even and fits(x, a) and (x.dtype != torch.float32 or splits_float32(x.device))


def wide_fits(a: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether the kernel of :func:`wide_product` takes these; of float32 features it is for inference."""
    if weight.shape[0] > MOST_OUTPUTS or not fits(a):
        return False
    return a.dtype != torch.float32 or (splits_float32(a.device) and not needs_grad(a, weight, bias))


def as_rows(t: Tensor) -> Tensor:
    """A map as a contiguous matrix (B H W, C); without a copy if it is channels-last."""
    return t.permute(0, 2, 3, 1).reshape(-1, t.shape[1]).contiguous()


def as_map(rows: Tensor, like: Tensor) -> Tensor:
    """A matrix (B H W, C) as a channels-last map, for the B, H and W of ``like``."""
    return rows.view(like.shape[0], *like.shape[2:], rows.shape[1]).permute(0, 3, 1, 2)


def _residual(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    bias = None if bias is None else bias.contiguous()
    return as_map(library.kernels("triton").residual_product(as_rows(x), as_rows(a), weight.contiguous(), bias), x)


def _wide(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    a = a.contiguous(memory_format=torch.channels_last)
    return library.kernels("triton").wide_product(a, weight.contiguous(), bias.contiguous())


def _relu_products(
    a: Tensor, weight: Tensor, bias: Tensor, last_weight: Tensor, last_bias: Tensor
) -> tuple[Tensor, Tensor]:
    a = a.contiguous(memory_format=torch.channels_last)
    others = (t.contiguous() for t in (weight, bias, last_weight, last_bias))
    return library.kernels("triton").relu_products(a, *others)


def _sums(rows: Tensor, factor: float = 1.0) -> Tensor:
    return library.kernels("triton").column_sums(rows, factor)


for _device in ("CPU", "CUDA"):  # on the CPU in Triton's interpreter
    _library.impl("residual_product", _residual, _device)
    _library.impl("wide_product", _wide, _device)
    _library.impl("relu_products", _relu_products, _device)
    _library.impl("column_sums", _sums, _device)


@torch.library.register_fake("repgraph::residual_product", lib=_library)
def _(x, a, weight, bias):
    return torch.empty_like(x, memory_format=torch.channels_last)


@torch.library.register_fake("repgraph::wide_product", lib=_library)
def _(a, weight, bias):
    return weight.new_empty((a.shape[0], weight.shape[0], *a.shape[2:]), dtype=torch.float32)


@torch.library.register_fake("repgraph::relu_products", lib=_library)
def _(a, weight, bias, last_weight, last_bias):
    batch, _, height, width = a.shape
    feature = a.new_empty((batch, height, width, weight.shape[0])).permute(0, 3, 1, 2)
    return feature, a.new_empty((batch, last_weight.shape[0], height, width), dtype=torch.float32)


@torch.library.register_fake("repgraph::column_sums", lib=_library)
def _(rows, factor=1.0):
    return rows.new_empty(rows.shape[1], dtype=torch.float32)


def _save_residual(ctx, inputs, output) -> None:
    _, a, weight, bias = inputs
    ctx.save_for_backward(a, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _residual_backward(ctx, grad):
    a, weight = ctx.saved_tensors
    needs_x, needs_a, needs_weight, needs_bias = ctx.needs_input_grad
    rows = as_rows(grad)
    return (
        grad if needs_x else None,
        as_map(rows @ weight, a) if needs_a else None,
        rows.t() @ as_rows(a) if needs_weight else None,
        column_sums(rows).to(ctx.bias_dtype) if needs_bias else None,
    )


def _save_wide(ctx, inputs, output) -> None:
    a, weight, bias = inputs
    ctx.save_for_backward(a, weight)
    ctx.bias_dtype = bias.dtype


def _wide_backward(ctx, grad):
    """The gradients' products are in the dtype of the features, as under autocast."""
    a, weight = ctx.saved_tensors
    needs_a, needs_weight, needs_bias = ctx.needs_input_grad
    rows = as_rows(grad).to(a.dtype)
    return (
        as_map(rows @ weight.to(a.dtype), a) if needs_a else None,
        (rows.t() @ as_rows(a)).to(weight.dtype) if needs_weight else None,
        grad.sum((0, 2, 3)).to(ctx.bias_dtype) if needs_bias else None,
    )


torch.library.register_autograd(
    "repgraph::residual_product", _residual_backward, setup_context=_save_residual, lib=_library
)
torch.library.register_autograd("repgraph::wide_product", _wide_backward, setup_context=_save_wide, lib=_library)
