"""Representative attention, the operator of all RepGraph layers, and multi-scale deformable attention."""

from repgraph.ops.api import representative_attention
from repgraph.ops.deformable import multi_scale_deformable_attention

__all__ = ["multi_scale_deformable_attention", "representative_attention"]
