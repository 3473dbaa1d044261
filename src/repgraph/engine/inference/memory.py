"""What to do when memory runs out."""

import contextlib
from collections.abc import Iterator, Sequence

from repgraph.engine.inference.settings import Settings
from repgraph.errors import UsageError, out_of_memory


class NotEnoughMemory(UsageError):
    """An image did not fit into the memory of its device; the message says what to change."""


def explained(settings: Settings, about: str = "") -> contextlib.AbstractContextManager[None]:
    """Turns an error for lack of memory, on a GPU or the CPU, into one that says what helps."""
    helps = [
        *(["--mode slide"] if settings.mode == "whole" else ["a smaller --crop"]),
        *(["a smaller --batch"] if settings.batch > 1 else []),
        *(["less --memory"] if settings.mode == "slide" else []),
        *(["--precision bf16"] if settings.precision == "fp32" else []),
    ]
    return advised(helps, about)


@contextlib.contextmanager
def advised(helps: Sequence[str], about: str = "") -> Iterator[None]:
    """Turns an error for lack of memory into one that says what to try."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise NotEnoughMemory(f"{about}out of memory; try {', '.join(helps)}") from error
