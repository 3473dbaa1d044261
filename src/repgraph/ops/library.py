"""Attention to one map of the query's size by the Triton kernels in PyTorch's dispatcher: schemas, fakes, autograd.

Also what all operators need: autocast, and the import of kernels at their first call. (Other calls and backends:
``repgraph.ops.levels``.) The kernels are two functions::

    forward(query, key, value, offsets, groups, grid, scale, with_weights, with_lse=True) -> (y, lse, weights)
    backward(grad, grad_weights, query, key, value, offsets, y, lse, groups, grid, scale, joint=False)
        -> (grad_query, grad_key, grad_value, grad_offsets)

``value`` is None if it is the key: this is static, so it survives tracing, and memory is read once. ``lse`` is the
logsumexp of the logits. Results that were not requested are empty tensors. ``grad_weights`` may be None, and has mean
zero under the weights. ``joint``: query and key are one tensor; return the sum of their gradients for both.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from repgraph.ops.backends import direct, needs_grad
from repgraph.ops.checks import check_shapes
from repgraph.ops.formats import empty_map
from repgraph.ops.geometry import position_dtype

# The devices of torch.amp.is_autocast_available, which torch.compile cannot trace.
AUTOCAST_DEVICES = frozenset(("cpu", "cuda", "hpu", "ipu", "maia", "mps", "mtia", "xla", "xpu"))

_library = torch.library.Library("repgraph", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor? value, Tensor offsets, int groups, int grid, float scale, "
    "bool with_weights) -> (Tensor y, Tensor lse, Tensor weights)"
)
_library.define(
    "attention_backward(Tensor grad, Tensor? grad_weights, Tensor query, Tensor key, Tensor? value, "
    "Tensor offsets, Tensor? y, Tensor lse, int groups, int grid, float scale) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_offsets)"
)


@cache
def kernels(backend: str) -> ModuleType:
    """Import and return the kernels of a backend."""
    return import_module(f"repgraph.ops.{backend}")


def _forward(query, key, value, offsets, groups, grid, scale, with_weights):
    # The only check of a traced call.
    check_shapes(query, (key,), (key if value is None else value,), offsets, groups, grid)
    if key.shape != query.shape:
        raise ValueError(f"key has shape {tuple(key.shape)}; expected the shape of query, {tuple(query.shape)}")
    return kernels("triton").forward(query, key, value, offsets, groups, grid, scale, with_weights)


def _backward(*arguments):
    return kernels("triton").backward(*arguments)


def outputs(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, with_weights: bool, with_lse=True
):
    """Return uninitialised (y, lse, weights) with the shapes, dtypes and strides of the results."""
    batch, _, height, width = query.shape
    y = empty_map(query, (key if value is None else value).shape[1])
    dtype = position_dtype(query.dtype)
    lse = torch.empty((batch, groups, height, width) if with_lse else 0, dtype=dtype, device=query.device)
    return y, lse, lse.new_empty((batch, groups, offsets.shape[1] // 2, height, width) if with_weights else 0)


def gradients(query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor):
    """Return uninitialised gradients; the gradient of ``value`` is empty if it is None."""
    grad_value = query.new_empty(0) if value is None else empty_map(value)
    grad_offsets = torch.empty_like(offsets, memory_format=torch.contiguous_format)
    return empty_map(query), empty_map(key), grad_value, grad_offsets


@torch.library.register_fake("repgraph::attention", lib=_library)
def _(query, key, value, offsets, groups, grid, scale, with_weights):
    return outputs(query, key, value, offsets, groups, with_weights)


@torch.library.register_fake("repgraph::attention_backward", lib=_library)
def _(grad, grad_weights, query, key, value, offsets, y, lse, groups, grid, scale):
    return gradients(query, key, value, offsets)


class _Attention(torch.autograd.Function):
    """Autograd of the operator. Without a jvp it raises for forward-mode tangents; register_autograd drops them."""

    @staticmethod
    def forward(ctx, query, key, value, offsets, groups, grid, scale, with_weights, eager=False):
        tensors = (query, key, value, offsets)
        if eager:
            y, lse, weights = kernels("triton").forward(*tensors, groups, grid, scale, with_weights)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                y, lse, weights = torch.ops.repgraph.attention(*tensors, groups, grid, scale, with_weights)
        ctx.options = groups, grid, scale
        ctx.joint = key is query
        ctx.values = y.shape[1]
        ctx.save_for_backward(query, key, value, offsets, y, lse, weights if with_weights else None)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return y, lse, weights

    @staticmethod
    def backward(ctx, grad, _, grad_weights):
        query, key, value, offsets, y, lse, weights = ctx.saved_tensors
        if weights is None:
            grad_weights = None
        if grad is None and grad_weights is None:
            return (None,) * 9
        if grad_weights is not None:  # the softmax is invariant to a constant gradient
            grad_weights = grad_weights - (grad_weights * weights).sum(2, keepdim=True)
        if grad is None:
            grad = empty_map(query, ctx.values).zero_()
        tensors = (grad, grad_weights, query, key, value, offsets, y, lse)
        # with create_graph, call the operator, whose own backward raises
        if direct(grad, query, key, value, offsets) and not torch.is_grad_enabled():
            grads = kernels("triton").backward(*tensors, *ctx.options, joint=ctx.joint)
            grad_query, grad_key, grad_value, grad_offsets = grads
            grad_key = None if ctx.joint else grad_key
        else:
            grads = torch.ops.repgraph.attention_backward(*tensors, *ctx.options)
            grad_query, grad_key, grad_value, grad_offsets = grads
        return grad_query, grad_key, None if value is None else grad_value, grad_offsets, *(None,) * 5


def attention(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, grid: int, scale: float,
    with_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Call ``repgraph::attention``, without the dispatcher if that makes no difference. Arguments have been checked."""
    options = (groups, grid, scale, with_weights)
    if not direct(query, key, value, offsets):
        return torch.ops.repgraph.attention(query, key, value, offsets, *options)
    if not needs_grad(query, key, value, offsets):
        return kernels("triton").forward(query, key, value, offsets, *options, with_lse=False)
    return _Attention.apply(query, key, value, offsets, *options, True)


