"""Masks as run lengths, the way COCO stores them.

A mask (H, W) is read column after column; its runs are lengths of zeros and ones in turn, the first of zeros (and
perhaps 0 long). Files have them as a list of numbers, or packed into a text: from the fourth on the difference to the
run two before, in groups of five bits, lowest first, each plus 48 as a character; 32 is added where more groups follow,
and bit 16 of the last is the sign.
"""

from collections.abc import Sequence

import numpy as np

_BITS, _SIGN, _MORE, _FIRST = 5, 16, 32, 48
_GROUPS = 13  # as many as 64 bits need


def encode(mask: np.ndarray) -> np.ndarray:
    """The runs of a mask (H, W), of which what is not 0 counts; int64.

    >>> encode(np.array([[0, 1], [1, 1]], dtype=np.uint8)).tolist()
    [1, 3]
    """
    flat = (np.asarray(mask) != 0).ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    ends = np.concatenate(([0] if flat.size and flat[0] else [], changes, [flat.size])).astype(np.int64)
    return np.diff(ends, prepend=0)


def decode(runs: np.ndarray, height: int, width: int) -> np.ndarray:
    """The mask (H, W) of runs, uint8 with 0 and 1; an error if they do not fill it.

    >>> decode(np.array([1, 3]), 2, 2)
    array([[0, 1],
           [1, 1]], dtype=uint8)
    """
    check(runs, height, width)
    values = (np.arange(len(runs)) % 2).astype(np.uint8)
    return np.repeat(values, runs).reshape(width, height).T


def check(runs: np.ndarray, height: int, width: int) -> None:
    """Refuse runs that are not those of a mask of this size."""
    if runs.size and runs.min() < 0:
        raise ValueError(f"a run is {runs.min()} long")
    if runs.size and runs.max() > height * width:  # first of all: sums of such may wrap round
        raise ValueError(f"a run is {runs.max()} long in {width} x {height} pixels")
    if runs.sum() != height * width:
        raise ValueError(f"its runs cover {runs.sum()} pixels instead of {width} x {height}")


def area(runs: np.ndarray) -> int:
    """The pixels of a mask.

    >>> area(np.array([1, 3]))
    3
    """
    return int(runs[1::2].sum())


def box(runs: np.ndarray, height: int) -> tuple[int, int, int, int]:
    """x, y, width and height of the smallest box around a mask; all 0 if it is empty.

    >>> box(encode(np.array([[0, 0, 0], [0, 1, 1]])), 2)
    (1, 1, 2, 1)
    """
    ends = np.cumsum(runs)
    starts, stops = ends[:-1:2], ends[1::2]
    starts, stops = starts[stops > starts], stops[stops > starts]
    if not starts.size:
        return 0, 0, 0, 0
    left, right = int(starts[0] // height), int((stops[-1] - 1) // height)
    # A run that goes on into the next column has been at the bottom of one and is at the top of the other.
    wraps = bool((starts // height != (stops - 1) // height).any())
    top = 0 if wraps else int((starts % height).min())
    bottom = height - 1 if wraps else int(((stops - 1) % height).max())
    return left, top, right - left + 1, bottom - top + 1


def unpack(text: str | bytes) -> np.ndarray:
    """The runs in a packed text, int64.

    >>> unpack("131").tolist()
    [1, 3, 1]
    """
    given = text.encode() if isinstance(text, str) else text
    codes = np.frombuffer(given, dtype=np.uint8).astype(np.int64) - _FIRST
    if not codes.size:
        return codes
    if codes.min() < 0 or codes.max() >= 2 * _MORE:
        raise ValueError("the packed runs have characters that do not belong there")
    last = (codes & _MORE) == 0
    if not last[-1]:
        raise ValueError("the packed runs are cut short")
    stops = np.flatnonzero(last) + 1
    starts = np.concatenate(([0], stops[:-1])).astype(np.int64)
    if (stops - starts).max() >= _GROUPS:
        raise ValueError("a packed run is too long")
    place = np.arange(codes.size) - np.repeat(starts, stops - starts)  # of each group in its number
    numbers = np.add.reduceat((codes & (_MORE - 1)) << (_BITS * place), starts)
    negative = (codes[stops - 1] & _SIGN) != 0
    numbers = numbers - np.where(negative, np.int64(1) << (_BITS * (stops - starts)), 0)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    return numbers


def pack(runs: np.ndarray | Sequence[int]) -> str:
    """Runs as a packed text.

    >>> pack([1, 3, 1])
    '131'
    """
    numbers = np.array(runs, dtype=np.int64)
    numbers[3:] -= numbers[1:-2].copy()
    groups = np.zeros((len(numbers), _GROUPS), dtype=np.uint8)
    written = np.zeros((len(numbers), _GROUPS), dtype=bool)
    going = np.ones(len(numbers), dtype=bool)
    for place in range(_GROUPS):
        group = numbers & (_MORE - 1)
        numbers = numbers >> _BITS
        more = going & np.where(group & _SIGN, numbers != -1, numbers != 0)
        groups[:, place] = group + _FIRST + np.where(more, _MORE, 0)
        written[:, place] = going
        going = more
        if not going.any():
            break
    return groups[written].tobytes().decode("ascii")
