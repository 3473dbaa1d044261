"""Layers that drop into a network: RepGraph and its peers."""

from repgraph.layers.bottleneck import BottleneckRepGraph
from repgraph.layers.danet import DANetHead
from repgraph.layers.dual_attention import DualAttention
from repgraph.layers.insertion import insert, inserted, remove
from repgraph.layers.non_local import NonLocal
from repgraph.layers.simple import SimpleRepGraph
from repgraph.layers.stages import stages
from repgraph.layers.training import Reach, fuse, param_groups, reach

__all__ = [
    "BottleneckRepGraph",
    "DANetHead",
    "DualAttention",
    "NonLocal",
    "Reach",
    "SimpleRepGraph",
    "fuse",
    "insert",
    "inserted",
    "param_groups",
    "reach",
    "remove",
    "stages",
]
