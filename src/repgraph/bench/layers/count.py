"""How much work a layer does when it runs, counted operation by operation as PyTorch calls them.

The counts are those of :mod:`repgraph.bench.layers.formulas`. Layers run here without data (on fake tensors), at any
size. Work on parameters alone is not counted: only what follows from the input.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from repgraph.bench.layers.formulas import SAMPLE, SOFTMAX, Work

Rule = Callable[..., Work]  # the result, then the operation's own arguments -> its work


class Uncounted(RuntimeError):
    """An operation that does products and has no rule here."""


def _mm(y: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    return Work(y.numel() * a.shape[-1], 0)


def _addmm(y: Tensor, bias: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    return Work(y.numel() * a.shape[-1], y.numel())


def _addmm_activation(y: Tensor, bias: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Work:
    return Work(y.numel() * a.shape[-1], 2 * y.numel())


def _convolution(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any) -> Work:
    return Work(y.numel() * math.prod(weight.shape[1:]), 0 if bias is None else y.numel())


def _sdpa(y: tuple[Tensor, ...], query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Work:
    weights = math.prod(query.shape[:-1]) * key.shape[-2]  # [B, heads, L, E] and [B, heads, S, E]
    return Work(weights * (query.shape[-1] + value.shape[-1]), SOFTMAX * weights)


def _attention(
    y: tuple[Tensor, ...], query: Tensor, key: Tensor, value: Tensor | None, offsets: Tensor, groups: int, *_: Any
) -> Work:
    batch, channels, height, width = query.shape
    nodes = offsets.shape[1] // 2
    attended = batch * nodes * height * width  # pairs of a position and a node
    sampled = batch * nodes * offsets.shape[2] * offsets.shape[3]
    read = channels + (0 if value is None else value.shape[1])
    responses = (key if value is None else value).shape[1]
    return Work(attended * (channels + responses) + SAMPLE * sampled * read, SOFTMAX * attended * groups)


def _residual_product(y: Tensor, x: Tensor, a: Tensor, weight: Tensor, bias: Tensor | None) -> Work:
    return Work(y.numel() * a.shape[1], y.numel() * (1 if bias is None else 2))


def _wide_product(y: Tensor, a: Tensor, weight: Tensor, bias: Tensor) -> Work:
    return Work(y.numel() * a.shape[1], y.numel())


def _relu_products(
    y: tuple[Tensor, Tensor], a: Tensor, weight: Tensor, bias: Tensor, last_weight: Tensor, last_bias: Tensor
) -> Work:
    feature, last = y
    products = feature.numel() * a.shape[1] + last.numel() * feature.shape[1]
    return Work(products, 2 * feature.numel() + last.numel())


def _each(times: int = 1) -> Rule:
    """So many for each element of the (first) result."""
    return lambda y, *_, **__: Work(0, times * (y[0] if isinstance(y, tuple) else y).numel())


def _read(y: Tensor, x: Tensor, *_: Any, **__: Any) -> Work:
    return Work(0, x.numel())


def _pooled(y: Tensor, x: Tensor, window: Sequence[int], steps: Sequence[int] = (), *_: Any, **__: Any) -> Work:
    """Cells that stand side by side read each element once; windows that overlap are read each on its own."""
    overlap = any(step < side for step, side in zip(steps, window, strict=False))
    return Work(0, y.numel() * math.prod(window) if overlap else x.numel())


def _nothing(y: Any, *_: Any, **__: Any) -> Work:
    return Work(0, 0)


def _multiplied(y: Tensor, a: Any, b: Any) -> Work:
    single = any(not isinstance(t, Tensor) or t.numel() == 1 for t in (a, b))
    return Work(0, 0 if single else y.numel())


# To count one more operation, add its line. What is not here and does not look like products counts one for each
# element of its result.
RULES: dict[str, Rule] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": _addmm,
    "aten::baddbmm": _addmm,
    "aten::_addmm_activation": _addmm_activation,
    "aten::linear": _convolution,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::cudnn_convolution": _convolution,
    "aten::mkldnn_convolution": _convolution,
    "aten::_scaled_dot_product_flash_attention": _sdpa,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _sdpa,
    "aten::_scaled_dot_product_efficient_attention": _sdpa,
    "aten::_scaled_dot_product_cudnn_attention": _sdpa,
    "aten::_scaled_dot_product_fused_attention_overrideable": _sdpa,
    "repgraph::attention": _attention,
    "repgraph::residual_product": _residual_product,
    "repgraph::wide_product": _wide_product,
    "repgraph::relu_products": _relu_products,
    "aten::_softmax": _each(SOFTMAX),
    "aten::_safe_softmax": _each(SOFTMAX),
    "aten::native_batch_norm": _each(),
    "aten::_native_batch_norm_legit_no_training": _each(),
    "aten::cudnn_batch_norm": _each(),
    "aten::avg_pool2d": _pooled,
    "aten::mean": _read,
    "aten::mul": _multiplied,
    "aten::div": _multiplied,
    "aten::_to_copy": _nothing,
    "aten::_unsafe_view": _nothing,
    "aten::cat": _nothing,
    "aten::clone": _nothing,
    "aten::constant_pad_nd": _nothing,
    "aten::copy_": _nothing,
    "aten::empty_like": _nothing,
}
PRODUCTS = ("mm", "conv", "attention", "linear", "dot", "einsum", "baddb", "matmul", "mv", "addr")


class Counter(TorchDispatchMode):
    """Adds up the work of every operation that follows from ``x`` while it is active."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.products = self.elements = 0
        self.follows = {id(x): x}  # tensors that follow from x; held, so that no other gets their id

    @property
    def work(self) -> Work:
        return Work(self.products, self.elements)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = operation._schema.name
        if name not in RULES and operation.namespace == "aten":
            with self:
                parts = operation.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = operation(*args, **kwargs)
        if any(id(t) in self.follows for t in tree_leaves((args, kwargs))):
            self.follows |= {id(t): t for t in tree_leaves(result) if isinstance(t, Tensor)}
            products, elements = _rule(operation, name)(result, *args, **kwargs)
            self.products += products
            self.elements += elements
        return result


def _rule(operation: Any, name: str) -> Rule:
    if name in RULES:
        return RULES[name]
    space, _, own = name.partition("::")
    if space == "prim" or operation.is_view:
        return _nothing
    if space != "aten" or any(word in own for word in PRODUCTS):
        raise Uncounted(f"{name} may do products, and how many is not known; add it to RULES of bench/layers/count.py")
    return _each()


def count(layer: nn.Module, x: Tensor) -> Work:
    """The work of ``layer(x)`` in inference; ``x`` and the layer may be fake.

    >>> count(nn.Conv2d(4, 6, 1), torch.randn(1, 4, 3, 5))
    Work(products=360, elements=90)
    """
    with torch.no_grad(), Counter(x) as counter:
        layer(x)
    return counter.work


def without_data(make: Callable[[], tuple[nn.Module, Tensor]]) -> Work:
    """The work of a layer and its input that ``make`` makes, on fake tensors: nothing is computed or allocated."""
    with FakeTensorMode():
        return count(*make())
