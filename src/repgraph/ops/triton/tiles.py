"""How much of the work one program of a kernel takes. Chosen by measurement on an H200 (docs/backends.md)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """``units`` (cell and group) and ``queries`` of each at a time; ``parts``: channels are held as parts x C."""

    units: int
    queries: int
    patch: tuple[int, int]
    parts: int
    warps: int
    chunk: int = 1
    registers: int | None = None


def power_of_two(n: int) -> int:
    """The least power of two that is not below ``n``."""
    return 1 << (n - 1).bit_length()


def parts_of(channels: int, itemsize: int, per_thread: int) -> int:
    """Vectors of 16 bytes that a thread holds so as to have ``per_thread`` of the (padded) channels."""
    vector = 16 // itemsize
    return max(1, min(per_thread, channels) // vector)


def _rows(channels: int, itemsize: int, per_thread: int, warps: int) -> tuple[int, int]:
    """Parts, and rows of ``channels`` that ``warps`` hold at a time."""
    if channels >= 1024:  # a row must not need more threads than there are
        per_thread = max(per_thread, 32)
    parts = parts_of(channels, itemsize, per_thread)
    held = parts * (16 // itemsize)
    return parts, max(1, 32 * warps * held // channels)


def _patch(units: int, groups: int) -> tuple[int, int]:
    """A near-square patch of cells that fills a step of ``units``."""
    cells = power_of_two(max(1, units // groups))
    height = 1 << (cells.bit_length() - 1) // 2
    return height, cells // height


def forward(channels: int, itemsize: int, groups: int, shared: bool, nodes: int) -> Tile:
    """For grid 1. ``channels``: the wider of key and value in one group, a power of two."""
    parts, units = _rows(channels, itemsize, 16, 4)
    return Tile(units, 1, _patch(units, groups), parts, 4, chunk=3 if shared and nodes > 1 else 1)


def cells(channels: int, itemsize: int, shared: bool) -> Tile:
    """For grids, 16 queries of a cell at a time."""
    return Tile(1, 16, (1, 1), 1, 8 if channels > 256 else 4, registers=96 if shared and channels <= 256 else None)


def backward(channels: int, itemsize: int, groups: int, cell: int, shared: bool) -> Tile:
    """``cell``: number of queries in a cell."""
    if cell == 1:
        parts, units = _rows(channels, itemsize, 16, 1)
        return Tile(units, 1, _patch(units, groups), parts, 1, registers=128 if shared and itemsize == 2 else None)
    parts, units = _rows(channels, itemsize, 8, 1)
    return Tile(units, 4, _patch(units, groups), parts, 1)


def gather(channels: int, itemsize: int, shared: bool) -> tuple[int, int]:
    """Parts, and pairs at a time, of one warp."""
    return _rows(channels, itemsize, 16 if shared else 8, 1)
