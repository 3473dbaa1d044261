"""Tensors as the kernels see them: flat numpy arrays with strides in elements.

Nothing here computes with PyTorch: its own thread pool hangs in a forked child, ours does not.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repgraph.ops.cpu.pool import run
from repgraph.ops.cpu.transpose import CHUNK, to_rows
from repgraph.ops.cpu.workspace import Workspace


class Map(NamedTuple):
    """The memory that a (B, C, H, W) tensor spans, and its strides. bfloat16 is uint16 here."""

    data: np.ndarray
    strides: tuple[int, ...]


def flat(t: Tensor) -> Map:
    """``t`` itself, without a copy."""
    t = t.detach().resolve_neg()
    if t.dtype == torch.bfloat16:
        t = t.view(torch.uint16)
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return Map(torch.as_strided(t, (span,), (1,)).numpy(), t.stride())


def rows(t: Tensor, space: Workspace) -> Map:
    """``t`` with its channels together: itself where they are, else a copy [B, H, W, C] in ``space``."""
    batch, channels, height, width = t.shape
    data, (sb, sc, sh, sw) = flat(t)
    if sc == 1 or channels == 1:
        return Map(data, (sb, 1, sh, sw))
    if sb == 0:  # an expanded batch stays one
        batch = 1
    target = space.lend(batch * height * width * channels, data.dtype)
    strides = (0 if sb == 0 else height * width * channels, 1, width * channels, channels)
    if sh == width * sw:  # rows follow each other: one long row has fewer ends
        height, width = 1, height * width
    tasks = batch * height * -(-width // CHUNK)
    run(to_rows, tasks, t.numel() // 4, data, (sb, sc, sh, sw), height, width, channels, target)
    return Map(target, strides)


def flat_offsets(t: Tensor) -> Map:
    """Offsets of any floating dtype; float16, which kernels do not read, becomes float32 (a small copy)."""
    if t.dtype != torch.float16:
        return flat(t)
    copy = np.ascontiguousarray(t.detach().numpy().astype(np.float32))
    return Map(copy.reshape(-1), tuple(s // copy.itemsize for s in copy.strides))
