"""Bilinear resizing of maps, with ``align_corners=False``."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops import library
from repgraph.ops.backends import direct
from repgraph.ops.checks import forward_mode
from repgraph.ops.product import fits
from repgraph.ops.separable import separable


def resize(x: Tensor, size: Sequence[int], dtype: torch.dtype | None = None, contiguous: bool = False) -> Tensor:
    """Resize a map (B, C, h, w) to ``size`` (H, W), bilinearly with ``align_corners=False``.

    Args:
        x: The map. Autocast does not change its dtype.
        size: Height and width of the result.
        dtype: Of the result. Default: that of ``x``.
        contiguous: Whether the result of a channels-last map is contiguous; only on CUDA.
    """
    dtype = x.dtype if dtype is None else dtype
    if x.is_cuda and direct(x) and not (torch.jit.is_tracing() or forward_mode()):
        return _Resize.apply(x, *size, dtype, contiguous)  # type: ignore[no-any-return, no-untyped-call]
    with library.without_autocast(x.device.type):
        return F.interpolate(x.to(dtype), size=tuple(size), mode="bilinear", align_corners=False)


class _Resize(torch.autograd.Function):
    """The gradient is deterministic, and faster than PyTorch's, which uses atomic additions."""

    @staticmethod
    def forward(ctx, x, height, width, dtype, contiguous):
        ctx.shape, ctx.dtype, size = x.shape, x.dtype, (height, width)
        ctx.contiguous = contiguous if fits(x) else None
        if ctx.contiguous is not None:
            return library.kernels("triton").resize(x, size, dtype, contiguous)
        with library.without_autocast(x.device.type):
            return F.interpolate(x.to(dtype), size=size, mode="bilinear", align_corners=False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        if ctx.contiguous is not None:
            layout = torch.contiguous_format if ctx.contiguous else torch.channels_last
            grad = grad.contiguous(memory_format=layout)
            grad = library.kernels("triton").resize_backward(grad, ctx.shape, ctx.dtype, ctx.contiguous)
        else:
            sides = zip(ctx.shape[2:], grad.shape[2:], strict=True)
            grad = separable(grad, *(_linear_weights(*lengths, grad) for lengths in sides)).to(ctx.dtype)
        return grad, None, None, None, None


def _linear_weights(small: int, large: int, like: Tensor) -> Tensor:
    """Return [small, large]: the weight of each position in each pixel."""
    identity = torch.eye(small, dtype=like.dtype, device=like.device)
    return F.interpolate(identity[None], size=large, mode="linear", align_corners=False)[0]
