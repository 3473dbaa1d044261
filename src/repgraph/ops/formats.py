"""Memory formats of (B, C, H, W) maps, and conversion between maps and matrices."""

import torch
from torch import Tensor


def is_channels_last(t: Tensor) -> bool:
    """Return whether the channels of ``t`` are adjacent; views of channels-last maps count, contiguous maps do not."""
    return t.stride(1) == 1 and not t.is_contiguous()


def memory_format(t: Tensor) -> torch.memory_format:
    """Return the memory format of results computed from ``t``."""
    return torch.channels_last if is_channels_last(t) else torch.contiguous_format


def empty_map(like: Tensor, channels: int | None = None) -> Tensor:
    """Return an uninitialized dense map in the dtype and memory format of ``like``."""
    batch, own, height, width = like.shape
    size = (batch, own if channels is None else channels, height, width)
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=memory_format(like))


def channels_together(t: Tensor) -> Tensor:
    """Return ``t`` if the channels of each position are adjacent in memory, else a channels-last copy."""
    if t.stride(1) == 1:
        return t
    return t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def as_rows(t: Tensor) -> Tensor:
    """Return a map as a contiguous matrix (B H W, C), without a copy if it is channels-last."""
    return t.permute(0, 2, 3, 1).reshape(-1, t.shape[1]).contiguous()


def as_map(rows: Tensor, like: Tensor) -> Tensor:
    """Return a matrix (B H W, C) as a channels-last map with the B, H and W of ``like``."""
    return rows.view(like.shape[0], *like.shape[2:], rows.shape[1]).permute(0, 3, 1, 2)


def view_rows(t: Tensor) -> Tensor:
    """Return a dense channels-last map as a matrix (B H W, C), as :func:`as_rows` does, in one call of PyTorch."""
    batch, channels, height, width = t.shape
    return t.as_strided((batch * height * width, channels), (channels, 1))


def view_map(rows: Tensor, like: Tensor) -> Tensor:
    """Return a dense matrix as a map, as :func:`as_map` does, in one call of PyTorch."""
    batch, _, height, width = like.shape
    channels = rows.shape[1]
    return rows.as_strided((batch, channels, height, width), (height * width * channels, 1, width * channels, channels))
