"""What a reader or the check found to be wrong with a data set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: its kind, the file or name it is about, and more where there is more to say."""

    kind: str
    about: str
    detail: str = ""
