"""Small data sets that tests write: images and masks with known content, in the layouts of the real data sets."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from repgraph.errors import UsageError

SIZE = (6, 8)  # (H, W)


def picture(path: Path, size: tuple[int, int] = SIZE, seed: int = 0) -> np.ndarray:
    """Write a random image in the format of the extension and return its pixels (H, W, 3), as stored."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return np.array(Image.open(path))


def mask(path: Path, values: object, size: tuple[int, int] = SIZE, mode: str = "L") -> np.ndarray:
    """Write a mask that repeats ``values`` row by row, and return it."""
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
    """Write a valid split of a folder: images, and masks with all classes and 255."""
    names(root / "classes.txt", *(f"thing {k}" for k in range(classes)))
    for k in range(count):
        picture(root / "images" / split / f"{k}.png", seed=k)
        mask(root / "masks" / split / f"{k}.png", [*range(classes), 255])
    return root


def cut(path: Path, share: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def fails(message: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Assert that a call raises an error of the caller or of the data with this message."""
    with pytest.raises(UsageError, match=message):
        function(*arguments, **options)
