"""Argument checks of the operator. Every message names the value and what was expected."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from repgraph.ops.geometry import cells, position_dtype

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, groups: int, grid: int, scale: float) -> None:
    """Raise TypeError for wrong types and dtypes, ValueError for wrong shapes and numbers."""
    maps = {"query": query, "key": key, "value": value, "offsets": offsets}
    for name, t in maps.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}; expected a torch.Tensor")
        if t.is_nested or t.layout != torch.strided:
            raise TypeError(f"{name} is a nested or sparse tensor ({t.layout}); expected a dense one")
        if t.dim() != 4:
            raise ValueError(f"{name} has shape {tuple(t.shape)}; expected 4 dimensions (B, C, H, W)")
        if t.dtype not in DTYPES:
            raise TypeError(f"{name} is {t.dtype}; expected one of {', '.join(map(str, DTYPES))}")
        if t.device != query.device:
            raise ValueError(f"{name} is on {t.device} and query on {query.device}; expected one device")
    for name, number in (("groups", groups), ("grid", grid)):
        if isinstance(number, bool) or not isinstance(number, (int, torch.SymInt)):
            raise TypeError(f"{name} is {number!r}; expected an integer")
        if number < 1:
            raise ValueError(f"{name} is {number}; expected a positive integer")
    if isinstance(scale, bool) or not isinstance(scale, (int, float, torch.SymFloat, torch.SymInt)):
        raise TypeError(f"scale is {scale!r}; expected a number")
    dtype = position_dtype(query.dtype)
    if not abs(scale) <= torch.finfo(dtype).max:
        raise ValueError(f"scale is {scale!r}; expected a finite number in {dtype}")
    if not query.dtype == key.dtype == value.dtype:
        dtypes = f"{query.dtype}, {key.dtype} and {value.dtype}"
        raise TypeError(f"query, key and value are {dtypes}; expected one dtype for the three")
    if not torch.jit.is_tracing():  # the kernels do, and comparing sizes here would give a warning for each
        check_shapes(query, key, value, offsets, groups, grid)


def check_shapes(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, groups: int, grid: int) -> None:
    """Raise ValueError for maps that do not match; kernels rely on it."""
    batch, channels, height, width = query.shape
    if channels < 1 or height < 1 or width < 1:
        raise ValueError(f"query has shape {tuple(query.shape)}; expected at least one channel, row and column")
    if key.shape != query.shape:
        raise ValueError(f"key has shape {tuple(key.shape)}; expected that of query, {tuple(query.shape)}")
    if value.shape[0] != batch or value.shape[2] != height or value.shape[3] != width or value.shape[1] < 1:
        raise ValueError(f"value has shape {tuple(value.shape)}; expected ({batch}, channels, {height}, {width})")
    if channels % groups or value.shape[1] % groups:
        both = f"the {channels} channels of query and key and of the {value.shape[1]} of value"
        raise ValueError(f"groups is {groups}; expected a divisor of {both}")
    if offsets.shape[1] < 2 or offsets.shape[1] % 2:
        raise ValueError(f"offsets has {offsets.shape[1]} channels; expected an even number, x and y of each node")
    rows, columns = cells(height, grid), cells(width, grid)
    if offsets.shape[0] != batch or offsets.shape[2] != rows or offsets.shape[3] != columns:
        expected = f"({batch}, 2 x nodes, {rows}, {columns}) for maps of {height} x {width} and grid={grid}"
        raise ValueError(f"offsets has shape {tuple(offsets.shape)}; expected {expected}")


def forward_mode() -> bool:
    """Return whether forward-mode differentiation may be active."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def check_not_forward_mode(*tensors: Tensor) -> None:
    """Raise if a tensor has a forward-mode tangent, which kernels would silently drop."""
    if forward_mode() and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        message = "the kernels of representative_attention have no forward-mode derivatives"
        raise RuntimeError(f"{message}; use backend='reference'")
