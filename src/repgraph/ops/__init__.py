"""The operator that every layer stands on."""

from repgraph.ops.api import representative_attention

__all__ = ["representative_attention"]
