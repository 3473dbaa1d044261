"""``repgraph report``: one page about one or several runs.

The functions come in when they are asked for: the command's ``--help`` needs the base install alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repgraph.engine.report.build import Options, report

__all__ = ["Options", "report"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repgraph.engine.report import build

    return getattr(build, name)
