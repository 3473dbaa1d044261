"""Separable linear maps over rows and columns, as two matrix products, and the box filter."""

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops.backends import exporting_onnx
from repgraph.ops.formats import is_channels_last


def separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``rows @ x @ columns.T`` of every channel, (B, C, H', W') in the memory format of ``x``."""
    batch, channels, height, width = x.shape
    high, wide = rows.shape[0], columns.shape[0]
    with torch.autocast(x.device.type, enabled=False):
        if not is_channels_last(x):
            return ((rows @ x.reshape(batch * channels, height, width)) @ columns.t()).view(batch, channels, high, wide)
        along = (rows @ x.permute(0, 2, 3, 1).reshape(batch, height, width * channels)).view(batch * high, width, -1)
        return (columns @ along).view(batch, high, wide, channels).permute(0, 3, 1, 2)


def around(feature: Tensor, side: int) -> Tensor:
    """Return the mean of the side x side positions around each position; at the border, of those on the map.

    On CUDA it uses matrix products, which are faster, but spread a NaN or an infinity over the whole map.
    """
    if feature.is_cuda and not exporting_onnx():
        return separable(feature, *(_means(length, side, feature) for length in feature.shape[2:]))
    rows = F.avg_pool2d(feature, (1, side), 1, (0, side // 2), count_include_pad=False)
    return F.avg_pool2d(rows, (side, 1), 1, (side // 2, 0), count_include_pad=False)


def _means(length: int, side: int, like: Tensor) -> Tensor:
    """Return the matrix [length, length] of a moving average over ``side`` positions."""
    one = torch.eye(length, dtype=like.dtype, device=like.device)
    return F.avg_pool1d(one, side, 1, side // 2, count_include_pad=False).t()
