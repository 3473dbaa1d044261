"""The operator as PyTorch sees it: schemas, shapes without data, gradients, autocast.

``value`` is None where it is the key: a static fact that survives tracing, so that memory is read once.
Kernels are imported when they first run. They are functions
``forward(query, key, value, offsets, groups, grid, scale, with_weights) -> (y, lse, weights)`` and
``backward(grad, grad_weights, query, key, value, offsets, y, lse, groups, grid, scale)
-> (grad_query, grad_key, grad_value, grad_offsets)``; results that were not asked for are empty tensors.
``lse`` is the logsumexp of the logits, which those of LEAVES_LSE leave out if told ``with_lse=False``; ``y`` is given
to those of NEEDS_RESULT alone; ``grad_weights``, where given, has mean zero under the weights.
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

# Those of torch.amp.is_autocast_available, which torch.compile cannot trace.
AUTOCAST_DEVICES = frozenset(("cpu", "cuda", "hpu", "ipu", "maia", "mps", "mtia", "xla", "xpu"))

NEEDS_RESULT = ("triton",)  # kernels whose backward pass reads y
LEAVES_LSE = ("triton",)  # kernels that can do without lse, which a backward pass reads
JOINS = ("triton",)  # kernels whose backward pass can give one gradient for a query that is the key

_library = torch.library.Library("repgraph", "DEF")
_library.define(
    "attention(Tensor query, Tensor key, Tensor? value, Tensor offsets, int groups, int grid, float scale, "
    "str backend, bool with_weights) -> (Tensor y, Tensor lse, Tensor weights)"
)
_library.define(
    "attention_backward(Tensor grad, Tensor? grad_weights, Tensor query, Tensor key, Tensor? value, "
    "Tensor offsets, Tensor? y, Tensor lse, int groups, int grid, float scale, str backend) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_offsets)"
)


@cache
def kernels(backend: str) -> ModuleType:
    """The door to the kernels of a backend."""
    return import_module(f"repgraph.ops.{backend}")


def _forward(query, key, value, offsets, groups, grid, scale, backend, with_weights, **more):
    check_shapes(query, key, key if value is None else value, offsets, groups, grid)  # a traced call comes unchecked
    return kernels(backend).forward(query, key, value, offsets, groups, grid, scale, with_weights, **more)


def _backward(grad, grad_weights, query, key, value, offsets, y, lse, groups, grid, scale, backend, **more):
    return kernels(backend).backward(
        grad, grad_weights, query, key, value, offsets, y, lse, groups, grid, scale, **more
    )


for _device in ("CPU", "CUDA"):
    _library.impl("attention", _forward, _device)
    _library.impl("attention_backward", _backward, _device)


def outputs(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, with_weights: bool,
    with_lse: bool = True,
):  # fmt: skip
    """Uninitialised (y, lse, weights): the one place that knows their shapes, dtypes and strides."""
    batch, _, height, width = query.shape
    y = empty_map(query, (key if value is None else value).shape[1])
    dtype = position_dtype(query.dtype)
    lse = torch.empty((batch, groups, height, width) if with_lse else 0, dtype=dtype, device=query.device)
    return y, lse, lse.new_empty((batch, groups, offsets.shape[1] // 2, height, width) if with_weights else 0)


def gradients(query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor):
    """Uninitialised gradients; that of ``value`` is empty where it is the key."""
    grad_value = query.new_empty(0) if value is None else empty_map(value)
    return (
        empty_map(query),
        empty_map(key),
        grad_value,
        torch.empty_like(offsets, memory_format=torch.contiguous_format),
    )


@torch.library.register_fake("repgraph::attention", lib=_library)
def _(query, key, value, offsets, groups, grid, scale, backend, with_weights):
    return outputs(query, key, value, offsets, groups, with_weights)


@torch.library.register_fake("repgraph::attention_backward", lib=_library)
def _(grad, grad_weights, query, key, value, offsets, y, lse, groups, grid, scale, backend):
    return gradients(query, key, value, offsets)


class _Attention(torch.autograd.Function):
    """What runs at the Autograd key. torch.library.register_autograd would pass by tensors that require no gradient,
    and lose their forward-mode tangents; a Function without a jvp refuses those."""

    @staticmethod
    def forward(ctx, query, key, value, offsets, groups, grid, scale, backend, with_weights):
        ctx.joined = key is None  # it is the query, and gets one gradient for both
        key = query if key is None else key
        arguments = (query, key, value, offsets, groups, grid, scale, backend, with_weights)
        if direct(query, key, value, offsets):
            y, lse, weights = _forward(*arguments)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                y, lse, weights = torch.ops.repgraph.attention(*arguments)
        ctx.options = groups, grid, scale, backend
        ctx.values = y.shape[1]
        own = y if backend in NEEDS_RESULT else None  # others let it be changed in place, by a ReLU for example
        ctx.save_for_backward(query, key, value, offsets, own, lse, weights if with_weights else None)
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
        if grad_weights is not None:  # what all nodes have in common does not move a softmax
            grad_weights = grad_weights - (grad_weights * weights).sum(2, keepdim=True)
        if grad is None:
            grad = empty_map(query, ctx.values).zero_()
        # a gradient that is to be differentiated again has to say that it cannot be
        past = direct(grad, query, key, value, offsets) and not torch.is_grad_enabled()
        backward = _backward if past else torch.ops.repgraph.attention_backward
        more = {"joined": True} if ctx.joined and past else {}
        grad_query, grad_key, grad_value, grad_offsets = backward(
            grad, grad_weights, query, key, value, offsets, y, lse, *ctx.options, **more
        )
        if ctx.joined:
            grad_query, grad_key = grad_key if past else grad_query + grad_key, None
        return grad_query, grad_key, None if value is None else grad_value, grad_offsets, *(None,) * 5


def attention(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, grid: int, scale: float,
    backend: str, with_weights: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The operator ``repgraph::attention``, past PyTorch's dispatcher where nobody would notice."""
    options = (groups, grid, scale, backend, with_weights)
    if not direct(query, key, value, offsets):
        return torch.ops.repgraph.attention(query, key, value, offsets, *options)
    if not needs_grad(query, key, value, offsets):
        more = {"with_lse": False} if backend in LEAVES_LSE else {}
        return _forward(query, key, value, offsets, *options, **more)
    alone = key is query and value is None and backend in JOINS
    return _Attention.apply(query, None if alone else key, value, offsets, *options)


