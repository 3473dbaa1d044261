"""The bottleneck RepGraph layer on CUDA in one autograd function, on matrices (B H W, C) throughout.

Called part by part, the layer takes PyTorch longer on the host than on the GPU: for views, allocations and the nodes of
autograd. ``repgraph.layers`` does so where :func:`bottleneck_fits` is false.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.backends import direct, has_float32_tensor_cores, needs_grad
from repgraph.ops.formats import as_map, as_rows, view_map, view_rows
from repgraph.ops.normalised import fold_running, product_rows, product_rows_backward
from repgraph.ops.product import MAX_OUTPUTS, fits


class Weights(NamedTuple):
    """Parameters: weights of the 1 x 1 convolutions (C_out, C_in, 1, 1), and weight and bias of the normalizations."""

    reduce: Tensor
    gamma: Tensor
    beta: Tensor
    offset: Tensor
    offset_bias: Tensor
    expand: Tensor
    expand_gamma: Tensor
    expand_beta: Tensor


class Statistics(NamedTuple):
    """Running mean and variance of a normalization, and its options."""

    running: tuple[Tensor, Tensor]
    eps: float
    momentum: float


def bottleneck_fits(x: Tensor, weights: Weights, training: bool) -> bool:
    """Return whether :func:`bottleneck` supports these: channels-last maps on CUDA, in eager mode."""
    if any(t is None for t in weights) or not (direct(x, *weights) and fits(x)):
        return False
    if x.dtype == torch.float32 and (training or not has_float32_tensor_cores(x.device)):
        return False
    autocast = library.autocasting(x)
    dtypes = (x.dtype, torch.float32) if autocast else (x.dtype,)
    inner, channels = weights.reduce.shape[:2]
    return (
        (training or not needs_grad(x, *weights))
        and (not autocast or torch.get_autocast_dtype(x.device.type) == x.dtype)
        and weights.reduce.dtype in dtypes
        and weights.expand.dtype in dtypes
        and weights.offset.shape[0] <= MAX_OUTPUTS
        and inner % 8 == channels % 8 == 0  # rows of a multiple of 16 bytes
        and x.numel() > channels
    )


def bottleneck(
    x: Tensor, weights: Weights, statistics: tuple[Statistics, Statistics], training: bool, groups: int, scale: float,
    relu: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return x + norm(expand(attend(f))), f = relu(norm(reduce(x))), and the offsets of the nodes, which have no grad.

    ``training``: normalize by the batch and update the running statistics. ``relu``: followed by a ReLU.
    """
    if training:
        return _Bottleneck.apply(x, *weights, *statistics, groups, scale, relu)
    kernels = library.kernels("triton")
    first, last = statistics
    with library.without_autocast(x.device.type):
        rows = view_rows(x)
        z = F.linear(rows, weights.reduce.flatten(1).to(x.dtype))
        f = view_map(kernels.norm_relu_running(z, weights.gamma, weights.beta, first.running, first.eps), x)
        offsets = kernels.wide_product(f, weights.offset.contiguous(), weights.offset_bias.contiguous())
        response = kernels.one_map_forward(f, f, None, offsets, groups, 1, scale, False, with_lse=False)[0]
        expand = weights.expand.flatten(1).to(x.dtype)
        folded = fold_running(expand, weights.expand_gamma, weights.expand_beta, last.running, last.eps)
        return view_map(kernels.residual_product(rows, view_rows(response), *folded, relu), x), offsets


class _Bottleneck(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, reduce, gamma, beta, offset, offset_bias, expand, expand_gamma, expand_beta, *options):
        first, last, *ctx.attention, relu = options
        kernels = library.kernels("triton")
        with library.without_autocast(x.device.type):
            rows = view_rows(x)
            z = F.linear(rows, reduce.flatten(1).to(x.dtype))
            f, numbers = kernels.norm_relu(z, gamma, beta, *first)
            f = view_map(f, x)
            offsets = kernels.wide_product(f, offset.contiguous(), offset_bias.contiguous())
            groups, scale = ctx.attention
            response, lse, *_ = kernels.one_map_forward(f, f, None, offsets, groups, 1, scale, False)
            a, weight, momentum = view_rows(response), expand.flatten(1), last.momentum
            y, *saved = product_rows(rows, a, weight, expand_gamma, expand_beta, last.running, last.eps, momentum, relu)
        y = view_map(y, x)
        own = y if relu else None
        ctx.save_for_backward(
            x, reduce, gamma, z, numbers, f, offset, offset_bias, offsets, response, lse, expand_gamma, own, *saved
        )
        ctx.mark_non_differentiable(offsets)
        ctx.set_materialize_grads(False)
        return y, offsets

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad, _):
        # unpack once: checkpointing does not allow more
        x, reduce, gamma, z, numbers, f, offset, offset_bias, offsets, response, lse, expand_gamma, y, *saved = (
            ctx.saved_tensors
        )
        if grad is None:
            return (None,) * 14
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        kernels = library.kernels("triton")
        groups, scale = ctx.attention
        with library.without_autocast(x.device.type):
            rows, grads = view_rows(x), as_rows(grad)
            d, grad_expand, *grads_expand_norm = product_rows_backward(grads, view_rows(response), expand_gamma, *saved)
            grad_f, _, _, grad_offsets = kernels.one_map_backward(
                view_map(d, x), None, f, f, None, offsets, response, lse, groups, 1, scale, joint=True
            )
            outputs = len(offset)
            d = x.new_empty((len(rows), (outputs + 7) // 8 * 8))[:, :outputs]  # rows of a multiple of 16 bytes
            as_map(d, x).copy_(grad_offsets)
            grad_offset = torch.mm(d.t(), view_rows(f)).to(offset.dtype)
            grad_f = view_rows(grad_f).addmm_(d, offset.flatten(1).to(x.dtype))
            grad_z, sums = kernels.norm_relu_backward(grad_f, z, numbers)
            grad_beta, grad_gamma = sums.to(gamma.dtype)
            grad_x = grad_reduce = None
            if ctx.needs_input_grad[1]:
                grad_reduce = torch.mm(grad_z.t(), rows).to(reduce.dtype).view(reduce.shape)
            if ctx.needs_input_grad[0]:
                back = reduce.flatten(1).to(x.dtype).t().contiguous()
                grad_x = view_map(kernels.residual_product(grads, grad_z, back, None), x)
        grads_offset = grad_offset.view(offset.shape), grad_offsets.sum((0, 2, 3)).to(offset_bias.dtype)
        expand = grad_expand.view(*grad_expand.shape, 1, 1)
        return grad_x, grad_reduce, grad_gamma, grad_beta, *grads_offset, expand, *grads_expand_norm, *(None,) * 5
