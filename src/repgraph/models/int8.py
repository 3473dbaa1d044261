"""Weights in 8 bits, for files that are shared: about a quarter of the size."""

from collections.abc import Mapping

import torch
from torch import Tensor

from repgraph.errors import UsageError

SCALE = ".int8_scale"  # suffix of the tensor with the scales of another
MIN_ELEMENTS = 2**16  # smaller tensors, such as the first convolutions, stay as they are: rounding them costs most


def compress(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round matrices and convolution kernels to int8, with a float32 scale for each output channel."""
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.dim() < 2 or value.numel() < MIN_ELEMENTS or not value.is_floating_point():
            found[name] = value
            continue
        rows = value.float().flatten(1)
        if not bool(rows.isfinite().all()):
            raise UsageError(f"{name} has values that are not finite; they cannot be rounded to 8 bits")
        scale = rows.abs().amax(1) / 127
        found[name] = (rows / scale.clamp(min=1e-30)[:, None]).round().to(torch.int8).view_as(value)
        found[name + SCALE] = scale
    return found


def expand(tensors: Mapping[str, Tensor], source: str = "weights") -> dict[str, Tensor]:
    """Return float32 weights from the result of :func:`compress`; tensors without scales stay as they are.

    ``source`` is their file, for errors.
    """
    found = {name: value for name, value in tensors.items() if not name.endswith(SCALE)}
    for name, value in found.items():
        scale = tensors.get(name + SCALE)
        if scale is None and value.dtype != torch.int8:
            continue
        fits = scale is not None and value.dtype == torch.int8 and value.dim() > 1 and scale.shape == value.shape[:1]
        if scale is None or not fits or not bool((scale.isfinite() & (scale >= 0) & scale.is_floating_point()).all()):
            raise UsageError(f"{source} is damaged: {name} has no valid scales of its 8 bits")
        found[name] = (value.flatten(1).float() * scale.float()[:, None]).view(value.shape)
    return found
