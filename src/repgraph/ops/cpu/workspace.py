"""Memory that is kept between calls.

Copies of whole maps are large enough for the C library to return them to the system at once, and a fresh page
costs more than everything the kernels do with it (65 x 65 x 256 floats: 2.5 ms of page faults for a copy that
takes 0.5). So up to ``LIMIT`` bytes wait here for the next call.
"""

import numpy as np

LIMIT = 1 << 26

_kept: list[np.ndarray] = []  # append, pop and remove of a list are atomic, so threads need no lock


class Workspace:
    """``with Workspace() as space``: what it lends comes back at the end, unless an error ends the block."""

    def __init__(self) -> None:
        self._lent: list[np.ndarray] = []

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            for buffer in self._lent:
                if sum(b.nbytes for b in tuple(_kept)) + buffer.nbytes <= LIMIT:
                    _kept.append(buffer)

    def lend(self, count: int, dtype: type | np.dtype) -> np.ndarray:
        """An uninitialised flat array."""
        size = count * np.dtype(dtype).itemsize
        buffer = _take(size)
        if buffer is None:
            buffer = np.empty(size, np.uint8)
        self._lent.append(buffer)
        return buffer[:size].view(dtype)


def _take(size: int) -> np.ndarray | None:
    for _ in range(len(_kept)):
        try:
            buffer = _kept.pop(0)
        except IndexError:
            return None
        if size <= buffer.nbytes <= 4 * size:
            return buffer
        if buffer.nbytes > size:  # too large to be tied up here; the small ones have become useless
            _kept.append(buffer)
    return None
