"""``numba.njit`` with the options of this package, and a disk cache that a change to any of its files invalidates.

numba stamps a cached function with the file that defines it. These kernels inline helpers from several files, so the
stamp here covers the whole package. If the cache cannot be read or written, the function is recompiled.
"""

import hashlib
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

# Sums may be reordered and fused; NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "arcp", "nsz"}, "error_model": "numpy"}
_FILES = sorted(Path(__file__).parent.glob("*.py"))
_STAMP = hashlib.sha256(b"".join(file.read_bytes() for file in _FILES)).hexdigest()


class _Cache(FunctionCache):
    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = _STAMP

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(Exception):  # unpickling a damaged file may raise anything
            return super().load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):  # read-only or full
            try:
                super().save_overload(sig, data)
            except (EOFError, ValueError, pickle.UnpicklingError):  # a damaged index
                self.flush()
                super().save_overload(sig, data)


def jit(function: Any) -> Any:
    """Compile a kernel at its first call, without the GIL, and cache it on disk."""
    dispatcher = helper(function)
    with suppress(RuntimeError):  # there is no writable cache directory
        dispatcher._cache = _Cache(function)
    return dispatcher


def helper(function: Any) -> Any:
    """Compile a helper once per kernel, as a function; for helpers called once per tile."""
    return numba.njit(**OPTIONS)(function)


def inline(function: Any) -> Any:
    """Compile a helper into every kernel that calls it; for helpers called once per node."""
    return numba.njit(**OPTIONS, forceinline=True)(function)
