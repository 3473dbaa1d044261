"""What the command line shows as one line instead of a traceback."""


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
