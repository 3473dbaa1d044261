"""Channel products (1 x 1 convolutions) of the layers, with Triton kernels for channels-last maps on CUDA."""

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.backends import direct, exporting_onnx, has_float32_tensor_cores, needs_grad, transformed, why_not
from repgraph.ops.checks import forward_mode
from repgraph.ops.formats import as_map, as_rows, is_channels_last
from repgraph.ops.geometry import position_dtype

MAX_OUTPUTS = 128  # output channels of the ``wide_product`` kernel, which fit in one tile

_library = torch.library.Library("repgraph", "FRAGMENT")
_library.define("residual_product(Tensor x, Tensor a, Tensor weight, Tensor? bias) -> Tensor")
_library.define("wide_product(Tensor a, Tensor weight, Tensor bias) -> Tensor")


def residual_product(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Return x + W a + b at every position, in the memory format of ``x``, for a weight (C, C') and a bias (C,).

    ``relu``: apply a ReLU, which is fused into the product in inference.
    """
    weight = weight.to(a.dtype)
    if not residual_fits(x, a):
        y = x + product(a, weight, None if bias is None else bias.to(a.dtype))
    elif direct(x, a, weight, bias) and not needs_grad(x, a, weight, bias):
        return _residual(x, a, weight, bias, relu)
    else:
        y = torch.ops.repgraph.residual_product(x, a, weight, bias)
    return torch.relu(y) if relu else y


def wide_product(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return W a + b at every position, computed in float32 (float64 for float64) for any dtype of ``a``."""
    if wide_fits(a, weight, bias):
        eager = direct(a, weight, bias) and not needs_grad(a, weight, bias)
        return (_wide if eager else torch.ops.repgraph.wide_product)(a, weight, bias)
    wide = position_dtype(a.dtype)
    with library.without_autocast(a.device.type):
        return product(a.to(wide), weight.to(wide), bias.to(wide))


def relu_product(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return relu(W a + b) at every position, for inference: on CUDA the activation is fused into the product."""
    if not fits(a) or torch.is_autocast_enabled("cuda") or weight.dtype != a.dtype:
        return torch.relu(product(a, weight, bias))
    return as_map(torch._addmm_activation(bias, as_rows(a), weight.t()), a)


def product(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W a + b at every position, a 1 x 1 convolution, in the memory format of ``a``.

    PyTorch's matrix products are faster than its convolutions for channels-last maps. ONNX export uses the convolution.
    """
    check_dtypes(a, weight)
    if not is_channels_last(a) or exporting_onnx():
        return F.conv2d(a, weight[:, :, None, None], bias)
    return F.linear(a.permute(0, 2, 3, 1), weight, bias).permute(0, 3, 1, 2)


def check_dtypes(a: Tensor, weight: Tensor) -> None:
    """Raise TypeError if PyTorch cannot multiply a map and a weight of these dtypes."""
    if a.dtype != weight.dtype and not (library.autocasts(a) and library.autocasts(weight)):
        raise TypeError(f"input is {a.dtype} and the weights are {weight.dtype}; use x.to({weight.dtype})")


def column_sums(rows: Tensor, factor: float = 1.0) -> Tensor:
    """Return the sums (C,) over the rows of a matrix (R, C) times a factor, in float32 at least; not differentiable."""
    if direct(rows) and fits(rows):
        return library.kernels("triton").column_sums(rows, factor)
    return rows.sum(0, dtype=torch.promote_types(rows.dtype, torch.float32)) * factor


class _Fork(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return product(x, weight), torch.ops.aten.alias(x)  # view_as would lose the strides of a single image

    @staticmethod
    def backward(ctx, grad, grad_x):
        x, weight = ctx.saved_tensors  # unpack once: checkpointing does not allow more
        grad_weight = as_rows(grad).t() @ as_rows(x).to(grad.dtype)
        return residual_product(grad_x, grad, weight.to(grad.dtype).t()), grad_weight.to(weight.dtype)


def fork(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return W x at every position, and x; the backward pass adds their gradients in the epilogue of one product."""
    if not needs_grad(x) or forward_mode() or torch.jit.is_tracing():
        return product(x, weight), x
    return _Fork.apply(x, weight)


def fits(*maps: Tensor) -> bool:
    """Return whether kernels can run: dense channels-last maps (or matrices) on CUDA, no tracing or transforms."""
    if torch.compiler.is_compiling():
        if exporting_onnx():
            return False
    elif forward_mode() or transformed() or torch.jit.is_tracing():
        return False
    for t in maps:
        memory_format = torch.channels_last if t.dim() == 4 else torch.contiguous_format
        if t.device.type != "cuda" or t.numel() == 0 or not t.is_contiguous(memory_format=memory_format):
            return False
        if why_not("triton", t.device, t.dtype) is not None:
            return False
    return True


def residual_fits(x: Tensor, a: Tensor) -> bool:
    """Return whether the kernel of :func:`residual_product` can run and is faster than PyTorch's product."""
    if x.dtype != a.dtype or not fits(x, a):
        return False
    even = all(t.shape[1] * t.element_size() % 16 == 0 for t in (x, a))  # rows of a multiple of 16 bytes
    return even and (x.dtype != torch.float32 or has_float32_tensor_cores(x.device))


def wide_fits(a: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Return whether the kernel of :func:`wide_product` can run; with float32 features only in inference."""
    if not fits(a) or weight.shape[0] > MAX_OUTPUTS:
        return False
    return a.dtype != torch.float32 or (has_float32_tensor_cores(a.device) and not needs_grad(a, weight, bias))


def _residual(x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    bias = None if bias is None else bias.contiguous()
    rows = library.kernels("triton").residual_product(as_rows(x), as_rows(a), weight.contiguous(), bias, relu)
    return as_map(rows, x)


def _wide(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    a = a.contiguous(memory_format=torch.channels_last)
    return library.kernels("triton").wide_product(a, weight.contiguous(), bias.contiguous())


for _device in ("CPU", "CUDA"):  # CPU: for Triton's interpreter
    _library.impl("residual_product", _residual, _device)
    _library.impl("wide_product", _wide, _device)


@torch.library.register_fake("repgraph::residual_product", lib=_library)
def _(x, a, weight, bias):
    return torch.empty_like(x, memory_format=torch.channels_last)


@torch.library.register_fake("repgraph::wide_product", lib=_library)
def _(a, weight, bias):
    return weight.new_empty((a.shape[0], weight.shape[0], *a.shape[2:]), dtype=torch.float32)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[-3:])


def _residual_backward(ctx, grad):
    a, weight, bias = ctx.saved_tensors
    needs_x, needs_a, needs_weight, needs_bias = ctx.needs_input_grad
    rows = as_rows(grad)
    return (
        grad if needs_x else None,
        as_map(rows @ weight, a) if needs_a else None,
        rows.t() @ as_rows(a) if needs_weight else None,
        column_sums(rows).to(bias.dtype) if needs_bias else None,
    )


def _wide_backward(ctx, grad):
    """Compute the products of the gradients in the dtype of the features, as autocast does."""
    a, weight, bias = ctx.saved_tensors
    outputs = weight.shape[0]
    rows = a.new_zeros((a.shape[0] * a.shape[2] * a.shape[3], (outputs + 7) // 8 * 8))  # rows of 16 bytes
    as_map(rows, a)[:, :outputs] = grad
    with library.without_autocast(a.device.type):
        grad_weight = (rows.t() @ as_rows(a))[:outputs].to(weight.dtype)
        needed = ctx.needs_input_grad[0]
        grad_a = as_map(rows[:, :outputs] @ weight.to(a.dtype), a) if needed else None
    return grad_a, grad_weight, grad.sum((0, 2, 3)).to(bias.dtype)


torch.library.register_autograd("repgraph::residual_product", _residual_backward, setup_context=_save, lib=_library)
torch.library.register_autograd("repgraph::wide_product", _wide_backward, setup_context=_save, lib=_library)
