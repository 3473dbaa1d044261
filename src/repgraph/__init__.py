"""RepGraph: long-range context from a few representative nodes (Yu et al., ECCV 2020)."""

from repgraph.ops import representative_attention

__version__ = "0.1.0"
__all__ = ["__version__", "representative_attention"]
