"""A product, batch normalisation over its result, and a map added to it: in training, in one step on CUDA.

The mean and variance of z = W a over a batch follow from the mean m and the covariance K of the channels of ``a``,

    mean(z) = W m        var(z) = diag(W K W^T),

so that normalising z is another product, s W a + t, and z itself is never written. :func:`moments` gives m and K;
:func:`normalised_product` is the whole, for the shapes that have kernels. (``repgraph.layers.batch_norm`` composes the
same from PyTorch's operations, for everything else and for ``torch.compile``, which makes kernels of its own.)
"""

import torch
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.backends import direct
from repgraph.ops.product import as_map, as_rows, column_sums, residual_fits

_library = torch.library.Library("repgraph", "FRAGMENT")
_library.define("moments(Tensor a) -> (Tensor mean, Tensor covariance)")


def moments(a: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (C) and covariance (C, C) of the channels of a map (B, C, H, W), in float32 at least; differentiable."""
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
    with library.unrounded(a.device.type):
        # shape[0], not len: that would make another program of it for every size, when compiled
        slope = ((grad_covariance + grad_covariance.t()) / rows.shape[0]).to(a.dtype)
        shift = grad_mean / rows.shape[0] - slope.to(mean.dtype) @ mean  # of the rounded slope: the means cancel
        return as_map(torch.addmm(shift.to(a.dtype), rows, slope), a)


torch.library.register_autograd("repgraph::moments", _moments_backward, setup_context=_save_moments, lib=_library)


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(rows.dtype, torch.float32)
    mean = column_sums(rows, 1 / len(rows))
    if rows.is_cuda and rows.dtype != wide:  # of half precision, whose own rounding is what cancels first
        products = torch.mm(rows.t(), rows, out_dtype=wide)
        return mean, torch.addr(products, mean, mean, beta=1 / len(rows), alpha=-1)
    apart = rows - mean
    return mean, (apart.t() @ apart).div_(len(rows))


def normalised_fits(x: Tensor, a: Tensor, weight: Tensor) -> bool:
    """Whether :func:`normalised_product` takes these: CUDA maps in channels-last, in eager mode."""
    return direct(x, a, weight) and residual_fits(x, a) and weight.dtype in (a.dtype, torch.float32)


def normalised_product(
    x: Tensor, a: Tensor, weight: Tensor, gamma: Tensor | None, beta: Tensor | None,
    running: tuple[Tensor, Tensor] | None, eps: float, momentum: float,
) -> Tensor:  # fmt: skip
    """x + batch_norm(W a) with the statistics of this batch.

    Args:
        x: (B, C, H, W).
        a: (B, C', H, W), of the dtype of ``x``; at least two positions in all.
        weight: (C, C').
        gamma, beta: weight and bias (C) of the normalisation, both or none.
        running: mean and variance (C) to bring forward in place by ``momentum``.
    """
    return _NormalisedProduct.apply(x, a, weight, gamma, beta, running, eps, momentum)


class _NormalisedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, a, weight, gamma, beta, running, eps, momentum):
        kernels = library.kernels("triton")
        rows, weight = as_rows(a), weight.contiguous()
        mean, covariance = _moments(rows)
        wide = weight.float()
        projected = wide @ covariance
        folded, shift, means, rstds = kernels.fold(
            weight, projected, mean, gamma, beta, running, eps, momentum, len(rows), a.dtype
        )
        ctx.save_for_backward(a, weight, wide, gamma, beta, mean, projected, folded, means, rstds)
        return as_map(kernels.residual_product(as_rows(x), rows, folded, shift), x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        a, weight, wide, gamma, beta, mean, projected, folded, means, rstds = ctx.saved_tensors
        kernels = library.kernels("triton")
        rows, grads = as_rows(a), as_rows(grad)
        grad_shift = kernels.column_sums(grads)
        with library.unrounded(a.device.type):
            grad_weight, grad_gamma, weighted = kernels.fold_backward(
                weight, projected, mean, gamma, means, rstds, grads.t() @ rows, grad_shift, len(rows)
            )
            slope, shift = kernels.settle(wide.t() @ weighted, mean, a.dtype)
            grad_a = torch.addmm(shift, rows, slope).addmm_(grads, folded)
        grad_beta = None if beta is None else grad_shift.to(beta.dtype)
        return grad, as_map(grad_a, a), grad_weight, grad_gamma, grad_beta, None, None, None


def normalised_relu(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, running: tuple[Tensor, Tensor] | None, eps: float,
    momentum: float,
) -> Tensor:  # fmt: skip
    """relu(batch_norm(x)) with the statistics of this batch, for a channels-last map on CUDA; else as above."""
    return _NormalisedRelu.apply(x, gamma, beta, running, eps, momentum)


class _NormalisedRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, beta, running, eps, momentum):
        y, numbers = library.kernels("triton").norm_relu(as_rows(x), gamma, beta, running, eps, momentum)
        ctx.save_for_backward(x, gamma, beta, numbers)
        return as_map(y, x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, gamma, beta, numbers = ctx.saved_tensors
        grad_x, sums = library.kernels("triton").norm_relu_backward(as_rows(grad), as_rows(x), numbers)
        of_beta, of_gamma = (None, None) if gamma is None or beta is None else sums.to(gamma.dtype)
        return as_map(grad_x, x), of_gamma, of_beta, None, None, None
