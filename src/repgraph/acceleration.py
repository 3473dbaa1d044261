"""Deformable attention in Hugging Face models, computed by :func:`repgraph.multi_scale_deformable_attention`.

In most networks a module ``MultiScaleDeformableAttention`` computes it. In Mask2Former, OneFormer and RT-DETRv2 the
attention's ``forward`` calls a function of its Python module, in D-FINE and DEIMv2 an attribute of the instance.
"""

import contextlib
import sys
import threading
import types
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.ops import multi_scale_deformable_attention
from repgraph.ops.backends import NAMES, why_not

MODULE = "MultiScaleDeformableAttention"
ATTRIBUTE = "ms_deformable_attn_core"
_PLAIN = ("value", "value_spatial_shapes", "sampling_locations", "attention_weights")
_V2 = (*_PLAIN, "num_points_list", "method")
_CALLED = {"multi_scale_deformable_attention": _PLAIN, "multi_scale_deformable_attention_v2": _V2, ATTRIBUTE: _V2}
# Parameters of what computes the attention: the module's forward, or what the forward calls.
_PARAMETERS = _CALLED | {
    "forward": (
        "self", "value", "value_spatial_shapes", "value_spatial_shapes_list", "level_start_index",
        "sampling_locations", "attention_weights", "im2col_step",
    ),
}  # fmt: skip


class Accelerated(nn.Module):
    """Base class of the accelerated modules."""

    original: ClassVar[type[nn.Module]]
    backend: ClassVar[str]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle and deepcopy look a class up by its name, and would find the original.
        return (_rebuild, (self.original, self.backend), *super().__reduce_ex__(protocol)[2:])


def accelerate(model: nn.Module, *, undo: bool = False, backend: str = "auto") -> list[str]:
    """Compute deformable attention in a Hugging Face model with this library's kernels, in place.

    Supported families: Deformable DETR, RT-DETR (v1, v2), RF-DETR, LW-DETR, D-FINE, DEIMv2, Grounding DINO, MM
    Grounding DINO, OmDet-Turbo, Mask2Former, OneFormer and PP-DocLayout. Results and gradients are the same up to
    rounding. Only this instance changes, not its parameters; saving, copying, pickling and compiling work as before.

    Args:
        model: a model of transformers, or a module that contains one. Modules with nearest-neighbor sampling
            (``decoder_method="discrete"``) are left as they are, with a warning that names them.
        undo: restore the original modules.
        backend: see :func:`repgraph.representative_attention`.

    Returns the names of the accelerated modules; with ``undo``, of the restored ones.
    """
    if backend not in NAMES:
        raise UsageError(f"backend is {backend!r}; expected one of {', '.join(map(repr, NAMES))}")
    modules = model.named_modules() if isinstance(model, nn.Module) else ()  # a pipeline is not a module
    found = {name: module for name, module in modules if _core(_original(module)) is not None}
    if not found:
        raise UsageError(f"found no deformable attention of Hugging Face Transformers in {type(model).__name__}")
    if undo:
        chosen = {name: module for name, module in found.items() if isinstance(module, Accelerated)}
    else:
        method = {n: getattr(m, "method", getattr(m, "decoder_method", "default")) for n, m in found.items()}
        chosen = {name: module for name, module in found.items() if method[name] == "default"}
        if left := [name for name in found if name not in chosen]:
            message = f"cannot accelerate {', '.join(left)}: only bilinear sampling is supported, not 'discrete'"
            if not chosen:
                raise UsageError(message)
            warnings.warn(message, stacklevel=2)
            for name in left:  # accelerated before its method changed
                found[name].__class__ = _original(found[name])
        for module in chosen.values():  # before anything is changed
            _check(module)
    for module in chosen.values():
        # The class of the instance is what deepcopy, pickle, replicas and Dynamo all respect. A function stored in the
        # instance would stay bound to the original of a copy.
        cls: Any = _original(module)
        module.__class__ = cls if undo else _accelerated(cls, backend)
    if not undo and backend in ("auto", "cpu"):
        _compile_kernels(model)
    return list(chosen)


def _original(module: nn.Module) -> type[nn.Module]:
    return module.original if isinstance(module, Accelerated) else type(module)


def _core(cls: type[nn.Module]) -> tuple[type, str] | None:
    """Return the class that defines ``forward`` and the name of what computes its attention, None if nothing does."""
    owner = next(base for base in cls.__mro__ if "forward" in vars(base))
    if not owner.__module__.startswith("transformers.models."):
        return None
    if owner.__name__ == MODULE:
        return owner, "forward"
    called = getattr(getattr(vars(owner)["forward"], "__code__", None), "co_names", ())
    return next(((owner, name) for name in _CALLED if name in called), None)


