"""The page about one or several runs: what is in it, and how it is drawn. Numbers come from :mod:`repgraph.engine`."""

from repgraph.pictures.report.contents import Contents, Panel, Run, Scores, Session, Sheet, Shown, Test
from repgraph.pictures.report.page import write

__all__ = ["Contents", "Panel", "Run", "Scores", "Session", "Sheet", "Shown", "Test", "write"]
