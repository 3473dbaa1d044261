"""Weights in 8 bits, for files that are shared: about a quarter of the size."""

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".int8_scale"  # suffix of the tensor with the scales of another
MIN_ELEMENTS = 1024  # smaller tensors stay as they are


def compress(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round matrices and convolution kernels to int8, with a float32 scale for each output channel.

    Example:
        >>> weight = torch.randn(64, 32, 1, 1)
        >>> small = compress({"weight": weight})
        >>> small["weight"].dtype, small["weight.int8_scale"].shape
        (torch.int8, torch.Size([64]))
        >>> error = (expand(small)["weight"] - weight).abs().amax((1, 2, 3))
        >>> bool((error <= 0.51 * small["weight.int8_scale"]).all())
        True
    """
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.dim() < 2 or value.numel() < MIN_ELEMENTS or not value.is_floating_point():
            found[name] = value
            continue
        rows = value.float().flatten(1)
        scale = rows.abs().amax(1) / 127
        found[name] = (rows / scale.clamp(min=1e-30)[:, None]).round().to(torch.int8).view_as(value)
        found[name + SCALE] = scale
    return found


def expand(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 weights from the result of :func:`compress`; tensors without scales stay as they are."""
    found = dict(tensors)
    for name in tensors:
        value, scale = tensors[name], tensors.get(name + SCALE)
        if scale is not None and value.dtype == torch.int8 and scale.shape == value.shape[:1]:
            found[name] = (value.flatten(1).float() * scale.float()[:, None]).view(value.shape)
            del found[name + SCALE]
    return found
