"""Tensors as the kernels see them: flat numpy arrays with strides in elements, and scratch memory for copies.

Nothing here computes with PyTorch: its thread pool hangs in a forked child, the one of this package does not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repgraph.ops.cpu.memory import BLOCK, CHUNK, copy_map
from repgraph.ops.cpu.pool import run
from repgraph.ops.geometry import cells

# Copies of whole maps are large enough for the C library to return them to the system at once, and page faults on fresh
# memory cost more than the copy itself. So up to this many bytes are kept for the next call.
LIMIT = 1 << 26

SLICE = 64  # channels in a task of the kernels that sum gradients of keys and values, at most

_kept: list[np.ndarray] = []  # append, pop and remove of a list are atomic, so threads need no lock


@contextmanager
def workspace() -> Iterator[list[np.ndarray]]:
    """Collect the scratch arrays of a call, and keep their memory at its end, unless an error ended it."""
    used: list[np.ndarray] = []
    yield used
    for buffer in used:
        if sum(b.nbytes for b in tuple(_kept)) + buffer.nbytes <= LIMIT:
            _kept.append(buffer)


def scratch(used: list[np.ndarray], count: int, dtype: np.dtype | type) -> np.ndarray:
    """Return an uninitialized flat array: a kept one of up to four times the size, or a new one."""
    size = count * np.dtype(dtype).itemsize
    for _ in range(len(_kept)):
        with suppress(IndexError):
            buffer = _kept.pop(0)
            if size <= buffer.nbytes <= 4 * size:
                break
            if buffer.nbytes > size:  # drop the smaller ones
                _kept.append(buffer)
    else:
        buffer = np.empty(size, np.uint8)
    used.append(buffer)
    return buffer[:size].view(dtype)


def slice_width(channels: int, widest: int, pieces: int) -> int:
    """Return the channels of a slice: at most ``widest``, and few enough that ``pieces`` keep every thread busy."""
    each = max(cells(channels, widest), cells(torch.get_num_threads(), max(1, pieces)))
    return cells(cells(channels, each), BLOCK) * BLOCK


class Map(NamedTuple):
    """The memory that a (B, C, H, W) tensor spans, and its strides. bfloat16 is uint16 here."""

    data: np.ndarray
    strides: tuple[int, ...]


def flat(t: Tensor) -> Map:
    """Return ``t`` as a map without a copy."""
    t = t.detach().resolve_neg()
    if t.dtype == torch.bfloat16:
        t = t.view(torch.uint16)
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return Map(torch.as_strided(t, (span,), (1,)).numpy(), t.stride())


def rows(t: Tensor, space: list[np.ndarray]) -> Map:
    """Return ``t`` with adjacent channels: without a copy if they are, else as a copy [B, H, W, C] in ``space``."""
    data, (sb, sc, sh, sw) = flat(t)
    return Map(data, (sb, 1, sh, sw)) if sc == 1 or t.shape[1] == 1 else copied_rows(t, space)


def copied_rows(t: Tensor, space: list[np.ndarray]) -> Map:
    """Return a copy [B, H, W, C] in ``space``."""
    source = flat(t)
    expanded = source.strides[0] == 0  # copy the batch once
    shape = (1 if expanded else t.shape[0], *t.shape[1:])
    target = new_rows(shape, space, source.data.dtype)
    _copy(source, target, shape)
    return Map(target.data, (0, *target.strides[1:])) if expanded else target


def new_rows(shape: Sequence[int], space: list[np.ndarray], dtype: np.dtype | type) -> Map:
    """Return uninitialized rows [B, H, W, C] for a (B, C, H, W) tensor."""
    batch, channels, height, width = shape
    data = scratch(space, batch * height * width * channels, dtype)
    return Map(data, (height * width * channels, 1, width * channels, channels))


def rows_of(t: Tensor, space: list[np.ndarray]) -> Map:
    """Return rows for kernels to write: ``t`` itself if its channels are adjacent, else new ones for ``copy_rows``."""
    data, (sb, sc, sh, sw) = flat(t)
    return Map(data, (sb, 1, sh, sw)) if sc == 1 or t.shape[1] == 1 else new_rows(t.shape, space, data.dtype)


def copy_rows(source: Map, t: Tensor) -> None:
    """Copy rows from ``rows_of`` to the tensor, if they are not its own."""
    if t.stride(1) != 1 and t.shape[1] != 1:
        _copy(source, flat(t), t.shape)


def _copy(source: Map, target: Map, shape: Sequence[int]) -> None:
    batch, channels, height, width = shape
    (*_, sh, sw), (*_, th, tw) = source.strides, target.strides
    if sh == width * sw and th == width * tw:  # rows are adjacent: copy them as one long row
        height, width = 1, height * width
    tasks = batch * height * -(-width // CHUNK)
    run(copy_map, tasks, batch * channels * height * width // 4, *source, *target, height, width, channels)


def float_rows(t: Tensor, dtype: type, space: list[np.ndarray]) -> Map:
    """Return a tensor of any floating dtype as rows of ``dtype``."""
    if t.dtype in (torch.float32, torch.float64) and t.element_size() == np.dtype(dtype).itemsize:
        return rows(t, space)
    last = t.detach().resolve_neg().permute(0, 2, 3, 1)
    if t.dtype == torch.bfloat16:
        wide = (last.view(torch.uint16).numpy().astype(np.uint32) << 16).view(np.float32)
    else:
        wide = last.numpy()
    with np.errstate(over="ignore"):  # to infinity, as PyTorch does
        copy: np.ndarray = np.ascontiguousarray(wide, dtype)
    sb, sh, sw, _ = (s // copy.itemsize for s in copy.strides)
    return Map(copy.reshape(-1), (sb, 1, sh, sw))


def write_floats(t: Tensor, last: np.ndarray) -> None:
    """Write floats [B, H, W, C] to a tensor (B, C, H, W) of any floating dtype."""
    if t.dtype in (torch.float32, torch.float64) and t.element_size() == last.itemsize:
        sb, sh, sw, sc = (stride // last.itemsize for stride in last.strides)
        _copy(Map(last.reshape(-1), (sb, sc, sh, sw)), flat(t), t.shape)
        return
    last = last.transpose(0, 3, 1, 2)
    with np.errstate(over="ignore"):
        if t.dtype != torch.bfloat16:
            t.numpy()[...] = last
            return
        bits = np.ascontiguousarray(last, np.float32).view(np.uint32)
        even = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        t.view(torch.uint16).numpy()[...] = np.where(np.isnan(last), 0x7FC0, even)
