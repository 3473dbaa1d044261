"""Which backends there are, and why one cannot run."""

import importlib
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

KERNELS = ("triton", "cpu")
NAMES = ("auto", "reference", *KERNELS)


def _constant(function: Any) -> Any:
    """What torch.compiler.assume_constant_result does, which would import all of Dynamo here: the function is
    called, not traced, when its caller is compiled."""
    function._dynamo_marked_constant = True
    return function


def interpreting() -> bool:
    """Whether Triton kernels are interpreted on the CPU in this process."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


@cache
def _missing(module: str) -> str | None:
    """Why a package cannot be used. It is imported to find out: what is asked for it is about to need it."""
    try:
        package = importlib.import_module(module)
    except ModuleNotFoundError as error:
        return f"{module} is not installed" if error.name == module else f"{module} cannot be imported: {error}"
    except Exception as error:  # a broken installation may raise anything
        return f"{module} cannot be imported: {error}"
    if module == "numba" and package.config.DISABLE_JIT:
        return "numba does not compile (NUMBA_DISABLE_JIT is set)"
    return None


@cache
def _capability(index: int | None) -> tuple[int, int] | None:
    """Of a CUDA device (None: the current one); None where PyTorch sees none. Asking the driver is slow."""
    return torch.cuda.get_device_capability(index) if torch.cuda.is_available() else None


@_constant
def why_not(backend: str, device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
    """The reason why ``backend`` cannot run for features of ``dtype`` on ``device``; None if it can.

    >>> why_not("reference", torch.device("cpu")) is None
    True
    >>> why_not("cpu", torch.device("cuda"))
    'it takes tensors on the CPU, these are on cuda'
    """
    if backend == "cpu":
        if device.type != "cpu":
            return f"it takes tensors on the CPU, these are on {device.type}"
        if dtype not in (torch.float32, torch.float64, torch.bfloat16):
            return f"it takes float32, float64 and bfloat16, these are {_name(dtype)}"
        return _missing("numba")
    if backend == "triton":
        if (missing := _missing("triton")) is not None:
            return missing
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"it takes float32, bfloat16 and float16, these are {_name(dtype)}"
        if device.type == "cpu":
            return None if interpreting() else "it takes CUDA tensors (CPU tensors only under TRITON_INTERPRET=1)"
        if device.type != "cuda":
            return f"it takes CUDA tensors, these are on {device.type}"
        capability = _capability(device.index)
        if capability is None:
            return "this PyTorch sees no CUDA device"
        if torch.version.hip is None:
            least = (8, 0) if dtype == torch.bfloat16 else (7, 0)
            if capability < least:
                return (
                    f"{_name(dtype)} needs a GPU of compute capability {least[0]}.{least[1]}, "
                    f"this one has {capability[0]}.{capability[1]}"
                )
    return None


def choose(backend: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that will run: what was named, or for "auto" the fastest that can; an error if none can."""
    if backend == "auto":
        if exporting_onnx():
            return "reference"
        name = {"cuda": "triton", "cpu": "cpu"}.get(device.type)
        return name if name is not None and why_not(name, device, dtype) is None else "reference"
    if backend not in NAMES:
        raise ValueError(f"unknown backend {backend!r}: choose one of {', '.join(map(repr, NAMES))}")
    reason = why_not(backend, device, dtype)
    if reason is None and backend in KERNELS and exporting_onnx():
        reason = "ONNX has no such operator; export with backend='auto' or 'reference'"
    if reason is not None:
        raise RuntimeError(f"backend {backend!r} cannot run here: {reason}")
    return backend


@_constant
def exporting_onnx() -> bool:
    # The ONNX package is heavy to import, so ask it only when something is being traced at all.
    return (torch.compiler.is_exporting() or torch.jit.is_tracing()) and torch.onnx.is_in_onnx_export()


def direct(*tensors: Tensor | None) -> bool:
    """Whether kernels may be called past PyTorch's dispatcher, which takes longer than some of them.

    Not when the call is traced, watched by a mode, or wrapped by a transform.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if transformed():
        return False
    return all(t is None or type(t) in (Tensor, torch.nn.Parameter) for t in tensors)


def transformed() -> bool:
    """Whether tensors may be wrapped by a transform of ``torch.func``."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


@_constant
def splits_float32(device: torch.device) -> bool:
    """Whether the tensor cores of a CUDA device multiply float32 numbers, in parts (TF32, bfloat16)."""
    capability = _capability(device.index)
    return torch.version.hip is None and capability is not None and capability >= (8, 0)


def needs_grad(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
