"""The backends of the operator: which can run, which is chosen, and how it is called."""

import importlib
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from repgraph.errors import BackendError

KERNELS = ("triton", "cpu")
NAMES = ("auto", "reference", *KERNELS)


def _constant(function: Any) -> Any:
    """Like ``torch.compiler.assume_constant_result``, without importing Dynamo."""
    function._dynamo_marked_constant = True
    return function


@cache
def _missing(module: str) -> str | None:
    """Import a package and return why it cannot be used, None if it can."""
    try:
        package = importlib.import_module(module)
    except ModuleNotFoundError as error:
        return f"{module} is not installed" if error.name == module else f"{module} cannot be imported: {error}"
    except Exception as error:  # a broken installation may raise anything
        return f"{module} cannot be imported: {error}"
    if module == "numba" and package.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set, so numba does not compile"
    return None


@cache
def _capability(index: int | None) -> tuple[int, int] | None:
    """Return the compute capability of a CUDA device (None: the current one), None if there is none."""
    return torch.cuda.get_device_capability(index) if torch.cuda.is_available() else None


@_constant
def why_not(backend: str, device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
    """Return why ``backend`` cannot run for features of ``dtype`` on ``device``, None if it can."""
    if backend == "cpu":
        if device.type != "cpu":
            return f"tensors on {device.type} are not supported (only on the CPU)"
        if dtype not in (torch.float32, torch.float64, torch.bfloat16):
            return f"{dtype} is not supported (only float32, float64 and bfloat16)"
        return _missing("numba")
    if backend == "triton":
        if (missing := _missing("triton")) is not None:
            return missing
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"{dtype} is not supported (only float32, bfloat16 and float16)"
        if device.type == "cpu":
            interpreted = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")
            return None if interpreted else "tensors on the CPU are not supported (only with TRITON_INTERPRET=1)"
        if device.type != "cuda":
            return f"tensors on {device.type} are not supported (only on CUDA)"
        return _too_old(device.index, dtype)
    return None


@cache
def _too_old(index: int | None, dtype: torch.dtype) -> str | None:
    """Return why a CUDA device cannot run kernels for features of ``dtype``, None if it can."""
    capability = _capability(index)
    if capability is None:
        return "PyTorch finds no CUDA device"
    least = (8, 0) if dtype == torch.bfloat16 else (7, 0)
    if torch.version.hip is None and capability < least:
        needed, found = (".".join(map(str, numbers)) for numbers in (least, capability))
        return f"{dtype} needs compute capability {needed}; this GPU has {found}"
    return None


def choose(backend: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the backend to run: the named one, or for "auto" the fastest that can. Raise if the named one cannot."""
    if backend == "auto":
        if exporting_onnx():
            return "reference"
        name = {"cuda": "triton", "cpu": "cpu"}.get(device.type)
        return name if name is not None and why_not(name, device, dtype) is None else "reference"
    if backend not in NAMES:
        raise ValueError(f"backend is {backend!r}; expected one of {', '.join(map(repr, NAMES))}")
    reason = why_not(backend, device, dtype)
    if reason is None and backend in KERNELS and exporting_onnx():
        reason = "ONNX has no such operator; export with backend='auto' or 'reference'"
    if reason is not None:
        raise BackendError(f"backend {backend!r} cannot run here: {reason}")
    return backend


@_constant
def exporting_onnx() -> bool:
    """Return whether an ONNX export is in progress."""
    # is_in_onnx_export imports the ONNX package, which is slow: call it only while something is traced.
    return (torch.compiler.is_exporting() or torch.jit.is_tracing()) and torch.onnx.is_in_onnx_export()


def direct(*tensors: Tensor | None) -> bool:
    """Return whether kernels may be called without PyTorch's dispatcher: the call is not traced or transformed."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and _TENSORS.issuperset(map(type, tensors))


_TENSORS = frozenset((Tensor, torch.nn.Parameter, type(None)))


def transformed() -> bool:
    """Return whether the call is inside a transform of ``torch.func``."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


@_constant
def has_float32_tensor_cores(device: torch.device) -> bool:
    """Return whether the tensor cores of a CUDA device can multiply float32 (as TF32 or bfloat16 parts)."""
    capability = _capability(device.index)
    return torch.version.hip is None and capability is not None and capability >= (8, 0)


def needs_grad(*tensors: Tensor | None) -> bool:
    """Return whether autograd would record an operation on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
