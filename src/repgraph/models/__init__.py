"""Networks for semantic segmentation: backbones of timm, heads with context layers, and RGNet, which is of both."""

from repgraph.models.backbone import Backbone
from repgraph.models.context import Control
from repgraph.models.head import AuxiliaryHead, SegmentationHead, upsample
from repgraph.models.loading import load
from repgraph.models.rgnet import RGNet, rgnet
from repgraph.models.training import param_groups

__all__ = [
    "AuxiliaryHead",
    "Backbone",
    "Control",
    "RGNet",
    "SegmentationHead",
    "load",
    "param_groups",
    "rgnet",
    "upsample",
]
