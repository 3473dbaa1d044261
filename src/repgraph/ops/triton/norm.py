"""Batch normalisation worked into the weight of the product before it: what each of its channels needs."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from repgraph.ops.triton.plan import Plan, aligned, on
from repgraph.ops.triton.tiles import power_of_two

_ELEMENTS = 4096  # of the weight in one program


@triton.jit
def bring_forward(running, channel, here, new, momentum):
    """Running statistics of some channels, moved towards this batch's."""
    old = tl.load(running + channel, mask=here, other=0.0).to(tl.float32)
    tl.store(running + channel, (old + momentum * (new - old)).to(running.dtype.element_ty), mask=here)


@triton.jit
def _fold(
    weight, projected, mean, gamma, beta, running_mean, running_var, folded, shift, means, rstds,
    channels, inner, eps, momentum, correction, AFFINE: tl.constexpr, TRACK: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    here = channel < channels
    where = channel[:, None] * inner + k[None, :]
    inside = here[:, None] & (k < inner)[None, :]
    w = tl.load(weight + where, mask=inside, other=0.0).to(tl.float32)  # [M, K]
    m = tl.sum(w * tl.load(mean + k, mask=k < inner, other=0.0)[None, :], 1)
    variance = tl.maximum(tl.sum(w * tl.load(projected + where, mask=inside, other=0.0), 1), 0.0)
    rstd = 1 / tl.sqrt_rn(variance + eps)
    scale = rstd
    t = -m * rstd
    if AFFINE:
        scale *= tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)
        t = tl.load(beta + channel, mask=here, other=0.0).to(tl.float32) - m * scale
    tl.store(folded + where, (w * scale[:, None]).to(folded.dtype.element_ty), mask=inside)
    tl.store(shift + channel, t, mask=here)
    tl.store(means + channel, m, mask=here)
    tl.store(rstds + channel, rstd, mask=here)
    if TRACK:
        bring_forward(running_mean, channel, here, m, momentum)
        bring_forward(running_var, channel, here, variance * correction, momentum)