def no_second_order(ctx: Any, *_):
    raise RuntimeError("the attention kernels have no second-order gradients; use backend='reference'")


_library.impl("attention", lambda *arguments: _Attention.apply(*arguments), "Autograd")
torch.library.register_autograd("repgraph::attention_backward", no_second_order, lib=_library)


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context without autocast."""
    enabled = device in AUTOCAST_DEVICES and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if enabled else nullcontext()


def autocasts(t: Tensor) -> bool:
    """Return whether autocast is enabled and casts this tensor; like in PyTorch, float64 is not cast."""
    enabled = t.device.type in AUTOCAST_DEVICES and torch.is_autocast_enabled(t.device.type)
    return enabled and t.is_floating_point() and t.dtype != torch.float64


def autocasting(t: Any) -> bool:
    """Return whether autocast is enabled on the device of a tensor."""
    return isinstance(t, Tensor) and t.device.type in AUTOCAST_DEVICES and torch.is_autocast_enabled(t.device.type)


def autocast(t: Any) -> Any:
    """Cast a tensor to the autocast dtype if autocast is enabled; return anything else unchanged."""
    return t.to(torch.get_autocast_dtype(t.device.type)) if isinstance(t, Tensor) and autocasts(t) else t


def autocast_inputs(library: torch.library.Library, name: str, device: str) -> None:
    """Cast query, key and value, the first arguments of an operator, to the autocast dtype."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

    def run(query, key, value, *rest):
        tensors = [autocast(t) for t in (query, key, value)]  # without the guard, which disables autocast
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return getattr(torch.ops.repgraph, name)(*tensors, *rest)

    library.impl(name, run, f"Autocast{device}")


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _device)
    _library.impl("attention_backward", _backward, _device)
    autocast_inputs(_library, "attention", _device)
