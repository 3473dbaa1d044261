"""Linear maps along the rows and columns of a map, made of two matrix products, and what is built of them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from repgraph.ops.backends import exporting_onnx
from repgraph.ops.formats import is_channels_last


def separable(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``rows @ x @ columns.T`` of every channel, in the memory format of ``x`` (if it has one of the two).

    Args:
        x: (B, C, H, W).
        rows: (H', H), of the dtype of ``x``.
        columns: (W', W), of the dtype of ``x``.

    Returns:
        (B, C, H', W'). Autocast does not change what it is computed in.

    >>> separable(torch.ones(1, 2, 3, 4), torch.ones(5, 3), torch.ones(6, 4)).unique()
    tensor([12.])
    """
    batch, channels, height, width = x.shape
    high, wide = rows.shape[0], columns.shape[0]
    with torch.autocast(x.device.type, enabled=False):
        if not is_channels_last(x):
            return ((rows @ x.reshape(batch * channels, height, width)) @ columns.t()).view(batch, channels, high, wide)
        along = (rows @ x.permute(0, 2, 3, 1).reshape(batch, height, width * channels)).view(batch * high, width, -1)
        return (columns @ along).view(batch, high, wide, channels).permute(0, 3, 1, 2)


def around(feature: Tensor, side: int) -> Tensor:
    """The mean of the side x side positions around each one; at the rim, of those that there are.

    On CUDA, where PyTorch's pooling reads each position ``side`` times and scatters the gradient back, it is made of
    products; their zeros make a NaN or an infinity spread over the whole map, and their weights are rounded to the
    feature's dtype (bfloat16: by up to 0.4 %).
    """
    if feature.is_cuda and not exporting_onnx():
        return separable(feature, _means(feature.shape[2], side, feature), _means(feature.shape[3], side, feature))
    rows = F.avg_pool2d(feature, (1, side), 1, (0, side // 2), count_include_pad=False)
    return F.avg_pool2d(rows, (side, 1), 1, (side // 2, 0), count_include_pad=False)


def _means(length: int, side: int, like: Tensor) -> Tensor:
    """[length, length]: the share of each position (columns) in the mean around each position (rows)."""
    one = torch.eye(length, dtype=like.dtype, device=like.device)
    return F.avg_pool1d(one, side, 1, side // 2, count_include_pad=False).t()
