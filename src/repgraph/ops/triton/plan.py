"""A kernel launch prepared once for a kind of call, so that the host does little for each later one."""

import re
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor


class Plan:
    """A Triton function with its grid, numbers and constants; called with tensors first, as the function is."""

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
        if isinstance(kernel, triton.compiler.CompiledKernel):  # not so in the interpreter
            self.run = kernel[(*self.programs, 1, 1)[:3]]


def version(text: str) -> tuple[int, ...]:
    """(major, minor) of a version of Triton.

    >>> version("3.10.0+git1a2b"), version("3.7.0rc1") < (3, 10)
    ((3, 10), True)
    """
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def is_hopper(device: int) -> bool:
    """Whether a device (-1: the CPU) is an NVIDIA GPU of that generation; AMD's numbers say 9 as well."""
    return device >= 0 and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9


def aligned(*tensors: Tensor) -> bool:
    """Whether all start at multiples of 16 bytes: kernels are compiled for that, or for less."""
    bits = 0
    for t in tensors:
        bits |= t.data_ptr()
    return bits % 16 == 0


def on(t: Tensor) -> Any:
    """Makes the device of ``t`` the current one."""
    if t.is_cuda and t.get_device() != torch.cuda.current_device():
        return torch.cuda.device(t.device)
    return nullcontext()


def strides(maps: tuple[tuple[int, ...], ...]) -> tuple[int, list[int]]:
    """The largest power of two (at most 16) that divides all batch, row and column strides, and those divided."""
    numbers = [stride for batch, _, row, column in maps for stride in (batch, row, column)]
    bits = 16
    for number in numbers:
        bits |= number
    align = bits & -bits
    return align, [number // align for number in numbers]
