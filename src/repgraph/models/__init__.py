"""Networks: RGNet (semantic segmentation) with any timm backbone, Mask R-CNN (object detection), and their parts."""

try:
    from repgraph.models.backbone import Backbone
    from repgraph.models.context import Control, register_context
    from repgraph.models.heads import AuxiliaryHead, PyramidHead, SegmentationHead, upsample
    from repgraph.models.hub import load
    from repgraph.models.mask_rcnn import MaskRCNN, mask_rcnn
    from repgraph.models.parameters import param_groups
    from repgraph.models.rgnet import RGNet, rgnet
except ModuleNotFoundError as error:
    message = f"repgraph.models needs {error.name}: pip install '.[train]' in a clone of repgraph"
    raise ModuleNotFoundError(message, name=error.name) from error

__all__ = [
    "AuxiliaryHead", "Backbone", "Control", "MaskRCNN", "PyramidHead", "RGNet", "SegmentationHead", "load",
    "mask_rcnn", "param_groups", "register_context", "rgnet", "upsample",
]  # fmt: skip