def _no_second_order(ctx: Any, *_):
    raise RuntimeError(
        "the kernels of representative_attention can be differentiated once; "
        "use backend='reference' for second-order gradients"
    )


_library.impl("attention", lambda *arguments: _Attention.apply(*arguments), "Autograd")
torch.library.register_autograd("repgraph::attention_backward", _no_second_order, lib=_library)


def unrounded(device: str) -> AbstractContextManager[Any]:
    """Without autocast, on devices that have it."""
    return torch.autocast(device, enabled=False) if device in AUTOCAST_DEVICES else nullcontext()


def to_autocast(query: Tensor, key: Tensor, value: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Features in the autocast dtype, where autocast is on; as PyTorch does, float64 is left alone."""
    device = query.device.type
    if device not in AUTOCAST_DEVICES or not torch.is_autocast_enabled(device):
        return query, key, value
    dtype = torch.get_autocast_dtype(device)

    def cast(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t

    new_key = cast(key)
    new_value = new_key if value is key else None if value is None else cast(value)
    return cast(query), new_key, new_value


def _autocast(device: str) -> None:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

    def attention(query, key, value, *rest):
        query, key, value = to_autocast(query, key, value)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return torch.ops.repgraph.attention(query, key, value, *rest)

    _library.impl("attention", attention, f"Autocast{device}")


for _device in ("CPU", "CUDA"):
    _autocast(_device)
