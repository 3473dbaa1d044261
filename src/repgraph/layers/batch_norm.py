"""Batch normalisation after a 1 x 1 convolution, worked into the convolution.

A convolution z = W a, followed by batch normalisation, is the convolution s W a + t with an s and a t for each channel.
In evaluation they come from the running statistics; in training from the mean and variance of z over the batch, and
those from the moments of ``a`` (:mod:`repgraph.ops.normalised`), whose channels are fewer: the wide map z is neither
written nor read for its statistics, in the backward pass neither.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from repgraph.layers.pointwise import Pointwise
from repgraph.ops.backends import direct
from repgraph.ops.checks import forward_mode
from repgraph.ops.library import unrounded
from repgraph.ops.normalised import moments, normalised_fits, normalised_product, normalised_relu
from repgraph.ops.product import fits, residual_product

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def add_normalised(x: Tensor, a: Tensor, convolution: nn.Module, norm: nn.Module) -> Tensor:
    """``x + norm(convolution(a))``, as one product with ``x`` added on its way out where that is possible.

    In training, running statistics are brought forward as the normalisation itself would do it. Modules of other types
    and such with hooks are called as they are.
    """
    if type(convolution) is not Pointwise or not plain(convolution, norm) or forward_mode():
        return x + norm(convolution(a))
    weight = convolution.weight.flatten(1)
    if type(norm) is nn.Identity:
        return residual_product(x, a, weight, convolution.bias)
    if type(norm) is not nn.BatchNorm2d or convolution.bias is not None or a.numel() <= a.shape[1]:
        return x + norm(convolution(a))
    with unrounded(a.device.type):
        if not _of_the_batch(norm):
            assert norm.running_mean is not None and norm.running_var is not None
            return residual_product(x, a, *_folded(weight, norm, norm.running_mean, norm.running_var))
        if _has_kernels(norm) and normalised_fits(x, a, weight):
            return normalised_product(
                x, a, weight, norm.weight, norm.bias, _running(norm), norm.eps, norm.momentum or 0.0
            )
        mean, covariance = moments(a)
        wide = weight.to(mean.dtype)
        mean, variance = wide @ mean, ((wide @ covariance) * wide).sum(1).clamp(min=0)
        _track(norm, mean.detach(), variance.detach(), a.numel() // a.shape[1])
        return residual_product(x, a, *_folded(weight, norm, mean, variance))


def normalised(x: Tensor, norm: nn.Module, act: nn.Module) -> Tensor:
    """``act(norm(x))``; batch normalisation by the batch and ReLU in one step where there are kernels for it."""
    if type(norm) is not nn.BatchNorm2d or type(act) is not nn.ReLU or not plain(norm, act):
        return act(norm(x))
    if not _of_the_batch(norm) or not _has_kernels(norm) or x.numel() <= x.shape[1] or not (direct(x) and fits(x)):
        return act(norm(x))
    return normalised_relu(x, norm.weight, norm.bias, _running(norm), norm.eps, norm.momentum or 0.0)


def _has_kernels(norm: nn.BatchNorm2d) -> bool:
    return norm.momentum is not None and (norm.weight is None) == (norm.bias is None)


def _folded(weight: Tensor, norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (C, C') and bias (C) of the product that the convolution and its normalisation are."""
    wide = torch.promote_types(weight.dtype, torch.float32)
    scale = torch.rsqrt(variance.to(wide) + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -mean * scale
    shift = shift if norm.bias is None else shift + norm.bias
    return (weight * scale[:, None]).to(weight.dtype), shift


def _of_the_batch(norm: nn.BatchNorm2d) -> bool:
    """Whether it normalises by the statistics of the batch, not by running ones."""
    return norm.training or norm.running_mean is None or norm.running_var is None


def _running(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor] | None:
    """The running statistics that this batch brings forward, the count of which goes up; None if there are none."""
    if not norm.training or not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return None
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return norm.running_mean, norm.running_var


def _track(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Running statistics, as nn.BatchNorm2d keeps them."""
    running = _running(norm)
    if running is None:
        return
    share: float | Tensor = norm.momentum or 0.0
    if norm.momentum is None and norm.num_batches_tracked is not None:
        share = 1 / norm.num_batches_tracked.to(mean.dtype)
    for old, new in zip(running, (mean, variance * (count / (count - 1))), strict=True):
        old.copy_(torch.lerp(old, new.to(old.dtype), share))  # type: ignore[arg-type]


def fold(convolution: nn.Module, norm: nn.Module) -> tuple[Any, nn.Module]:
    """A convolution with the batch normalisation after it, and its running statistics, worked in.

    Gives that convolution, a new one (the old may be used elsewhere too), and what has to follow it: nothing. For
    anything but a batch normalisation that goes by running statistics it is the two as they are; also if the weight is
    not the convolution's own (but computed from others, as in spectral normalisation) and for modules with hooks.
    """
    if type(convolution) not in (Pointwise, nn.Conv2d) or type(norm) not in (nn.BatchNorm2d, nn.SyncBatchNorm):
        return convolution, norm
    assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm)
    if not plain(convolution, norm) or norm.training or norm.running_mean is None or norm.running_var is None:
        return convolution, norm
    wide = torch.promote_types(norm.running_var.dtype, torch.float32)
    folded = copy.copy(convolution)
    folded._parameters = dict(convolution._parameters)
    folded.weight, folded.bias = fuse_conv_bn_weights(
        convolution.weight,
        convolution.bias,
        norm.running_mean.to(wide),
        norm.running_var.to(wide),
        norm.eps,
        norm.weight,
        norm.bias,
    )
    folded.bias.requires_grad_(convolution.weight.requires_grad)
    return folded, nn.Identity()


def plain(*modules: nn.Module) -> bool:
    """Whether modules do what their type says and nothing besides: no hooks, and no transform of torch.func to see."""
    if not torch.compiler.is_compiling() and (
        torch._C._functorch.peek_interpreter_stack() is not None or torch.nn.modules.module._has_any_global_hook()
    ):
        return False
    return not any("forward" in vars(module) or any(getattr(module, name) for name in _HOOKS) for module in modules)


def fold_first(convolution: nn.Module, after: nn.Module) -> tuple[Any, nn.Module]:
    """The same for the first of several modules after the convolution."""
    if not isinstance(after, nn.Sequential) or not len(after):
        return convolution, after
    folded, norm = fold(convolution, after[0])
    return folded, after if norm is after[0] else nn.Sequential(norm, *after[1:])


def check_eval(layer: nn.Module) -> None:
    if layer.training:
        raise RuntimeError(f"fuse() is for inference, and this {type(layer).__name__} is in training mode; call eval()")
