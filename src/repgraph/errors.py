"""What the command line shows as one line instead of a traceback."""

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """A value that cannot be used; the message names it and says what to give instead."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error, of Python or of PyTorch, is for lack of memory, on a GPU or not.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 3 bytes"))
    True
    """
    told = ("out of memory", "not enough memory", "can't allocate memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in told)
    )


def nearest(word: object, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return ``"; did you mean 'lr'?"``; if no name is near, ``otherwise``, or by default the list of all names."""
    known, text = sorted(names), str(word)
    close = difflib.get_close_matches("cuda" if text.lower() == "gpu" else text, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of {', '.join(known)}" if otherwise is None else otherwise
