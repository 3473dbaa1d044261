"""Argument checks of the operators. Every message names the value and what was expected."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from repgraph.ops.geometry import cells, position_dtype

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_tensor(name: str, t: Any, dimensions: int, shape: str, device: torch.device | None = None) -> None:
    """Raise unless ``t`` is a dense floating-point tensor with that many dimensions, on ``device`` (None: any)."""
    if not isinstance(t, Tensor):
        raise TypeError(f"{name} is a {type(t).__name__}; expected a torch.Tensor")
    if t.is_nested or t.layout != torch.strided:
        raise TypeError(f"{name} is a nested or sparse tensor ({t.layout}); expected a dense one")
    if t.dim() != dimensions:
        raise ValueError(f"{name} has shape {tuple(t.shape)}; expected {dimensions} dimensions {shape}")
    if t.dtype not in DTYPES:
        raise TypeError(f"{name} is {t.dtype}; expected one of {', '.join(map(str, DTYPES))}")
    if device is not None and t.device != device:
        raise ValueError(f"{name} is on {t.device} and others on {device}; expected one device")


def check_positive(**numbers: Any) -> None:
    """Raise TypeError or ValueError unless all numbers are positive integers."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, (int, torch.SymInt)):
            raise TypeError(f"{name} is {number!r}; expected an integer")
        if number < 1:
            raise ValueError(f"{name} is {number}; expected a positive integer")


def named(name: str, maps: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    """Return the maps with their names for messages: "key" for one map, else "key[0]" and so on."""
    return [(name if len(maps) == 1 else f"{name}[{index}]", each) for index, each in enumerate(maps)]


def check(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], offsets: Tensor, groups: int, grid: int,
    scale: float, bias: Tensor | None = None, own_nodes: bool = False,
) -> None:  # fmt: skip
    """Raise TypeError for wrong types and dtypes, ValueError for wrong shapes and numbers.

    Combinations of shapes, dtypes, devices and numbers that passed before are not checked again.
    """
    arguments = (query, keys, values, offsets, groups, grid, scale, bias, own_nodes)
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        _check(*arguments)
        return
    try:
        tensors = (query, *keys, *values, offsets, *(() if bias is None else (bias,)))
        kinds = [part for t in tensors for part in (t.shape, t.dtype, t.device, t.layout)]
        key = (*kinds, len(keys), groups, type(groups), grid, type(grid), scale, type(scale), own_nodes)
        known = key in _passed
    except (AttributeError, TypeError, RuntimeError):  # not tensors, nested tensors, or numbers that cannot be hashed
        known, key = False, None
    if not known:
        _check(*arguments)
        if key is not None:
            if len(_passed) > 4096:
                _passed.clear()
            _passed.add(key)


_passed: set[tuple] = set()


def _check(
    query: Any, keys: Any, values: Any, offsets: Any, groups: Any, grid: Any, scale: Any, bias: Any, own_nodes: Any
) -> None:
    check_tensor("query", query, 4, "(B, C, H, W)")
    features = [("query", query), *named("key", keys), *named("value", values)]
    for name, t in (*features[1:], ("offsets", offsets)):
        check_tensor(name, t, 4, "(B, C, H, W)", query.device)
    check_positive(groups=groups, grid=grid)
    if isinstance(scale, bool) or not isinstance(scale, (int, float, torch.SymFloat, torch.SymInt)):
        raise TypeError(f"scale is {scale!r}; expected a number")
    dtype = position_dtype(query.dtype)
    size: Any = abs(scale)
    if not size <= torch.finfo(dtype).max:
        raise ValueError(f"scale is {scale!r}; expected a finite number in {dtype}")
    if len({t.dtype for _, t in features}) > 1:
        dtypes = f"{query.dtype}, {keys[0].dtype} and {values[0].dtype}"
        raise TypeError(f"query, key and value are {dtypes}; expected one dtype for the three")
    if bias is not None:
        check_tensor("bias", bias, 4, "(1 or B, groups x maps x nodes, 1 or H, 1 or W)", query.device)
    if not isinstance(own_nodes, bool):
        raise TypeError(f"own_nodes is {own_nodes!r}; expected True or False")
    if not torch.jit.is_tracing():  # the kernels check sizes; here each comparison would warn
        check_shapes(query, keys, values, offsets, groups, grid, bias, own_nodes)


def check_shapes(
    query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], offsets: Tensor, groups: int, grid: int,
    bias: Tensor | None = None, own_nodes: bool = False,
) -> None:  # fmt: skip
    """Raise ValueError for shapes that do not match; kernels rely on it."""
    batch, channels, height, width = query.shape
    if channels < 1 or height < 1 or width < 1:
        raise ValueError(f"query has shape {tuple(query.shape)}; expected at least one channel, row and column")
    if len(keys) != len(values) or len(keys) < 1:
        raise ValueError(f"got {len(keys)} keys and {len(values)} values; expected one of each for every map")
    width_v = values[0].shape[1]
    for (name, key), (name_v, value) in zip(named("key", keys), named("value", values), strict=True):
        if key.shape[0] != batch or key.shape[1] != channels:
            raise ValueError(f"{name} has shape {tuple(key.shape)}; expected ({batch}, {channels}, height, width)")
        rows, columns = key.shape[2:]
        if value.shape != (batch, width_v, rows, columns) or width_v < 1:
            expected = f"({batch}, {'channels' if value is values[0] else width_v}, {rows}, {columns})"
            raise ValueError(f"{name_v} has shape {tuple(value.shape)}; expected {expected}")
    if channels % groups or width_v % groups:
        both = f"the {channels} channels of query and key and the {width_v} channels of value"
        raise ValueError(f"groups is {groups}; expected a divisor of {both}")
    sets = len(keys) * (groups if own_nodes else 1)
    if offsets.shape[1] < 2 * sets or offsets.shape[1] % (2 * sets):
        if sets == 1:
            expected = "an even number, x and y of each node"
        else:
            expected = f"a multiple of {2 * sets}: x and y for {len(keys)} maps and {sets // len(keys)} sets of nodes"
        raise ValueError(f"offsets has {offsets.shape[1]} channels; expected {expected}")
    rows, columns = cells(height, grid), cells(width, grid)
    if offsets.shape[0] != batch or offsets.shape[2] != rows or offsets.shape[3] != columns:
        expected = f"({batch}, {2 * sets} x nodes, {rows}, {columns}) for maps of {height} x {width} and grid={grid}"
        raise ValueError(f"offsets has shape {tuple(offsets.shape)}; expected {expected}")
    if bias is not None:
        count = offsets.shape[1] // (2 * sets) * len(keys) * groups
        wanted = (batch, count, height, width)
        if bias.shape[1] != count or any(n not in (1, size) for n, size in zip(bias.shape, wanted, strict=True)):
            expected = f"(1 or {batch}, {count}, 1 or {height}, 1 or {width})"
            raise ValueError(f"bias has shape {tuple(bias.shape)}; expected {expected}")


def forward_mode() -> bool:
    """Return whether forward-mode differentiation may be active."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def check_not_forward_mode(*tensors: Tensor | None) -> None:
    """Raise if a tensor has a forward-mode tangent, which kernels would silently drop."""
    if forward_mode() and any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError("the attention kernels have no forward-mode derivatives; use backend='reference'")
