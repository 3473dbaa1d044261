"""The operators in PyTorch's dispatcher: schemas, fake tensors, autograd, autocast.

Weights are computed (representative attention) or given (deformable attention). Kernels are imported at their first
call. A backend has two functions::

    forward(query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, training, with_weights)
        -> (y, lse, weights, response)
    backward(grad, grad_weights, query, key, value, offsets, bias, response, lse, sizes, points, groups, sets, grid,
        scale) -> (grad_query, grad_key, grad_value, grad_offsets, grad_bias)

- ``query`` (B, C, H, W). ``value`` is None if it is the key: this is static, so it survives tracing, and memory is read
  once.
- One map of the query's size: ``key`` and ``value`` (B, C, H, W) and (B, Cv, H, W); ``sizes`` and ``points`` are empty.
- Other maps one after the other: ``key`` and ``value`` (B, N, C) and (B, N, Cv), N = sum of H_l W_l. ``sizes`` are H_l
  and W_l of all maps in one list, ``points`` the number of nodes on each map; empty for the same number on each.
- ``offsets`` (B, 2 K sum(points), Hc, Wc), K being ``sets``. ``bias`` (1 or B, G sum(points), 1 or H, 1 or W) or None.
- ``lse`` (B, G, H, W) is the logsumexp of the logits, ``response`` is y without rounding to half precision. Both are
  for the backward pass, and empty if the backend or the call does not need them. ``grad_weights`` may be None, and has
  mean zero under the weights.
- Given weights: ``query`` and ``key`` are None, ``offsets`` are locations from 0 to 1 over each map, ``bias`` are the
  weights (B, G sum(points), 1, Q), and y is (B, Cv, 1, Q).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from repgraph.ops.backends import direct, needs_grad
from repgraph.ops.checks import check_positive, check_shapes
from repgraph.ops.formats import empty_map
from repgraph.ops.geometry import position_dtype

# The devices of torch.amp.is_autocast_available, which torch.compile cannot trace.
AUTOCAST_DEVICES = frozenset(("cpu", "cuda", "hpu", "ipu", "maia", "mps", "mtia", "xla", "xpu"))

_library = torch.library.Library("repgraph", "DEF")
_MAPS = "Tensor? query, Tensor? key, Tensor? value, Tensor offsets, Tensor? bias"
_NUMBERS = "SymInt[] sizes, SymInt[] points, SymInt groups, SymInt sets, SymInt grid, float scale, str backend"
_library.define(
    f"attention({_MAPS}, {_NUMBERS}, bool training, bool with_weights) -> "
    "(Tensor y, Tensor lse, Tensor weights, Tensor response)"
)
_library.define(
    f"attention_backward(Tensor grad, Tensor? grad_weights, {_MAPS}, Tensor response, Tensor lse, {_NUMBERS}) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_offsets, Tensor grad_bias)"
)


@cache
def kernels(backend: str) -> ModuleType:
    """Import and return the kernels of a backend."""
    return import_module(f"repgraph.ops.{backend}")


def attention(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, bias: Tensor | None, sizes: Sequence[int],
    groups: int, sets: int, grid: int, scale: float, backend: str, with_weights: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return y and the weights (empty unless ``with_weights``) of attention with computed weights.

    Calls ``repgraph::attention``, without the dispatcher if that makes no difference. Arguments have been checked.
    """
    points: list[int] = []  # the same number on each map
    numbers = (sizes, points, groups, sets, grid, scale)
    tensors = (query, key, value, offsets, bias)
    training = needs_grad(*tensors)
    if not direct(*tensors):
        training = training or torch.jit.is_tracing()  # torch.jit.trace checks its result without gradients
        results = torch.ops.repgraph.attention(*tensors, *numbers, backend, training, with_weights)
    elif training:
        results = _Attention.apply(*tensors, numbers, backend, training, with_weights, True)
    else:
        results = kernels(backend).forward(*tensors, *numbers, training, with_weights)
    return results[0], results[2]


