"""``numba.njit`` with the options of this package, and a disk cache of its own.

numba's cache only sees changes to the file that defines a function, while these kernels inline helpers from several
files. It also trusts what it reads: a single wrong bit can crash the process. Here every compiled function is one file
that starts with a digest, and one that is damaged or of another version is compiled again and replaced.
"""

import hashlib
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

from repgraph.files import write

# Sums may be reordered and fused; NaN and infinity keep their meaning.
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "arcp", "nsz"}, "error_model": "numpy"}
_SOURCES = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))

# ``helper`` compiles a function once per kernel: for helpers called once per tile. ``inline`` compiles it into its
# callers: for helpers called once per node. ``exact`` also rounds every operation, and leaves out numba's
# reference counts of arrays, which are atomic.
helper = numba.njit(**OPTIONS)
inline = numba.njit(**OPTIONS, forceinline=True)
exact = numba.njit(**{**OPTIONS, "fastmath": False}, forceinline=True, _nrt=False)


class _Cache(FunctionCache):
    """The files of one function: one for each signature, with a digest and the compiled function."""

    compiling: FileLock | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._load(sig, target_context)
        if found is None:  # another process may be compiling it
            with suppress(Exception):
                path, _ = self._describe(sig, target_context.codegen())
                path.parent.mkdir(parents=True, exist_ok=True)
                self.compiling = FileLock(path.with_suffix(".lock"), timeout=120)
                self.compiling.acquire()
                found = self._load(sig, target_context)
        if found is not None:
            self._unlock()
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        with suppress(Exception):  # whatever is wrong with the cache, the function can be compiled
            target_context.refresh()
            path, stamp = self._describe(sig, target_context.codegen())
            content = path.read_bytes()
            digest, payload = content[:32], content[32:]
            if digest == hashlib.sha256(stamp + payload).digest():
                return self._impl.rebuild(target_context, pickle.loads(payload))

    def _unlock(self) -> None:
        if self.compiling is not None:
            self.compiling.release()
            self.compiling = None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(Exception):  # such as a full disk
            path, stamp = self._describe(sig, data.codegen)
            payload = dumps(self._impl.reduce(data))
            write(path, hashlib.sha256(stamp + payload).digest() + payload)
        self._unlock()

    def _describe(self, sig: Any, codegen: Any) -> tuple[Path, bytes]:
        """Return the file for a signature on this processor, and what its digest covers besides the function."""
        key = repr(self._index_key(sig, codegen)).encode()
        name = f"{self._impl.filename_base}.{hashlib.sha256(key).hexdigest()[:16]}.nbc"
        return Path(self.cache_path, name), key + numba.__version__.encode() + _SOURCES


def jit(function: Any) -> Any:
    """Compile a kernel at its first call, without the GIL, and cache it on disk."""
    dispatcher = helper(function)
    with suppress(Exception):  # such as no writable cache directory
        dispatcher._cache = _Cache(function)
    return dispatcher
