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


def _rows(channels: int, itemsize: int, per_thread: int, warps: int) -> tuple[int, int, int]:
    """Parts, rows of ``channels`` (a power of two) at a time, and warps, for so many channels in each thread.

    A thread reads vectors of 16 bytes. A row that is too long for ``warps`` gets more of them.
    """
    vector = min(16 // itemsize, channels)
    parts = max(1, min(per_thread, channels) // vector)
    threads = channels // (parts * vector)
    warps = max(warps, threads // 32)
    return parts, 32 * warps // threads, warps


def _patch(units: int, groups: int) -> tuple[int, int]:
    """A near-square patch of cells that fills a step of ``units``."""
    cells = power_of_two(max(1, units // groups))
    height = 1 << (cells.bit_length() - 1) // 2
    return height, cells // height


def forward(channels: int, itemsize: int, groups: int, cell: int, shared: bool, nodes: int) -> Tile:
    """``channels``: the wider of key and value in one group, a power of two; ``cell``: queries in a cell."""
    if cell > 1:
        parts, units, warps = _rows(channels, itemsize, 8, 4)
        return Tile(units, 4, _patch(units, groups), parts, warps)
    parts, units, warps = _rows(channels, itemsize, 16, 4)
    chunk, registers = 3 if shared and nodes > 1 else 1, 128 if shared and itemsize == 2 else None
    return Tile(units, 1, _patch(units, groups), parts, warps, chunk, registers)


WIDEST_CELLS = 512  # channels of a group; with more, matrix products would not fit into shared memory


def cells(channels: int, shared: bool) -> Tile:
    """For grids, 16 queries of a cell at a time, as matrix products."""
    warps = max(4, channels // 64)
    return Tile(1, 16, (1, 1), 1, warps, registers=128 if shared and warps == 4 else None)


def backward(channels: int, itemsize: int, groups: int, cell: int, shared: bool) -> Tile:
    """``cell``: number of queries in a cell."""
    if cell == 1:
        parts, units, warps = _rows(channels, itemsize, 16, 1)
        registers = 128 if shared and itemsize == 2 else None
        return Tile(units, 1, _patch(units, groups), parts, warps, registers=registers)
    parts, units, warps = _rows(channels, itemsize, 8, 1)
    return Tile(units, 4, _patch(units, groups), parts, warps)


def gather(channels: int, itemsize: int, shared: bool) -> tuple[int, int, int]:
    """Parts, pairs at a time, and warps."""
    return _rows(channels, itemsize, 16 if shared else 8, 1)