def flat(maps: Sequence[Tensor]) -> Tensor:
    """Return maps (B, C, H_l, W_l) one after the other, (B, N, C)."""
    rows = [each.permute(0, 2, 3, 1).flatten(1, 2) for each in maps]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def flattened(
    query: Tensor | None, key: Tensor | None, value: Tensor | None, offsets: Tensor, sizes: Sequence[int],
    points: Sequence[int], sets: int,
) -> tuple[Any, ...]:  # fmt: skip
    """Return key and value as (B, N, C), also of one map of the query's size, and sizes and points in full."""
    if query is not None and not sizes:
        key, value = (None if t is None else flat([t]) for t in (key, value))
        sizes = query.shape[2:]
    maps = len(sizes) // 2
    return key, value, tuple(sizes), tuple(points) or (offsets.shape[1] // (2 * sets * maps),) * maps


def deform(
    value: Tensor, locations: Tensor, weights: Tensor, sizes: Sequence[Sequence[int]], points: Sequence[int],
    backend: str,
) -> Tensor:  # fmt: skip
    """Return the sums (B, Q, M D) of values (B, N, M, D) with given weights, as in multi-scale deformable attention.

    Locations (B, Q, M, ..., 2) and weights (B, Q, M, ...) have sum(points) points for each query and head.
    """
    numbers = [n for size in sizes for n in size], list(points), value.shape[2], value.shape[2], 1, 1.0
    if not direct(value, locations, weights):
        maps = _as_maps(value, locations, weights)
        y, *_ = torch.ops.repgraph.attention(None, None, *maps, *numbers, backend, True, False)
        return y.squeeze(2).mT
    if needs_grad(value, locations, weights):
        return _Deform.apply(value, locations, weights, numbers, backend)
    return _deform(value, locations, weights, numbers, backend)


def _as_maps(value: Tensor, locations: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return views: rows (B, N, M D), and maps (B, 2 M sum(points), 1, Q) and (B, M sum(points), 1, Q)."""
    offsets, bias = (t.flatten(2)[:, None].permute(0, 3, 1, 2) for t in (locations, weights))
    return value.flatten(2), offsets, bias


def _deform(value, locations, weights, numbers, backend):
    tensors = _as_maps(value, locations, weights)
    y, *_ = kernels(backend).forward(None, None, *tensors, *numbers, False, False)
    return y.squeeze(2).mT


class _Deform(torch.autograd.Function):
    """Deformable attention in eager mode; autograd does not record its views."""

    @staticmethod
    def forward(ctx, value, locations, weights, numbers, backend):
        ctx.save_for_backward(value, locations, weights)
        ctx.options = *numbers, backend
        return _deform(value, locations, weights, numbers, backend)

    @staticmethod
    def backward(ctx, grad):
        tensors = ctx.saved_tensors
        grad, empty = grad.mT[:, :, None], grad.new_empty(0)
        # with create_graph, call the operator, whose own backward raises
        eager = direct(grad, *tensors) and not torch.is_grad_enabled()
        backward = _backward if eager else torch.ops.repgraph.attention_backward
        grads = backward(grad, None, None, None, *_as_maps(*tensors), empty, empty, *ctx.options)
        rows, offsets, bias = grads[2:]
        offsets, bias = (
            t.permute(0, 2, 3, 1).reshape(like.shape) for t, like in zip((offsets, bias), tensors[1:], strict=True)
        )
        return rows.view(tensors[0].shape), offsets, bias, None, None


def _forward(query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, backend, *flags):
    # The only check of a traced call: kernels rely on it.
    check_positive(groups=groups, sets=sets, grid=grid)
    if query is not None and not sizes:
        check_shapes(query, (key,), (key if value is None else value,), offsets, groups, grid, bias, sets > 1)
        fits = key.shape == query.shape and sets in (1, groups)
    else:
        fits = _fits(query, key, value, offsets, bias, sizes, points, groups, sets, grid)
    if not fits:
        raise ValueError(f"repgraph::attention: tensors do not match the sizes {sizes} and points {points}")
    options = (sizes, points, groups, sets, grid, scale, *flags)
    return kernels(backend).forward(query, key, value, offsets, bias, *options)


def _fits(query, key, value, offsets, bias, sizes, points, groups, sets, grid) -> bool:
    """Return whether the shapes of flattened maps match the numbers."""
    features = value if key is None else key
    if features is None or features.dim() != 3 or not sizes:
        return False
    *_, points = flattened(query, key, value, offsets, sizes, points, sets)
    batch, positions, channels = features.shape
    size = offsets.shape[2:] if query is None else query.shape[2:]
    found = sum(height * width for height, width in zip(sizes[::2], sizes[1::2], strict=True))
    wanted = (batch, groups * sum(points), *size)
    return (
        (found == positions and min(sizes) >= 0 and len(points) * 2 == len(sizes) and channels % groups == 0)
        and tuple(offsets.shape) == (batch, 2 * sets * sum(points), -(-size[0] // grid), -(-size[1] // grid))
        and (key is None or value is None or value.shape[:2] == key.shape[:2])
        and (query is None or query.shape[:2] == (batch, channels))
        and (bias is None or all(n in (1, most) for n, most in zip(bias.shape, wanted, strict=True)))
        and (bias is None or bias.shape[1] == wanted[1])
    )


def _backward(*arguments):
    return kernels(arguments[-1]).backward(*arguments[:-1])


def is_plain(sizes: Sequence[int], sets: int, bias: Tensor | None) -> bool:
    """Return whether attention is to one map of the query's size, with one set of nodes and no bias."""
    return not sizes and sets == 1 and bias is None


def outputs(query, key, value, offsets, bias, sizes, groups, sets, backend, training, with_weights):
    """Return uninitialized (y, lse, weights, response)."""
    features = key if value is None else value
    channels, dtype = features.shape[1 if features.dim() == 4 else 2], position_dtype(features.dtype)
    if query is None:
        batch, _, height, width = offsets.shape
        rows = features.new_empty((batch, height, width, channels))
        return rows.permute(0, 3, 1, 2), *(rows.new_empty(0, dtype=dtype) for _ in range(3))
    batch, _, height, width = query.shape
    y = empty_map(query, channels)
    keeps = backend == "triton" and (training or with_weights)
    lse = torch.empty((batch, groups, height, width) if keeps else 0, dtype=dtype, device=y.device)
    weights = lse.new_empty((batch, groups, offsets.shape[1] // (2 * sets), height, width) if with_weights else 0)
    precise = backend == "triton" and training and y.dtype != dtype and not is_plain(sizes, sets, bias)
    return y, lse, weights, lse.new_empty((batch, height, width, channels) if precise else 0)


def gradients(query, key, value, offsets, bias):
    """Return uninitialized gradients of the five tensors; empty for None."""

    def like(t: Tensor | None, features: bool = False) -> Tensor:
        if t is None:
            return offsets.new_empty(0)
        if features and t.dim() == 4:
            return empty_map(t)
        return torch.empty_like(t, memory_format=torch.contiguous_format)

    features = like(query, True), like(key, True), like(value, True)
    if query is not None:
        return *features, like(offsets), like(bias)
    batch, channels, height, width = offsets.shape  # in the layout of locations and weights
    rows = offsets.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)
    return *features, rows, bias.new_empty(bias.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


@torch.library.register_fake("repgraph::attention", lib=_library)
def _(query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, backend, training, with_weights):
    return outputs(query, key, value, offsets, bias, sizes, groups, sets, backend, training, with_weights)


@torch.library.register_fake("repgraph::attention_backward", lib=_library)
def _(grad, grad_weights, query, key, value, offsets, bias, *rest):
    return gradients(query, key, value, offsets, bias)


class _Attention(torch.autograd.Function):
    """Autograd of the operator. Without a jvp it raises for forward-mode tangents; register_autograd drops them."""

    @staticmethod
    def forward(ctx, query, key, value, offsets, bias, numbers, backend, training, with_weights, is_checked):
        tensors = (query, key, value, offsets, bias)
        if is_checked:
            results = kernels(backend).forward(*tensors, *numbers, training, with_weights)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                results = torch.ops.repgraph.attention(*tensors, *numbers, backend, training, with_weights)
        y, lse, weights, response = results
        sizes, _, _, sets, _, _ = numbers
        ctx.options, ctx.values = (*numbers, backend), y.shape[1]
        # Triton's kernels for one map add the gradients of query and key if these are the same tensor.
        ctx.joint = key is query and backend == "triton" and is_plain(sizes, sets, bias)
        # The backward pass of Triton computes the softmax from y, before rounding where there are several maps.
        own = y if backend == "triton" and query is not None and not response.numel() else response
        ctx.save_for_backward(*tensors, own, lse, weights if with_weights else None)
        ctx.mark_non_differentiable(lse, response)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, grad, _, grad_weights, __):
        query, key, value, offsets, bias, response, lse, weights = ctx.saved_tensors
        tensors = (query, key, value, offsets, bias)
        if weights is None:
            grad_weights = None
        if grad is None and grad_weights is None:
            return (None,) * 10
        if grad_weights is not None:  # the softmax is invariant to a constant gradient
            grad_weights = grad_weights - (grad_weights * weights).sum(2, keepdim=True)
        if grad is None:
            grad = empty_map(query, ctx.values).zero_()
        arguments = (grad, grad_weights, *tensors, response, lse, *ctx.options)
        # with create_graph, call the operator, whose own backward raises
        if torch.is_grad_enabled() or not direct(grad, *tensors):
            grads = torch.ops.repgraph.attention_backward(*arguments)
        elif ctx.joint:
            grads = kernels("triton").backward(*arguments[:-1], joint=True)
        else:
            grads = _backward(*arguments)
        return *(None if t is None else each for t, each in zip(tensors, grads, strict=True)), *(None,) * 5


def _autograd(*arguments):
    *tensors_and_numbers, backend, training, with_weights = arguments
    tensors, numbers = tensors_and_numbers[:5], tuple(tensors_and_numbers[5:])
    return _Attention.apply(*tensors, numbers, backend, training, with_weights, False)


def no_second_order(ctx: Any, *_):
    raise RuntimeError("the attention kernels have no second-order gradients; use backend='reference'")


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context without autocast."""
    enabled = device in AUTOCAST_DEVICES and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if enabled else nullcontext()


def autocasting(t: Any) -> bool:
    """Return whether autocast is enabled on the device of a tensor."""
    return isinstance(t, Tensor) and t.device.type in AUTOCAST_DEVICES and torch.is_autocast_enabled(t.device.type)


def autocasts(t: Tensor) -> bool:
    """Return whether autocast is enabled and casts this tensor; like in PyTorch, float64 is not cast."""
    return autocasting(t) and t.is_floating_point() and t.dtype != torch.float64


def autocast(t: Any) -> Any:
    """Cast a tensor to the autocast dtype if autocast is enabled; return anything else unchanged."""
    return t.to(torch.get_autocast_dtype(t.device.type)) if isinstance(t, Tensor) and autocasts(t) else t


def _autocast_inputs(device: str) -> None:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

    def attention(query, key, value, *rest):
        tensors = [autocast(t) for t in (query, key, value)]  # without the guard, which disables autocast
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return torch.ops.repgraph.attention(*tensors, *rest)

    _library.impl("attention", attention, f"Autocast{device}")


_library.impl("attention", _autograd, "Autograd")
torch.library.register_autograd("repgraph::attention_backward", no_second_order, lib=_library)
for _device in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _device)
    _library.impl("attention_backward", _backward, _device)
    _autocast_inputs(_device)
