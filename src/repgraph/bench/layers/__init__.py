"""Work, speed and memory of RepGraph layers, non-local blocks and DANet: the paper's complexity table and more.

>>> from repgraph.bench.layers import Options, run
>>> rows = run(Options(sizes=((6, 7),), channels=16, mid_channels=8, only=["bottleneck"], repeat=2))
>>> [(row.candidate, row.pass_, row.status) for row in rows]
[('bottleneck', 'forward', 'ok'), ('bottleneck', 'forward+backward', 'ok')]
>>> rows[0].count.products, rows[0].counted
(34944, True)
"""

from repgraph.bench.layers.benchmark import Options, run

__all__ = ["Options", "run"]