def fold(
    weight: Tensor, projected: Tensor, mean: Tensor, gamma: Tensor | None, beta: Tensor | None,
    running: tuple[Tensor, Tensor] | None, eps: float, momentum: float, count: int, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Folded weight (C, C') in ``dtype`` and shift (C), and the means and 1/deviations of the C channels.

    ``projected`` is the weight times the covariance of its C' inputs, ``mean`` their mean; running statistics are
    brought forward in place.
    """
    folded = torch.empty_like(weight, dtype=dtype)
    shift, means, rstds = torch.empty((3, len(weight)), dtype=torch.float32, device=weight.device)
    unused = mean
    gammas = (unused, unused) if gamma is None or beta is None else (gamma, beta)
    track = (unused, unused) if running is None else running
    plan = _fold_plan(
        weight.shape, weight.dtype, dtype, gammas[0].dtype, track[0].dtype, weight.get_device(),
        aligned(weight, projected, mean, *gammas, *track), gamma is not None, running is not None,
    )  # fmt: skip
    with on(weight):
        plan(
            weight, projected, mean, *gammas, *track, folded, shift, means, rstds, *weight.shape, eps, momentum,
            count / (count - 1),
        )  # fmt: skip
    return folded, shift, means, rstds


@lru_cache(256)
def _fold_plan(shape, dtype, folded, gamma, running, device, is_aligned, affine, track) -> Plan:
    return Plan(_fold, *_tiles(shape, {"AFFINE": affine, "TRACK": track}), num_warps=4)


@triton.jit
def _fold_backward(
    weight, projected, mean, gamma, means, rstds, grad_folded, grad_shift, grad_weight, grad_gamma, weighted, count,
    channels, inner, AFFINE: tl.constexpr, M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    here = channel < channels
    where = channel[:, None] * inner + k[None, :]
    inside = here[:, None] & (k < inner)[None, :]
    w = tl.load(weight + where, mask=inside, other=0.0).to(tl.float32)  # [M, K]
    d = tl.load(grad_folded + where, mask=inside, other=0.0).to(tl.float32)
    p = tl.load(projected + where, mask=inside, other=0.0)
    m = tl.load(means + channel, mask=here, other=0.0)
    rstd = tl.load(rstds + channel, mask=here, other=0.0)
    grad_t = tl.load(grad_shift + channel, mask=here, other=0.0)
    grad_scale = tl.sum(d * w, 1) - grad_t * m
    scale = rstd
    if AFFINE:
        g = tl.load(gamma + channel, mask=here, other=0.0).to(tl.float32)
        scale *= g
        tl.store(grad_gamma + channel, (grad_scale * rstd).to(grad_gamma.dtype.element_ty), mask=here)
    grad_variance = -0.5 * grad_scale * scale * rstd * rstd
    grad_mean = -grad_t * scale
    from_mean = grad_mean[:, None] * tl.load(mean + k, mask=k < inner, other=0.0)[None, :]
    grad_w = scale[:, None] * d + 2 * grad_variance[:, None] * p + from_mean
    tl.store(grad_weight + where, grad_w.to(grad_weight.dtype.element_ty), mask=inside)
    place = channel * (inner + 1)
    tl.store(weighted + place[:, None] + k[None, :], (2 / count * grad_variance)[:, None] * w, mask=inside)
    tl.store(weighted + place + inner, grad_mean / count, mask=here)


def fold_backward(
    weight: Tensor, projected: Tensor, mean: Tensor, gamma: Tensor | None, means: Tensor, rstds: Tensor,
    grad_folded: Tensor, grad_shift: Tensor, count: int,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Gradients of weight and gamma; and (C, C' + 1), of ``count`` rows: the weight times twice the mean gradient of
    each channel's variance, and beside it that of its mean."""
    channels, inner = weight.shape
    grad_weight, grad_gamma = torch.empty_like(weight), None if gamma is None else torch.empty_like(gamma)
    weighted = torch.empty((channels, inner + 1), dtype=torch.float32, device=weight.device)
    unused = mean
    gammas = (unused, unused) if gamma is None else (gamma, grad_gamma)
    plan = _fold_backward_plan(
        weight.shape, weight.dtype, grad_folded.dtype, gammas[0].dtype, weight.get_device(),
        aligned(weight, projected, mean, gammas[0], grad_folded), gamma is not None,
    )  # fmt: skip
    with on(weight):
        plan(
            weight, projected, mean, gammas[0], means, rstds, grad_folded, grad_shift, grad_weight, gammas[1],
            weighted, float(count), *weight.shape,
        )  # fmt: skip
    return grad_weight, grad_gamma, weighted


@lru_cache(256)
def _fold_backward_plan(shape, dtype, folded, gamma, device, is_aligned, affine) -> Plan:
    return Plan(_fold_backward, *_tiles(shape, {"AFFINE": affine}), num_warps=4)


@triton.jit
def _settle(product, mean, slope, shift, inner, K: tl.constexpr):
    row = tl.program_id(0)
    k = tl.arange(0, K)
    here = k < inner
    place = product + row * (inner + 1)
    s = tl.load(place + k, mask=here, other=0.0).to(slope.dtype.element_ty)
    tl.store(slope + row * inner + k, s, mask=here)
    moved = tl.sum(s.to(tl.float32) * tl.load(mean + k, mask=here, other=0.0), 0)
    tl.store(shift + row, (tl.load(place + inner) - moved).to(shift.dtype.element_ty))


def settle(product: Tensor, mean: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Slope (C', C') and shift (C') in ``dtype`` from a product (C', C' + 1), the slope and what is beside it.

    The shift is what is beside it, less the rounded slope times ``mean``, so that the means cancel.
    """
    inner = len(mean)
    slope = torch.empty((inner, inner), dtype=dtype, device=mean.device)
    shift = torch.empty(inner, dtype=dtype, device=mean.device)
    with on(mean):
        _settle_plan(inner, dtype, mean.get_device(), aligned(product, mean))(product, mean, slope, shift)
    return slope, shift


@lru_cache(256)
def _settle_plan(inner, dtype, device, is_aligned) -> Plan:
    return Plan(_settle, (inner,), (inner,), {"K": power_of_two(inner)}, num_warps=2)


def _tiles(shape: tuple[int, int], constants: dict[str, bool]) -> tuple[tuple[int], tuple, dict]:
    """Programs, no numbers of a plan's own, and constants."""
    channels, inner = shape
    k = power_of_two(inner)
    m = max(1, _ELEMENTS // k)
    return (-(-channels // m),), (), {**constants, "M": m, "K": k}
