"""Errors that the command line prints as one line, without a traceback."""

from collections.abc import Iterable


class UsageError(ValueError):
    """A value that cannot be used; the message names it and the remedy."""


class BackendError(UsageError, RuntimeError):
    """A backend that was named and cannot run."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether Python or PyTorch raised this error because memory ran out, on a CPU or a GPU."""
    messages = ("out of memory", "not enough memory", "can't allocate memory", "Storage size calculation overflowed")
    if isinstance(error, RuntimeError):
        return any(message in str(error) for message in messages)
    return isinstance(error, MemoryError)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if there is no message."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def one_line(text: str) -> str:
    """Escape unprintable characters, such as line breaks and terminal codes in names from files."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def interrupted(error: BaseException | None) -> bool:
    """Return whether an error is a KeyboardInterrupt, or was raised while one was handled.

    Extension modules turn a Ctrl-C during their import into an ImportError, and ``torch.save`` into a RuntimeError.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


SYNONYMS = {"learning_rate": "lr", "epochs": "iterations", "batch_size": "batch"}  # usual names of settings


def nearest(word: object, names: Iterable[str], otherwise: str | None = None) -> str:
    """Return ``"; did you mean 'lr'?"``; if no name is close, ``otherwise``, or by default the list of all names."""
    import difflib

    known, text = sorted(names), str(word)
    close = difflib.get_close_matches(SYNONYMS.get(text.lower(), text), known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of {', '.join(known)}" if otherwise is None else otherwise
