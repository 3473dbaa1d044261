"""Fused batch normalization for training on CUDA: of a product, with a residual, and with ReLU.

The mean and variance of z = W a over a batch follow from the mean m and the covariance K of the channels of ``a``::

    mean(z) = W m        var(z) = diag(W K W^T)

So normalizing z is another product, s W a + t, and z is never written. For maps without kernels, and under
``torch.compile``, ``repgraph.layers.pointwise`` computes the same with PyTorch's operations.
"""

import torch
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.backends import direct
from repgraph.ops.formats import as_map, as_rows
from repgraph.ops.product import column_sums, residual_fits

_library = torch.library.Library("repgraph", "FRAGMENT")
_library.define("moments(Tensor a) -> (Tensor mean, Tensor covariance)")


def moments(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (C,) and covariance (C, C) of the channels of a map, in float32 at least; differentiable."""
    return torch.ops.repgraph.moments(a)


for _device in ("CPU", "CUDA"):
    _library.impl("moments", lambda a: _moments(as_rows(a)), _device)


@torch.library.register_fake("repgraph::moments", lib=_library)
def _(a):
    mean = a.new_empty(a.shape[1], dtype=torch.promote_types(a.dtype, torch.float32))
    return mean, mean.new_empty((a.shape[1], a.shape[1]))


def _save_moments(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0], output[0])


def _moments_backward(ctx, grad_mean, grad_covariance):
    a, mean = ctx.saved_tensors
    rows = as_rows(a)
    count = rows.shape[0]  # not len, for which torch.compile would specialize on every size
    with library.without_autocast(a.device.type):
        slope = ((grad_covariance + grad_covariance.t()) / count).to(rows.dtype)
        # Both products use the rounded slope, so the means cancel.
        shift = grad_mean / count - slope.to(mean.dtype) @ mean
        return as_map(torch.addmm(shift.to(rows.dtype), rows, slope), a)


torch.library.register_autograd("repgraph::moments", _moments_backward, setup_context=_save_moments, lib=_library)


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    mean, products, centred = _sums(rows)
    return mean, products.div_(len(rows)) if centred else torch.addr(products, mean, mean, beta=1 / len(rows), alpha=-1)


def _sums(rows: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Return the mean (C,) of a matrix, the sums of products (C, C) of its columns, and whether these are centred."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    mean = column_sums(rows, 1 / len(rows))
    if rows.is_cuda and rows.dtype != wide:  # half precision: its rounding exceeds the cancellation
        return mean, torch.mm(rows.t(), rows, out_dtype=wide), False
    apart = rows - mean
    return mean, apart.t() @ apart, True


def normalised_fits(x: Tensor, a: Tensor, weight: Tensor) -> bool:
    """Return whether :func:`normalised_product` supports these: channels-last maps on CUDA, in eager mode."""
    return direct(x, a, weight) and residual_fits(x, a) and weight.dtype in (a.dtype, torch.float32)


class _NormalisedProduct(torch.autograd.Function):
    """x + batch_norm(W a), optionally followed by a ReLU, with the statistics of this batch (two positions or more).

    ``gamma`` and ``beta`` are weight and bias (C,) of the normalization, ``running`` its running mean and variance,
    which are updated in place.
    """

    @staticmethod
    def forward(ctx, x, a, weight, gamma, beta, running, eps, momentum, relu):
        y, *saved = product_rows(as_rows(x), as_rows(a), weight, gamma, beta, running, eps, momentum, relu)
        y = as_map(y, x)
        ctx.save_for_backward(a, gamma, y if relu else None, *saved)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        a, gamma, y, *saved = ctx.saved_tensors
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        with library.without_autocast(a.device.type):
            grad_a, *grads = product_rows_backward(as_rows(grad), as_rows(a), gamma, *saved)
        return grad, as_map(grad_a, a), *grads, None, None, None, None


def product_rows(
    x: Tensor, a: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, running: tuple[Tensor, Tensor], eps: float,
    momentum: float, relu: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute :func:`normalised_product` of matrices; return it with the tensors for :func:`product_rows_backward`."""
    kernels = library.kernels("triton")
    mean, products, centred = _sums(a)
    weight = weight.contiguous()
    folded, projected, numbers = kernels.fold(
        weight, products, mean, gamma, beta, running, eps, momentum, len(a), centred, a.dtype
    )
    return kernels.residual_product(x, a, folded, numbers, relu), weight, mean, folded, projected, numbers


def product_rows_backward(
    grads: Tensor, a: Tensor, gamma: Tensor, weight: Tensor, mean: Tensor, folded: Tensor, projected: Tensor,
    numbers: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of ``a``, weight, gamma and beta."""
    kernels = library.kernels("triton")
    grad_weight, grad_gamma, grad_beta, weighted = kernels.fold_backward(
        weight, projected, mean, gamma, numbers, torch.mm(grads.t(), a), kernels.column_parts(grads), len(a)
    )
    slope, shift = kernels.slope_and_shift(torch.mm(weight.float().t(), weighted), mean, a.dtype)
    grad_a = torch.addmm(shift, a, slope).addmm_(grads, folded)
    return grad_a, grad_weight, grad_gamma, grad_beta


class _NormalisedRelu(torch.autograd.Function):
    """relu(batch_norm(x)) of a channels-last map on CUDA; arguments as in ``_NormalisedProduct``."""

    @staticmethod
    def forward(ctx, x, gamma, beta, running, eps, momentum):
        y, numbers = library.kernels("triton").norm_relu(as_rows(x), gamma, beta, running, eps, momentum)
        ctx.save_for_backward(x, gamma, numbers)
        return as_map(y, x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, gamma, numbers = ctx.saved_tensors
        grad_x, sums = library.kernels("triton").norm_relu_backward(as_rows(grad), as_rows(x), numbers)
        grad_beta, grad_gamma = sums.to(gamma.dtype)
        return as_map(grad_x, x), grad_gamma, grad_beta, None, None, None


def fold_running(
    weight: Tensor, gamma: Tensor, beta: Tensor, running: tuple[Tensor, Tensor], eps: float
) -> tuple[Tensor, Tensor]:
    """Return weight (C, C') and shift (C,) of a product with normalization by running statistics folded in."""
    return library.kernels("triton").fold_running(weight.contiguous(), gamma, beta, running, eps, weight.dtype)


def running_relu(x: Tensor, gamma: Tensor, beta: Tensor, running: tuple[Tensor, Tensor], eps: float) -> Tensor:
    """Return relu(batch_norm(x)) of a channels-last map on CUDA with running statistics, for inference."""
    return as_map(library.kernels("triton").norm_relu_running(as_rows(x), gamma, beta, running, eps), x)


normalised_product, normalised_relu = _NormalisedProduct.apply, _NormalisedRelu.apply
