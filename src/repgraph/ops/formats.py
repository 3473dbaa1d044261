"""Memory formats of (B, C, H, W) maps: what results look like, and what kernels can read without a copy."""

import torch
from torch import Tensor


def is_channels_last(t: Tensor) -> bool:
    """Whether ``t`` keeps its channels together; views of channels-last maps count, contiguous maps do not."""
    return t.stride(1) == 1 and not t.is_contiguous()


def memory_format(t: Tensor) -> torch.memory_format:
    """The memory format of results that follow ``t``."""
    return torch.channels_last if is_channels_last(t) else torch.contiguous_format


def empty_map(like: Tensor, channels: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised dense map in the memory format of ``like``."""
    batch, own, height, width = like.shape
    channels = own if channels is None else channels
    dtype = dtype or like.dtype
    size = (batch, channels, height, width)
    return torch.empty(size, dtype=dtype, device=like.device, memory_format=memory_format(like))


def channels_together(t: Tensor) -> Tensor:
    """``t`` itself where each position's channels lie together in memory, else a channels-last copy."""
    if t.stride(1) == 1 or t.shape[1] == 1:
        return t
    return t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
