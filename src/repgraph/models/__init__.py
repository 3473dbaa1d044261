"""Networks: RGNet for semantic segmentation, with any backbone of timm, and Mask R-CNN for objects; and their parts."""

try:
    from repgraph.models.backbone import Backbone
    from repgraph.models.bilinear import upsample
    from repgraph.models.context import Control
    from repgraph.models.head import AuxiliaryHead, SegmentationHead
    from repgraph.models.loading import load
    from repgraph.models.mask_rcnn import MaskRCNN, mask_rcnn
    from repgraph.models.rgnet import RGNet, rgnet
    from repgraph.models.training import param_groups
except ModuleNotFoundError as error:
    if error.name not in ("huggingface_hub", "safetensors", "timm", "torchvision"):
        raise
    raise ModuleNotFoundError(
        f"repgraph.models needs {error.name}: pip install 'repgraph[train]'", name=error.name
    ) from error

__all__ = [
    "AuxiliaryHead",
    "Backbone",
    "Control",
    "MaskRCNN",
    "RGNet",
    "SegmentationHead",
    "load",
    "mask_rcnn",
    "param_groups",
    "rgnet",
    "upsample",
]
