"""Attention to nodes on one or several maps, in PyTorch's dispatcher: schemas, fake tensors, autograd.

The maps are concatenated in a tensor (B, N, C), N = sum of H_l W_l, and one kernel reads them all. Weights
are computed (representative attention) or given (deformable attention). A backend has two functions::

    levels_forward(query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, training, with_weights)
        -> (y, lse, weights, response)
    levels_backward(grad, grad_weights, query, key, value, offsets, bias, response, lse, sizes, points, groups, sets,
        grid, scale) -> (grad_query, grad_key, grad_value, grad_offsets, grad_bias)

- ``query`` (B, C, H, W); ``key`` and ``value`` (B, N, C) and (B, N, Cv). ``value`` is None if it is the key.
- ``offsets`` (B, 2 K sum(points), Hc, Wc); ``bias`` (1 or B, G sum(points), 1 or H, 1 or W) or None.
- ``sizes`` are H_l and W_l of all maps in one list, ``points`` the number of nodes on each map, ``sets`` is K. In calls
  of the operators, an empty list means one map of the query's size, and the same number of nodes on each map.
- ``lse`` (B, G, H, W) is the logsumexp of the logits, ``response`` is y without rounding to half precision. Both are
  for the backward pass, and empty if the backend or the call does not need them.
- Given weights: ``query`` and ``key`` are None, ``offsets`` are locations from 0 to 1 over each map, ``bias`` are the
  weights (B, G sum(points), 1, Q), and y is (B, Cv, 1, Q).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from repgraph.ops.backends import direct, needs_grad
from repgraph.ops.checks import check_positive
from repgraph.ops.formats import empty_map
from repgraph.ops.geometry import position_dtype
from repgraph.ops.library import autocast_inputs, kernels, no_second_order

_library = torch.library.Library("repgraph", "FRAGMENT")
_MAPS = "Tensor? query, Tensor? key, Tensor? value, Tensor offsets, Tensor? bias"
_NUMBERS = "SymInt[] sizes, SymInt[] points, SymInt groups, SymInt sets, SymInt grid, float scale, str backend"
_library.define(
    f"levels({_MAPS}, {_NUMBERS}, bool training, bool with_weights) -> "
    "(Tensor y, Tensor lse, Tensor weights, Tensor response)"
)
_library.define(
    f"levels_backward(Tensor grad, Tensor? grad_weights, {_MAPS}, Tensor response, Tensor lse, {_NUMBERS}) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_offsets, Tensor grad_bias)"
)


def flat(maps: Sequence[Tensor]) -> Tensor:
    """Return maps (B, C, H_l, W_l) one after the other, (B, N, C)."""
    rows = [each.permute(0, 2, 3, 1).flatten(1, 2) for each in maps]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def attend(
    query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, bias: Tensor | None,
    sizes: Sequence[Sequence[int]], groups: int, sets: int, grid: int, scale: float, backend: str, with_weights: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return y and the weights (empty unless ``with_weights``) of attention with computed weights."""
    numbers = (groups, sets, grid, scale, backend)
    flat_sizes = [n for size in sizes for n in size]
    y, _, weights, _ = _call(query, key, value, offsets, bias, flat_sizes, [], *numbers, with_weights)
    return y, weights


def deform(
    value: Tensor, locations: Tensor, weights: Tensor, sizes: Sequence[Sequence[int]], points: Sequence[int],
    backend: str,
) -> Tensor:  # fmt: skip
    """Return the sums (B, Q, M D) of values (B, N, M, D) with given weights, as in multi-scale deformable attention.

    Locations (B, Q, M, ..., 2) and weights (B, Q, M, ...) have sum(points) points for each query and head.
    """
    numbers = [n for size in sizes for n in size], list(points), value.shape[2], value.shape[2], 1, 1.0
    if not direct(value, locations, weights):
        y = torch.ops.repgraph.levels(None, None, *_as_maps(value, locations, weights), *numbers, backend, True, False)[
            0
        ]
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
    y, *_ = kernels(backend).levels_forward(None, None, *tensors, *numbers, False, False)
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
        backward = _backward if eager else torch.ops.repgraph.levels_backward
        grads = backward(grad, None, None, None, *_as_maps(*tensors), empty, empty, *ctx.options)
        rows, offsets, bias = grads[2:]
        offsets, bias = (
            t.permute(0, 2, 3, 1).reshape(like.shape) for t, like in zip((offsets, bias), tensors[1:], strict=True)
        )
        return rows.view(tensors[0].shape), offsets, bias, None, None


