"""RepGraph: long-range context from a few representative nodes (Yu et al., ECCV 2020)."""

from repgraph.layers import (
    BottleneckRepGraph,
    DANetHead,
    DualAttention,
    NonLocal,
    SimpleRepGraph,
    fuse,
    insert,
    inserted,
    param_groups,
    reach,
    remove,
    stages,
)
from repgraph.ops import representative_attention

__version__ = "0.1.0"
__all__ = [
    "BottleneckRepGraph",
    "DANetHead",
    "DualAttention",
    "NonLocal",
    "SimpleRepGraph",
    "__version__",
    "fuse",
    "insert",
    "inserted",
    "param_groups",
    "reach",
    "remove",
    "representative_attention",
    "stages",
]
