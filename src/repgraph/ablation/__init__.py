"""Ablations: the paper's tables on any data set, with several seeds. The command is ``repgraph ablate``."""

from repgraph.ablation.ablate import Plan, ablate, lay_out, listing, show_tables, start_recipe
from repgraph.ablation.results import Results
from repgraph.ablation.tables import TABLES

__all__ = ["TABLES", "Plan", "Results", "ablate", "lay_out", "listing", "show_tables", "start_recipe"]
