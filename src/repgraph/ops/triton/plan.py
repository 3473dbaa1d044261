"""Kernel launches without Triton's overhead per call, and the tile sizes of a program."""

import re
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch
import triton
from torch import Tensor


class Plan:
    """A Triton function with its grid, scalars and constants, called with the function's leading arguments.

    The first call compiles it; later calls skip Triton's argument processing, which is slow. So the cache key of a
    plan has to include everything that Triton specializes a kernel for, such as the alignment of tensors.
    """

    def __init__(self, function: Any, programs: tuple[int, ...], numbers: tuple, constants: dict, **options: Any):
        self.function = function
        self.programs = programs
        self.numbers = numbers
        self.constants = constants
        self.options = {"enable_fp_fusion": True, **{k: v for k, v in options.items() if v is not None}}
        self.last = (*numbers, *(constants[name] for name in function.arg_names if name in constants))
        self.kernel: Any = None
        self.launcher: Any = None
        self.first: tuple = ()

    def __call__(self, *tensors: Tensor, numbers: tuple = ()) -> None:
        self.run((*tensors, *numbers), [*map(Tensor.data_ptr, tensors), *numbers])

    def run(self, arguments: tuple, pointers: list[Any]) -> None:
        """Launch the kernel; ``pointers`` are the arguments with the addresses of tensors, which are faster to pass."""
        if self.launcher is None:
            kernel = self.function[self.programs](*arguments, *self.numbers, **self.constants, **self.options)
            if isinstance(kernel, triton.compiler.CompiledKernel):  # the interpreter returns None
                self.kernel, self.programs = kernel, (*self.programs, 1, 1)[:3]
                self.first, self.launcher = _launcher(kernel)  # in this order, for other threads
        elif getattr(triton.knobs.runtime.launch_enter_hook, "calls", ()):  # such as a profiler
            self.kernel[self.programs](*arguments, *self.last)
        else:  # what kernel[programs] does, without preparing metadata for hooks
            self.launcher(*self.programs, _current_stream(_current_device()), *self.first, *pointers, *self.last)


def _launcher(kernel: Any) -> tuple[tuple, Any]:
    """Return the function that launches a kernel, after its arguments between the stream and those of the kernel."""
    launcher, metadata = kernel.run, (kernel.packed_metadata, None, None, None)
    direct = version(triton.__version__) == (3, 6) and torch.version.hip is None
    if direct and launcher.global_scratch_size == launcher.profile_scratch_size == 0:  # no memory to allocate
        flags = launcher.launch_cooperative_grid, launcher.launch_pdl, None, None
        return (kernel.function, *flags, *metadata), launcher.launch
    return (kernel.function, *metadata), launcher


def launch(
    function: Any, programs: int, tensors: tuple[Tensor, ...], numbers: tuple, constants: dict[str, Any],
    descriptors: tuple = (), **options: Any,
) -> None:  # fmt: skip
    """Run a kernel with tensor descriptors, tensors and numbers, with a plan for each kind of call."""
    pointers = [*map(Tensor.data_ptr, tensors)]
    kinds = (tensors[0].get_device(), *map(_dtype, tensors), *[d.base.dtype for d in descriptors])
    key = (id(function), programs, _offsets(pointers), *kinds, *numbers, *constants.values(), *options.values())
    if (plan := _plans.get(key)) is None:
        if len(_plans) > 4096:
            _plans.clear()
        plan = _plans[key] = Plan(function, (programs,), (), constants, **options)
    with device_guard(tensors[0]):
        plan.run((*descriptors, *tensors, *numbers), [*descriptors, *pointers, *numbers])


_dtype = attrgetter("dtype")
_plans: dict[tuple, Plan] = {}
_NO_GUARD = nullcontext()
_current_device = getattr(torch._C, "_cuda_getDevice", None) or torch.cuda.current_device
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # absent without CUDA


def descriptor(matrix: Tensor, block: tuple[int, int], kind: Any, layout: Any = None) -> Any:
    """Return a tensor descriptor of a matrix with contiguous rows, read in blocks.

    The checks in its constructor take longer than a launch, so they run once per shape.
    """
    key = (kind, matrix.shape, matrix.dtype, block)
    if (fields := _descriptors.get(key)) is None:
        made = kind.from_tensor(matrix, list(block), *(() if layout is None else (layout(*block, matrix.dtype),)))
        if len(_descriptors) > 4096:
            _descriptors.clear()
        fields = _descriptors[key] = {name: each for name, each in vars(made).items() if name != "base"}
    copy = object.__new__(kind)
    vars(copy).update(fields, base=matrix)
    return copy


_descriptors: dict[tuple, dict[str, Any]] = {}


def cdiv(a: int, b: int) -> int:
    """Return a / b, rounded up (``triton.cdiv`` takes ten times as long)."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least ``n``."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


def version(text: str) -> tuple[int, ...]:
    """Return (major, minor) of a version string of Triton."""
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def aligned(*tensors: Tensor) -> Any:
    """Return True if all tensors start at a multiple of 16 bytes, which compiled kernels may rely on, else offsets."""
    return _offsets([*map(Tensor.data_ptr, tensors)])


def _offsets(pointers: list[int]) -> Any:
    bits = 0
    for pointer in pointers:
        bits |= pointer
    return bits % 16 == 0 or tuple(pointer % 16 for pointer in pointers)


def device_guard(t: Tensor) -> Any:
    """Return a context in which the device of ``t`` is the current one."""
    if t.is_cuda and t.get_device() != _current_device():
        return torch.cuda.device(t.device)
    return _NO_GUARD


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
