"""Figures for papers: how a non-local layer spreads its attention, and where RepGraph layers look.

The functions come in when they are asked for: the commands' ``--help`` needs the base install alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repgraph.engine.figures.affinity import Affinity, affinity_statistics
    from repgraph.engine.figures.one import Position, one_position

__all__ = ["Affinity", "Position", "affinity_statistics", "one_position"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repgraph.engine.figures import affinity, one

    return getattr(affinity if hasattr(affinity, name) else one, name)