def _call(query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, backend, with_weights):
    """Call ``repgraph::levels``, without the dispatcher if that makes no difference."""
    numbers = (groups, sets, grid, scale)
    tensors = (query, key, value, offsets, bias)
    training = needs_grad(*tensors)
    if not direct(*tensors):
        training = training or torch.jit.is_tracing()  # torch.jit.trace checks its result without gradients
        return torch.ops.repgraph.levels(*tensors, sizes, points, *numbers, backend, training, with_weights)
    numbers = (*_lists(query, offsets, sizes, points, sets), *numbers)
    if training:
        return _Levels.apply(*tensors, *numbers, backend, training, with_weights)
    return kernels(backend).levels_forward(*tensors, *numbers, training, with_weights)


def _lists(query, offsets, sizes, points, sets):
    """Return sizes and points in full."""
    sizes = sizes or list(query.shape[2:])
    maps = len(sizes) // 2
    return sizes, points or [offsets.shape[1] // (2 * sets * maps)] * maps


def _forward(query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, backend, *flags):
    # The only check of a traced call: kernels rely on it.
    check_positive(groups=groups, sets=sets, grid=grid)
    sizes, points = _lists(query, offsets, sizes, points, sets)
    features = value if key is None else key
    batch, positions, channels = features.shape
    size = offsets.shape[2:] if query is None else query.shape[2:]
    found = sum(height * width for height, width in zip(sizes[::2], sizes[1::2], strict=True))
    fits = found == positions and min(sizes) >= 0 and len(points) * 2 == len(sizes) and channels % groups == 0
    fits = fits and tuple(offsets.shape) == (batch, 2 * sets * sum(points), -(-size[0] // grid), -(-size[1] // grid))
    fits = fits and (key is None or value is None or value.shape[:2] == key.shape[:2])
    fits = fits and (query is None or query.shape[:2] == (batch, channels))
    if bias is not None:
        wanted = (batch, groups * sum(points), *size)
        fits = fits and all(n in (1, most) for n, most in zip(bias.shape, wanted, strict=True))
        fits = fits and bias.shape[1] == wanted[1]
    if not fits:
        raise ValueError(f"repgraph::levels: tensors do not match the sizes {sizes} and points {points}")
    options = (sizes, points, groups, sets, grid, scale, *flags)
    return kernels(backend).levels_forward(query, key, value, offsets, bias, *options)


def _backward(grad, grad_weights, query, key, value, offsets, bias, response, lse, sizes, points, groups, sets, *rest):
    tensors = (grad, grad_weights, query, key, value, offsets, bias, response, lse)
    sizes, points = _lists(query, offsets, sizes, points, sets)
    *numbers, backend = rest
    return kernels(backend).levels_backward(*tensors, sizes, points, groups, sets, *numbers)


def outputs(query, key, value, offsets, groups, sets, backend, training, with_weights):
    """Return uninitialised (y, lse, weights, response)."""
    features = key if value is None else value
    channels, dtype = features.shape[2], position_dtype(features.dtype)
    if query is None:
        batch, _, height, width = offsets.shape
        rows = features.new_empty((batch, height, width, channels))
        return rows.permute(0, 3, 1, 2), *(rows.new_empty(0, dtype=dtype) for _ in range(3))
    batch, _, height, width = query.shape
    y = empty_map(query, channels)
    keeps = backend == "triton" and (training or with_weights)
    lse = y.new_empty((batch, groups, height, width) if keeps else 0, dtype=dtype)
    weights = lse.new_empty((batch, groups, offsets.shape[1] // (2 * sets), height, width) if with_weights else 0)
    precise = backend == "triton" and training and y.dtype != dtype
    return y, lse, weights, lse.new_empty((batch, height, width, channels) if precise else 0)


def gradients(query, key, value, offsets, bias, backend):
    """Return uninitialised gradients of the five tensors; empty for None."""

    def like(t: Tensor | None) -> Tensor:
        if t is None:
            return offsets.new_empty(0)
        if backend == "cpu" and t.dim() == 3 and t.stride(1) == 1:  # of a contiguous map (B, C, H, W)
            return torch.empty_like(t.mT, memory_format=torch.contiguous_format).mT
        return torch.empty_like(t, memory_format=torch.contiguous_format)

    grad_query = offsets.new_empty(0) if query is None else empty_map(query)
    if query is not None:
        return grad_query, like(key), like(value), like(offsets), like(bias)
    batch, channels, height, width = offsets.shape  # in the layout of locations and weights
    rows = offsets.new_empty((batch, height, width, channels)).permute(0, 3, 1, 2)
    return grad_query, like(key), like(value), rows, bias.new_empty(bias.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


@torch.library.register_fake("repgraph::levels", lib=_library)
def _(query, key, value, offsets, bias, sizes, points, groups, sets, grid, scale, backend, training, with_weights):
    return outputs(query, key, value, offsets, groups, sets, backend, training, with_weights)


@torch.library.register_fake("repgraph::levels_backward", lib=_library)
def _(grad, grad_weights, query, key, value, offsets, bias, *rest):
    return gradients(query, key, value, offsets, bias, rest[-1])


class _Levels(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *arguments):
        *tensors, sizes, points, groups, sets, grid, scale, backend, _, with_weights = arguments
        if direct(*tensors):
            results = _forward(*arguments)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                results = torch.ops.repgraph.levels(*arguments)
        y, lse, weights, response = results
        ctx.options = sizes, points, groups, sets, grid, scale, backend
        ctx.inputs, ctx.like = len(arguments), y.detach().new_empty(0)
        ctx.shape = y.shape
        # The backward pass of Triton computes the softmax from y before rounding.
        own = y if backend == "triton" and tensors[0] is not None and not response.numel() else response
        ctx.save_for_backward(*tensors, own, lse, weights if with_weights else None)
        ctx.mark_non_differentiable(lse, response)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, grad, _, grad_weights, __):
        *tensors, response, lse, weights = ctx.saved_tensors
        if weights is None:
            grad_weights = None
        if grad is None and grad_weights is None:
            return (None,) * ctx.inputs
        if grad_weights is not None:  # the softmax is invariant to a constant gradient
            grad_weights = grad_weights - (grad_weights * weights).sum(2, keepdim=True)
        if grad is None:
            grad = ctx.like.new_zeros(ctx.shape)
        # with create_graph, call the operator, whose own backward raises
        eager = direct(grad, *tensors) and not torch.is_grad_enabled()
        backward = _backward if eager else torch.ops.repgraph.levels_backward
        grads = backward(grad, grad_weights, *tensors, response, lse, *ctx.options)
        grads = [None if t is None else each for t, each in zip(tensors, grads, strict=True)]
        return *grads, *(None,) * (ctx.inputs - len(grads))


_library.impl("levels", lambda *arguments: _Levels.apply(*arguments), "Autograd")
torch.library.register_autograd("repgraph::levels_backward", no_second_order, lib=_library)
for _device in ("CPU", "CUDA"):
    _library.impl("levels", _forward, _device)
    _library.impl("levels_backward", _backward, _device)
    autocast_inputs(_library, "levels", _device)
