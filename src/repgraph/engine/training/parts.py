"""Some of the images of a split."""

from collections.abc import Sequence
from typing import Any


class Part:
    """The images of ``data`` with these numbers, in this order; else as ``data``: its labels, name and the like.

    >>> held = Part(["a", "b", "c", "d"], [1, 3])
    >>> len(held), held[1]
    (2, 'd')
    """

    def __init__(self, data: Any, indices: Sequence[int], about: str = "") -> None:
        self.data, self.indices = data, indices
        self.about = about or f"{len(indices)}"

    @property
    def items(self) -> list[Any]:
        """What is known of the images without reading them."""
        items = self.data.items
        return [items[index] for index in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self.indices):
            raise IndexError(index)
        return self.data[self.indices[index]]

    def __getattr__(self, name: str) -> Any:
        if name == "data":  # not there yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.data, name)

    def __repr__(self) -> str:
        return f"{self.about} of {self.data!r}"


def held_out(length: int, every: int) -> tuple[list[int], list[int]]:
    """The numbers of the images to learn from, and of those to test on: every so many of them, the last of each run.

    >>> held_out(7, 3)
    ([0, 1, 3, 4, 6], [2, 5])
    """
    kept = [index for index in range(length) if index % every != every - 1]
    return kept, list(range(every - 1, length, every))
