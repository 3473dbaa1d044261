"""Representative attention, the operator of all RepGraph layers."""

from repgraph.ops.api import representative_attention

__all__ = ["representative_attention"]
