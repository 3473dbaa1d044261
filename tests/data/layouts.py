"""Small data sets that tests write: pictures and masks with known content, in the layouts of the real sets."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (6, 8)  # (H, W)


def picture(path: Path, size: tuple[int, int] = SIZE, seed: int = 0) -> np.ndarray:
    """Writes a random picture in the format of the extension and returns its pixels (H, W, 3), as stored."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return np.array(Image.open(path))


def mask(path: Path, values: object, size: tuple[int, int] = SIZE, mode: str = "L") -> np.ndarray:
    """Writes a mask that repeats ``values`` row after row, and returns it."""
    content = np.resize(np.array(values), size).astype(np.uint16 if mode == "I;16" else np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = Image.fromarray(content)
    if mode == "P":
        drawn = Image.frombytes("P", drawn.size, drawn.tobytes())
        drawn.putpalette([(7 * k) % 256 for k in range(768)])
    drawn.save(path)
    return content


def names(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def folder(root: Path, count: int = 3, classes: int = 3, split: str = "train") -> Path:
    """A sound set in a folder of its own: images and masks with all classes and 255."""
    names(root / "classes.txt", *(f"thing {k}" for k in range(classes)))
    for k in range(count):
        picture(root / "images" / split / f"{k}.png", seed=k)
        mask(root / "masks" / split / f"{k}.png", [*range(classes), 255])
    return root


def matlab(path: Path, values: np.ndarray, name: str = "LabelMap", compressed: bool = True, order: str = "<") -> None:
    """Writes a matrix as MATLAB does (version 5)."""

    def piece(kind: int, body: bytes) -> bytes:
        return struct.pack(order + "II", kind, len(body)) + body + b"\0" * (-len(body) % 8)

    kind, number = {"uint8": (2, "u1"), "uint16": (4, "u2"), "float64": (9, "f8")}[str(values.dtype)]
    parts = [
        piece(6, struct.pack(order + "II", 11, 0)),
        piece(5, struct.pack(order + "ii", *values.shape)),
        piece(1, name.encode()),
        piece(kind, values.T.astype(order + number).tobytes()),
    ]
    matrix = piece(14, b"".join(parts))
    packed = zlib.compress(matrix)
    content = struct.pack(order + "II", 15, len(packed)) + packed if compressed else matrix
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a MATLAB file".ljust(124) + struct.pack(order + "HH", 0x0100, 0x4D49) + content)


def cut(path: Path, share: float = 0.5) -> None:
    """Leaves the first part of a file, as an interrupted copy does."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
