"""A kernel that is made ready while the one before it ends: programmatic dependent launch, on Hopper GPUs.

The first calls ``gdc_launch_dependents`` where the next may come. The next is launched with ``launch_pdl``: its
programs take the multiprocessors that fall free, and stay in ``gdc_wait`` until the first has ended and its results are
in memory. A kernel that was launched without it comes after the first as ever.
"""

import ctypes
from functools import lru_cache

from repgraph.ops.backends import interpreting
from repgraph.ops.triton.plan import is_hopper

_LEAST_DRIVER = 12040  # older ones cannot capture it in a graph


@lru_cache(64)
def possible(device: int) -> bool:
    """Whether kernels on this device (-1: the CPU) may follow each other so."""
    return is_hopper(device) and not interpreting() and _driver() >= _LEAST_DRIVER


def _driver() -> int:
    """Version of NVIDIA's driver, 13000 for 13.0; 0 where it is not found. (PyTorch tells that of its toolkit.)"""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return version.value
