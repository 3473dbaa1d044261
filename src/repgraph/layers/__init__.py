"""Layers for long-range context: RepGraph, non-local, dual and deformable attention; insertion into networks."""

from repgraph.layers.danet import DANetHead, DualAttention
from repgraph.layers.deformable import DeformableAttention
from repgraph.layers.insertion import insert, inserted, remove
from repgraph.layers.node_reach import Reach, reach
from repgraph.layers.non_local import NonLocal
from repgraph.layers.parameters import param_groups
from repgraph.layers.pointwise import fuse
from repgraph.layers.pooling import PyramidPooling
from repgraph.layers.pyramid import PyramidRepGraph
from repgraph.layers.repgraph import BottleneckRepGraph, SimpleRepGraph
from repgraph.layers.stages import stages

__all__ = [
    "BottleneckRepGraph", "DANetHead", "DeformableAttention", "DualAttention", "NonLocal", "PyramidPooling",
    "PyramidRepGraph", "Reach", "SimpleRepGraph", "fuse", "insert", "inserted", "param_groups", "reach", "remove",
    "stages",
]  # fmt: skip
