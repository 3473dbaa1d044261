"""Speed and memory of representative attention against what could be used instead.

>>> from repgraph.bench.operator import Options, run
>>> rows = run(Options(sizes=((6, 7),), channels=8, only=["composition"], repeat=2, shared_kv=(True,)))
>>> [(row.candidate, row.pass_, row.status) for row in rows]
[('composition', 'forward', 'ok'), ('composition', 'backward', 'ok')]
"""

from repgraph.bench.operator.benchmark import Options, run

__all__ = ["Options", "run"]
