"""What the kernels in Gluon share. Gluon is Triton's language for placing things oneself; ours are for Hopper GPUs."""

from functools import lru_cache

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from repgraph.ops.triton.plan import is_hopper, version

# Gluon is experimental and differs from version to version. These were compiled with 3.6 to 3.9, and have run with:
VERSIONS = ((3, 6),)
REGISTERS = (232, 24)  # of a thread that multiplies, and of one that fetches

# Named otherwise from Triton 3.7 on.
read_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
write_tile = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def barriers(NUMBER: gl.constexpr, COUNT: gl.constexpr):
    """So many barriers in shared memory, each of which waits for COUNT arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [NUMBER, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(NUMBER):
        mbarrier.init(made.index(i), count=COUNT)
    return made


def can_run(device: int) -> bool:
    """Whether kernels in Gluon run on this device (not in the interpreter: -1)."""
    return version(triton.__version__) in VERSIONS and is_hopper(device)


def processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def described(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A matrix with contiguous rows, to be fetched in tiles of so many rows and columns."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns], _layout(rows, columns, matrix.dtype))


@lru_cache(64)
def _layout(rows: int, columns: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """Of a tile in shared memory; to make one takes three times as long as the descriptor."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], getattr(gl, str(dtype).removeprefix("torch.")))
