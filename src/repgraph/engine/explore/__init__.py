"""The explorer page of a network: what its layers look at, in images of one's own or of a data set.

The functions come in when they are asked for: the command's ``--help`` needs the base install alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repgraph.engine.explore.page import Subject, explore

__all__ = ["Subject", "explore"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repgraph.engine.explore import page

    return getattr(page, name)
