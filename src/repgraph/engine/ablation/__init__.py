"""Ablations: the paper's tables on any data set, with several seeds, resumable. The command is ``repgraph ablate``.

From a script, one table under a time limit:

    from repgraph.engine.ablation import Plan, ablate

    report = ablate(Plan("nodes", data="VOC2012", weights="resnet50.safetensors", jobs=4, time_limit=1500), sys.stderr)
    print(report.tables[0], len(report.left), report.code)
"""

from repgraph.engine.ablation.ablate import Report, ablate, listing, show_tables
from repgraph.engine.ablation.plan import Plan, lay_out
from repgraph.engine.ablation.results import Record, Results
from repgraph.engine.ablation.tables import TABLES, Entry, Table

__all__ = [
    "TABLES",
    "Entry",
    "Plan",
    "Record",
    "Report",
    "Results",
    "Table",
    "ablate",
    "lay_out",
    "listing",
    "show_tables",
]
