"""Find and read the files of data sets."""

import contextlib
import io
import os
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image as pillow
from torchvision.tv_tensors import Image

from repgraph.data.labels import COLOUR, DataError
from repgraph.files import check_regular, walk

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2"})
# Only these are decoded, for any file name: Pillow runs other programs for some formats, such as EPS.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "JPEG2000")
TRANSPOSE = dict(zip(range(2, 9), map(pillow.Transpose, (0, 3, 1, 5, 4, 6, 2)), strict=True))  # by EXIF orientation
MODES_16_BIT = ("I;16", "I;16B", "I;16L", "I;16N", "I")

T = TypeVar("T")
R = TypeVar("R")
_compose = partial(unicodedata.normalize, "NFC")  # file systems store accents differently


class NotFound(DataError):
    """A folder, file or split that does not exist."""


NO_VALIDATION = "to validate on every fifth image of train instead: repgraph train ... --set data.hold_out=5"


def read_image(path: Path, *, upright: bool = False) -> Image:
    """Read an image as uint8 RGB (3, H, W); the upper 8 of 16 bits are kept, and transparency is dropped."""
    with _read_errors(path, "image"), pillow.open(path, formats=FORMATS) as opened:
        orientation = opened.getexif().get(0x0112) if upright else None  # EXIF; masks match the pixels as stored
        picture = opened.transpose(TRANSPOSE[orientation]) if orientation in TRANSPOSE else opened
        if picture.mode == "F":
            raise DataError(f"{path}: floating-point images have no known range; store it with 8 or 16 bits")
        if picture.mode in MODES_16_BIT:
            picture = pillow.fromarray((np.asarray(picture).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
        elif picture.mode == "P" and "transparency" in picture.info:
            picture = picture.convert("RGBA")  # otherwise Pillow warns
        pixels = np.array(picture.convert("RGB"))
    return Image(torch.from_numpy(pixels).permute(2, 0, 1))


def read_mask(path: Path, rgb: bool = False) -> np.ndarray:
    """Read the integers (H, W) of a label file: a one-channel (or ``rgb``) image, a text or a .mat file."""
    with _read_errors(path, "mask"):
        if path.suffix.lower() == ".txt":
            return np.loadtxt(path, dtype=np.int32, comments=None, ndmin=2)
        if path.suffix.lower() == ".mat":
            return _read_matlab(path)
        with pillow.open(path, formats=FORMATS) as picture:
            if picture.format == "JPEG":
                raise DataError(f"{path}: JPEG does not preserve class numbers; use PNG for masks")
            if rgb and picture.mode in ("RGB", "RGBA"):
                return COLOUR + np.asarray(picture.convert("RGB")) @ np.array([65536, 256, 1])
            if picture.mode not in ("L", "P", "1", *MODES_16_BIT):
                raise DataError(
                    f"{path}: the mask is a {picture.mode} image; expected one channel with a class number per pixel, "
                    'or RGB and a classes.json in which every class has its own "colour"'
                )
            values = np.array(picture)
    return values.astype(np.uint8) if values.dtype == bool else values


def _read_matlab(path: Path) -> np.ndarray:
    """Read the matrix ``LabelMap`` of a MATLAB file."""
    from scipy.io import loadmat

    content = path.read_bytes()
    # SciPy crashes on an unknown type of numbers. In an uncompressed file the type follows the name of the matrix.
    _, found, after = content.partition(b"LabelMap")
    code = int.from_bytes(after[:4], "little" if content[126:128] == b"IM" else "big") & 0xFFFF
    if found and code not in (1, 2, 3, 4, 5, 6, 7, 9, 12, 13):
        raise ValueError(f"LabelMap has numbers of the unknown type {code}")
    values = loadmat(io.BytesIO(content), variable_names=["LabelMap"]).get("LabelMap")
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "iuf":
        raise ValueError("it has no matrix LabelMap")
    return values.astype(np.int32)


@contextlib.contextmanager
def _read_errors(path: Path, kind: str) -> Iterator[None]:
    """Turn every error into a DataError that names the file; pipes and devices, which may block, are errors too."""
    try:
        check_regular(path)
        yield
    except (DataError, ImportError):
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such {kind}") from error
    except pillow.DecompressionBombError as error:
        raise DataError(f"{path}: {error}; PIL.Image.MAX_IMAGE_PIXELS sets the limit") from error
    except Exception as error:  # Pillow raises almost any type for a damaged file
        reason = str(error).replace(f" {str(path)!r}", "") or type(error).__name__
        raise DataError(f"{path}: cannot read this {kind} ({reason}); it is damaged or in an unknown format") from error


def find_files(folder: Path, ending: str, problems: list[str], error: type[DataError] = NotFound) -> dict[str, Path]:
    """Return the files in a folder and its subfolders, sorted by name: the path without ``ending``, as ``_left.png``.

    Images may have any image extension in place of the one in ``ending``.
    """
    if not os.path.isdir(folder):
        raise error(f"{folder}: no such folder")
    before, dot, extension = ending.lower().rpartition(".")
    extensions = IMAGE_SUFFIXES if dot + extension in IMAGE_SUFFIXES else {dot + extension}
    found: dict[str, Path] = {}
    for path in walk(folder, lambda link: problems.append(f"{link}: it links to a folder that is searched already")):
        if path.suffix.lower() not in extensions or not path.stem.lower().endswith(before):
            continue
        name = _compose(path.relative_to(folder).as_posix()[: -len(before + path.suffix)])
        if name in found:
            raise DataError(f"{path} and {found[name].name} have the same name; remove one of them")
        found[name] = path
    return dict(sorted(found.items()))


def find_root(root: str | Path, marker: str, subfolders: Sequence[str] = ()) -> Path:
    """Return the folder that contains ``marker``: ``root``, or one of the subfolders that archives unpack to."""
    root = Path(os.path.expanduser(root))
    for folder in (root, *(root / name for name in subfolders)):
        if os.path.isdir(folder / marker):
            return folder
    raise NotFound(f"{root / marker if os.path.isdir(root) else root}: no such folder")


def read_lines(path: Path) -> list[str]:
    """Read the non-empty lines of a text file, at least one, with names in composed Unicode form."""
    try:
        check_regular(path)
        lines = _compose(path.read_text(encoding="utf-8-sig")).splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text; save it as UTF-8") from error
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror or error}; expected a file with one name per line") from error
    if found := [line.strip() for line in lines if line.strip()]:
        return found
    raise DataError(f"{path}: the list is empty; expected one name per line")


def read_split(folder: Path, split: str) -> list[str]:
    """Read the names in ``folder/split.txt``; if there is no trainval.txt, trainval is train followed by val."""
    both = split == "trainval" and not (folder / "trainval.txt").is_file()
    return [name for part in (("train", "val") if both else (split,)) for name in read_lines(folder / f"{part}.txt")]


def prefetch(read: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Yield ``read(item)`` for each item, in order, and read at most ``workers`` + 1 items ahead."""
    pending: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        for item in items:
            pending.append(pool.submit(read, item))
            if len(pending) > workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
