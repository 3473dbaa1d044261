"""Launches of kernels, compiled once for a kind of call, and the rows of features that a program holds."""

import re
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor


class Plan:
    """A Triton function with its grid, scalars and constants, called with the function's leading arguments.

    The first call compiles it; later calls skip Triton's argument processing, which is slow. So the key under which a
    plan is cached has to include all that Triton compiles a kernel for, such as the alignment of tensors.
    """

    def __init__(self, function: Any, programs: tuple[int, ...], numbers: tuple, constants: dict, **options: Any):
        self.function = function
        self.programs = programs
        self.numbers = numbers
        self.constants = constants
        self.options = {"enable_fp_fusion": True, **{k: v for k, v in options.items() if v is not None}}
        self.last = tuple(constants[name] for name in function.arg_names if name in constants)
        self.run: Any = None

    def __call__(self, *arguments: Any) -> None:
        if self.run is not None:
            self.run(*arguments, *self.numbers, *self.last)
            return
        kernel = self.function[self.programs](*arguments, *self.numbers, **self.constants, **self.options)
        if isinstance(kernel, triton.compiler.CompiledKernel):  # the interpreter returns None
            self.run = kernel[(*self.programs, 1, 1)[:3]]


def launch(function: Any, programs: int, arguments: tuple, constants: dict[str, Any], **options: Any) -> None:
    """Run a kernel with tensors, tensor descriptors and numbers, with a plan for each kind of call."""
    tensors = [t if isinstance(t, Tensor) else t.base for t in arguments if not isinstance(t, int | float)]
    integers = tuple(number for number in arguments if isinstance(number, int))
    kinds = tuple(t.dtype for t in tensors), tensors[0].get_device(), aligned(*tensors)
    with device_guard(tensors[0]):
        _plan(function, programs, integers, kinds, tuple(constants.items()), tuple(options.items()))(*arguments)


@lru_cache(1024)
def _plan(function, programs, integers, kinds, constants, options) -> Plan:
    return Plan(function, (programs,), (), dict(constants), **dict(options))


def version(text: str) -> tuple[int, ...]:
    """Return (major, minor) of a version string of Triton."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def aligned(*tensors: Tensor) -> tuple[bool, ...]:
    """Return which tensors start at a multiple of 16 bytes, which compiled kernels may rely on."""
    return tuple(t.data_ptr() % 16 == 0 for t in tensors)


def device_guard(t: Tensor) -> Any:
    """Return a context in which the device of ``t`` is the current one."""
    if t.is_cuda and t.get_device() != torch.cuda.current_device():
        return torch.cuda.device(t.device)
    return nullcontext()


def power_of_two(*numbers: int) -> int:
    """Return the largest power of two, at most 16, that divides all numbers."""
    bits = 16
    for number in numbers:
        bits |= number
    return bits & -bits


def rows_at_once(channels: int, itemsize: int, per_thread: int, warps: int) -> tuple[int, int, int]:
    """Return parts, rows of ``channels`` (a power of two) at once, and warps, for ``per_thread`` channels a thread."""
    vector = min(16 // itemsize, channels)  # a thread reads 16 bytes at a time
    parts = max(1, min(per_thread, channels) // vector)
    threads = channels // (parts * vector)
    warps = max(warps, threads // 32)
    return parts, 32 * warps // threads, warps
