"""What the operator accepts; every refusal says what was given and what is needed."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from repgraph.ops.geometry import cells

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, groups: int, grid: int, scale: float) -> None:
    """Raise TypeError for wrong types and ValueError for shapes and numbers that do not fit."""
    maps = {"query": query, "key": key, "value": value, "offsets": offsets}
    for name, t in maps.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} is a {type(t).__name__}; a torch.Tensor is needed")
        if t.is_nested:
            raise TypeError(f"{name} is a nested tensor; a plain one is needed")
        if t.dim() != 4:
            raise ValueError(f"{name} has shape {_shape(t)}; 4 dimensions (B, C, H, W) are needed")
        if t.dtype not in DTYPES:
            raise TypeError(f"{name} is {_dtype(t)}; one of {', '.join(map(_name, DTYPES))} is needed")
        if t.device != query.device:
            raise ValueError(f"{name} is on {t.device} and query on {query.device}; one device is needed for all")
        if t.layout != torch.strided:
            raise TypeError(f"{name} has layout {t.layout}; a dense (strided) tensor is needed")
    for name, number in (("groups", groups), ("grid", grid)):
        if isinstance(number, bool) or not isinstance(number, (int, torch.SymInt)):
            raise TypeError(f"{name} is {number!r}; a whole number is needed")
        if number < 1:
            raise ValueError(f"{name} is {number}; at least 1 is needed")
    if isinstance(scale, bool) or not isinstance(scale, (int, float, torch.SymFloat, torch.SymInt)):
        raise TypeError(f"scale is {scale!r}; a number is needed")
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(
            f"query, key and value are {_dtype(query)}, {_dtype(key)} and {_dtype(value)}; "
            "one dtype is needed for the three"
        )
    check_shapes(query, key, value, offsets, groups, grid)


def forward_mode() -> bool:
    """Whether forward-mode differentiation may be going on."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def check_not_forward_mode(*tensors: Tensor) -> None:
    """Raise where forward-mode differentiation is asked of kernels, which would lose the tangents silently."""
    if not forward_mode():
        return
    if any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError(
            "the kernels of representative_attention have no forward-mode derivatives; use backend='reference'"
        )


def check_shapes(query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, groups: int, grid: int) -> None:
    """Raise ValueError for maps that do not fit together; kernels rely on it."""
    batch, channels, height, width = query.shape
    if channels < 1 or height < 1 or width < 1:
        raise ValueError(f"query has shape {_shape(query)}; at least one channel, row and column is needed")
    if key.shape != query.shape:
        raise ValueError(f"key has shape {_shape(key)}; query's shape {_shape(query)} is needed")
    if value.shape[0] != batch or value.shape[2] != height or value.shape[3] != width or value.shape[1] < 1:
        raise ValueError(f"value has shape {_shape(value)}; ({batch}, any, {height}, {width}) is needed, as query's")
    if channels % groups or value.shape[1] % groups:
        raise ValueError(
            f"groups={groups} does not divide the {channels} channels of query and key "
            f"and the {value.shape[1]} of value"
        )
    if offsets.shape[1] < 2 or offsets.shape[1] % 2:
        raise ValueError(
            f"offsets has {offsets.shape[1]} channels; an even number, two for each node (x then y), is needed"
        )
    rows, columns = cells(height, grid), cells(width, grid)
    if offsets.shape[0] != batch or offsets.shape[2] != rows or offsets.shape[3] != columns:
        raise ValueError(
            f"offsets has shape {_shape(offsets)}; ({batch}, 2 x nodes, {rows}, {columns}) is needed "
            f"for maps of {height} x {width} and grid={grid}"
        )


def _shape(t: Tensor) -> str:
    return str(tuple(t.shape))


def _dtype(t: Tensor) -> str:
    return _name(t.dtype)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
