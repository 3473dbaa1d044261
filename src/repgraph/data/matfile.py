"""One matrix of numbers from a MATLAB file (version 5, compressed or not), as PASCAL-Context has its labels."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

# Codes of the format: what a piece of the file holds.
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
MATRIX, COMPRESSED = 14, 15


def read_matrix(path: Path, name: str) -> np.ndarray:
    """The integers of the variable ``name``, (rows, columns).

    Raises ValueError (or ``struct.error``, ``zlib.error`` for a damaged file) if there is none.
    """
    content = path.read_bytes()
    if content[126:128] not in (b"IM", b"MI"):
        raise ValueError("not a MATLAB file of version 5; in MATLAB, save it with the option -v7")
    order = "<" if content[126:128] == b"IM" else ">"
    for kind, body in _pieces(content[128:], order):
        kind, body = next(_pieces(zlib.decompress(body), order)) if kind == COMPRESSED else (kind, body)
        if kind != MATRIX:
            continue
        (_, _), (_, shape), (_, label), *rest = _pieces(body, order)
        if label.decode("latin-1") != name:
            continue
        rows, columns = np.frombuffer(shape, order + "i4")
        stored, numbers = rest[0]
        values = np.frombuffer(numbers, order + NUMBERS[stored])
        return values.reshape(columns, rows).T.astype(np.int32)  # columns first
    raise ValueError(f"no variable {name!r} in it")


def _pieces(content: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """The pieces that lie one behind the other in ``content``: what each holds, and its bytes."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from(order + "II", content, at)
        if kind >> 16:  # a small piece: its size, and up to 4 bytes, in the same 8 bytes
            kind, size, start, step = kind & 0xFFFF, kind >> 16, at + 4, 8
        else:
            start = at + 8
            step = 8 + (size if kind == COMPRESSED else -(-size // 8) * 8)
        if start + size > len(content):
            raise ValueError("the file is cut short")
        yield kind, content[start : start + size]
        at += step
