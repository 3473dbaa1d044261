"""Ablations: the paper's tables on any data set, with several seeds. The command is ``repgraph ablate``."""

from repgraph.ablation.ablate import AblationReport, ablate, listing, show_tables
from repgraph.ablation.plan import Plan, lay_out
from repgraph.ablation.results import Record, Results
from repgraph.ablation.tables import TABLES, Table, TableEntry

__all__ = [
    "TABLES",
    "AblationReport",
    "Plan",
    "Record",
    "Results",
    "Table",
    "TableEntry",
    "ablate",
    "lay_out",
    "listing",
    "show_tables",
]
