"""``jit``: numba.njit as this package uses it, with a cache that notices a change in any of its files.

numba stamps a cached function with the file it stands in; ours are built from helpers in several files, so
theirs is the stamp of the whole package. A cache that cannot be read or written is no error: the function
is compiled again.
"""

import hashlib
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

# Sums may be reordered and fused, but NaN and infinity keep their meaning.
FASTMATH = {"reassoc", "contract", "arcp", "nsz"}


def _stamp() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


_STAMP = _stamp()


class _Cache(FunctionCache):
    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = _STAMP

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged or foreign file may raise anything at all while it is unpickled
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            try:
                super().save_overload(sig, data)
            except (EOFError, ValueError, pickle.UnpicklingError):  # a damaged index
                self.flush()
                super().save_overload(sig, data)
        except OSError:  # read-only or full
            pass


def jit(function: Any) -> Any:
    """Compile ``function`` at its first call, without the GIL; found again by later processes."""
    dispatcher = numba.njit(nogil=True, fastmath=FASTMATH, error_model="numpy")(function)
    with suppress(RuntimeError):  # no folder for it can be written
        dispatcher._cache = _Cache(function)
    return dispatcher


def inline(function: Any) -> Any:
    """A helper that is compiled into the kernels wherever it is called: for what runs for every node."""
    return numba.njit(nogil=True, fastmath=FASTMATH, error_model="numpy", forceinline=True)(function)


def helper(function: Any) -> Any:
    """A helper of the kernels that is called for a tile or more: compiled once for each of them."""
    return numba.njit(nogil=True, fastmath=FASTMATH, error_model="numpy")(function)
