"""Logits at the size of the image, with a backward pass made of two products.

PyTorch adds up the gradient of bilinear upsampling with atomic additions, one for each of the four neighbours of each
pixel: a tenth of RGNet's whole training step on an H200, and not the same twice. Bilinear weights are products of
linear ones along rows and columns, so the gradient is two small matrix products.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops.separable import separable


def upsample(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Logits (B, K, h, w) at another size, bilinear between the centres of pixels (align_corners=False).

    Half precision becomes float32 on the small map: the result goes into a softmax, which takes float32 anyway, and
    rounded logits would make ties of what is close.

    >>> upsample(torch.randn(1, 19, 9, 13).bfloat16(), (65, 97)).dtype
    torch.float32
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    height, width = size
    if logits.is_cuda and logits.requires_grad and not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
        return Upsample.apply(logits, height, width)  # type: ignore[no-any-return, no-untyped-call]
    return _interpolate(logits, height, width)


class Upsample(torch.autograd.Function):
    """Bilinear upsampling whose gradient is the same every time, and as precise as products are."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, height: int, width: int) -> Tensor:
        return _interpolate(logits, height, width)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int, int], output: Tensor) -> None:
        ctx.size, ctx.large = inputs[0].shape[2:], inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        rows, columns = (_weights(*sides, grad) for sides in zip(ctx.size, ctx.large, strict=True))
        return separable(grad, rows, columns), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return _interpolate(tangent, *ctx.large)


def _interpolate(logits: Tensor, height: int, width: int) -> Tensor:
    return F.interpolate(logits, size=(height, width), mode="bilinear", align_corners=False)


def _weights(small: int, large: int, like: Tensor) -> Tensor:
    """[small, large]: how much of each position goes into each pixel."""
    one = torch.eye(small, dtype=like.dtype, device=like.device)
    return F.interpolate(one[None], size=large, mode="linear", align_corners=False)[0]
