"""What the command line shows as one line instead of a traceback."""


class UsageError(ValueError):
    """A value that cannot be used; the message names it and says what to give instead."""
