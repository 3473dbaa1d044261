"""Layers that drop into a network: RepGraph and its peers."""

from repgraph.layers.bottleneck import BottleneckRepGraph
from repgraph.layers.simple import SimpleRepGraph

__all__ = ["BottleneckRepGraph", "SimpleRepGraph"]
