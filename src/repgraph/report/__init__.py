"""Run reports and the demo, as self-contained HTML pages."""

from repgraph.report.page import Options, report

__all__ = ["Options", "report"]