def _check(module: nn.Module) -> None:
    """Raise if a module cannot be accelerated."""
    owner, core = _core(_original(module))  # type: ignore[misc]
    if "forward" in vars(module):
        raise UsageError(f"{owner.__name__}.forward was replaced (as by use_kernels=True); load the model without it")
    forward = vars(owner)["forward"]
    function = forward if core == "forward" else vars(module).get(core) or forward.__globals__[core]
    _check_function(owner, function, _PARAMETERS[core])


def _rebuild(original: Any, backend: str) -> nn.Module:
    cls = _accelerated(original, backend)
    return cls.__new__(cls)


@cache
def _accelerated(original: type[nn.Module], backend: str) -> type[Accelerated]:
    """Return the class that takes the place of ``original``."""

    def attend(
        value: Tensor,
        value_spatial_shapes: Any,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        num_points_list: list[int] | None = None,
        method: str = "default",
    ) -> Tensor:
        if method != "default":
            raise UsageError(f"repgraph cannot compute the method {method!r}; call repgraph.accelerate(..., undo=True)")
        return multi_scale_deformable_attention(
            value, value_spatial_shapes, sampling_locations, attention_weights, points=num_points_list, backend=backend
        ).contiguous()

    def forward(
        self: nn.Module,
        value: Tensor,
        value_spatial_shapes: Tensor,
        value_spatial_shapes_list: list[tuple[int, int]],
        level_start_index: Tensor,
        sampling_locations: Tensor,
        attention_weights: Tensor,
        im2col_step: int,
    ) -> Tensor:
        return attend(value, value_spatial_shapes_list, sampling_locations, attention_weights)

    members: dict[str, Any] = dict(original=original, backend=backend, __module__=original.__module__)
    members |= dict(__qualname__=original.__qualname__, __doc__=original.__doc__)
    owner, core = _core(original)  # type: ignore[misc]
    if core == "forward":
        members["forward"] = forward
    elif core == ATTRIBUTE:
        members[ATTRIBUTE] = property(lambda self: attend)  # precedes the attribute of the instance
    else:
        members["forward"] = _with_global(vars(owner)["forward"], core, attend)
    return type(original.__name__, (Accelerated, original), members)


def _with_global(function: Any, name: str, value: Any) -> Callable[..., Any]:
    """Return a function with the same code, for which the global ``name`` is ``value``."""
    scope = {**function.__globals__, name: value}
    del scope["__name__"]  # or Dynamo would look names up in the module of this name
    copy = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@cache
def _check_function(owner: type, function: Callable[..., Tensor], expected: tuple[str, ...]) -> None:
    """Raise if a function has other parameters than ``expected``, or other results."""
    sizes = [(3, 2), (1, 2)]
    with torch.device("cpu"):
        value = torch.linspace(-1, 1, 8 * 2 * 3, dtype=torch.float64).view(1, 8, 2, 3)
        locations = torch.linspace(-0.2, 1.3, 5 * 2 * 4 * 2, dtype=torch.float64).sin().view(1, 5, 2, 2, 2, 2)
    weights = locations.prod(-1)
    given: dict[str, Any] = dict.fromkeys(expected) | dict(value=value, num_points_list=[2, 2], method="default")
    given |= dict(value_spatial_shapes=sizes, value_spatial_shapes_list=sizes)
    given |= dict(sampling_locations=locations, attention_weights=weights)
    if expected is _V2:
        given |= dict(sampling_locations=locations.flatten(3, 4), attention_weights=weights.flatten(3))
    ours = multi_scale_deformable_attention(value, sizes, locations, weights, backend="reference")
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # other parameters, or a result of another shape
        if torch.allclose(function(*(given[name] for name in expected)), ours):
            return
    where = f"{owner.__module__}.{owner.__name__} (transformers {sys.modules['transformers'].__version__})"
    raise UsageError(f"{where} is not supported: its deformable attention has another signature or gives other results")


def _compile_kernels(model: nn.Module) -> None:
    """Compile the CPU kernels if they are not yet in the cache, so that the first call of the model is fast."""
    message = "repgraph: compiling kernels for the CPU, once for this machine ..."
    timer = threading.Timer(1.0, print, [message], dict(file=sys.stderr, flush=True))  # not if they are in the cache
    timer.start()
    layers = [p for name, p in model.named_parameters() if "sampling_offsets" in name]
    try:
        with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
            for dtype in {p.dtype for p in layers if why_not("cpu", p.device, p.dtype) is None}:
                # two heads and many points, so that values are copied
                shapes = (1, 4, 2, 8), (1, 16, 2, 1, 1, 2), (1, 16, 2, 1, 1)
                value, *rest = (torch.full(shape, 0.5, dtype=dtype, requires_grad=True) for shape in shapes)
                y = multi_scale_deformable_attention(value, [(2, 2)], *rest, backend="cpu")
                torch.autograd.grad(y.sum(), [value, *rest])
    finally:
        timer.cancel()
