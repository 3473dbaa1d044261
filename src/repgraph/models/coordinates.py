"""Mask R-CNN in half precision: products in bf16 or fp16, coordinates in float32.

torchvision makes anchors in the dtype of the feature maps, and moves boxes in that of what the heads say. In bf16,
whose numbers have 8 bits, that is to the nearest 2 pixels at 320, and to the nearest 8 at 1333.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def keep_coordinates(detector: Any) -> None:
    """See to it that torchvision's Mask R-CNN under autocast has its coordinates and scores in float32.

    Feature maps, and what the heads say, are made float32; convolutions and products inside of them stay as they are.
    Without autocast nothing changes.
    """
    heads = detector.roi_heads
    for part in (detector.backbone, detector.rpn.head, heads.box_predictor, heads.mask_predictor):
        part.register_forward_hook(_widen)


def _widen(module: nn.Module, inputs: Any, output: Any) -> Any:
    return _wide(output)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, Mapping):
        return type(value)((name, _wide(each)) for name, each in value.items())  # type: ignore[call-arg]
    return type(value)(_wide(each) for each in value)
