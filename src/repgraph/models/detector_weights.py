"""Weights for detectors: of a ResNet or of a whole detector, from files and from torchvision."""

import difflib
import os
from pathlib import Path
from typing import Any

import torchvision
from torch import nn

from repgraph.errors import UsageError
from repgraph.layers import inserted
from repgraph.models import weights as stored
from repgraph.models.weights import Weights

_OURS, _HEADS = "detector.", "roi_heads."
PREDICTORS = ("roi_heads.box_predictor.", "roi_heads.mask_predictor.mask_fcn_logits.")  # an output for each class
_CLASSIFIER = "fc."
_ZERO_EPS = ("MaskRCNN_ResNet50_FPN_Weights.COCO_V1",)  # torchvision runs these with an epsilon of 0


def get(weights: str | os.PathLike[str], backbone: str) -> Weights:
    """Weights by torchvision's names: of a ResNet, or, if there are heads among them, of a whole detector."""
    text = os.fspath(weights)
    if text.startswith("torchvision:"):
        return _of_torchvision(text.removeprefix("torchvision:"), backbone)
    if text.startswith("timm:") or text == "pretrained":
        return stored.get(text, backbone)
    path = Path(os.path.expanduser(text))
    found = stored.of_file(path)
    tensors = {name.removeprefix(_OURS): value for name, value in found.tensors.items()}
    if not any(name.startswith(_HEADS) for name in tensors):
        return stored.get(path, backbone)
    return Weights(found.source, tensors, found.caffe_style, found.mean, found.std, found.norm_eps)


def load(detector: Any, weights: Weights, new_predictors: bool = False) -> None:
    """Load weights into torchvision's detector: all of them, or an error that names what does not fit.

    Layers inserted into the backbone stay as they are, if the weights have none for them.
    """
    whole = any(name.startswith(_HEADS) for name in weights.tensors)
    if new_predictors and not whole:
        raise UsageError(f"new_predictors is for weights of a whole detector; {weights.source} has those of a backbone")
    module: nn.Module = detector if whole else detector.backbone.body
    dropped = PREDICTORS if new_predictors else () if whole else (_CLASSIFIER,)
    own = module.state_dict()
    tensors = {
        name: value
        for name, value in weights.tensors.items()
        # Frozen norms have no count of batches.
        if not name.startswith(dropped) and (name in own or not name.endswith("num_batches_tracked"))
    }
    try:
        layers = tuple(f"{path}." for path in inserted(module))
        stored.fill(module, tensors, weights.source, optional=(*layers, *(dropped if whole else ())))
    except UsageError as error:
        only_predictors = whole and not new_predictors and "roi_heads.box_predictor.cls_score" in str(error)
        hint = "; for other classes than it was trained on, give new_predictors=True" if only_predictors else ""
        raise UsageError(f"{error}{hint}") from error


def _of_torchvision(name: str, backbone: str) -> Weights:
    source = f"torchvision's {name!r}"
    try:
        entry: Any = torchvision.models.get_weight(name)
    except (ValueError, AttributeError, KeyError) as error:
        close = difflib.get_close_matches(name, _names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_names())}"
        raise UsageError(f"torchvision {torchvision.__version__} has no weights {name!r}; {hint}") from error
    kinds = (f"{backbone}_weights", f"maskrcnn_{backbone}_fpn_weights")
    if type(entry).__name__.lower() not in kinds:
        raise UsageError(f"{source} are weights of another network than Mask R-CNN with {backbone!r}")
    try:
        tensors = entry.get_state_dict(progress=False, check_hash=True)
    except Exception as error:  # whatever the network, its proxy or the other side comes up with
        reason = stored.first_line(error)
        raise UsageError(f"the weights {source} could not be had: {reason}; give a local file instead") from error
    return Weights(source, dict(tensors), False, norm_eps=0.0 if name in _ZERO_EPS else None)


def _names() -> list[str]:
    """The weights of torchvision that a Mask R-CNN can have."""
    enums = [torchvision.models.get_model_weights(f"resnet{depth}") for depth in (18, 34, 50, 101, 152)]
    enums.append(torchvision.models.get_model_weights("maskrcnn_resnet50_fpn"))
    return [str(entry) for enum in enums for entry in enum]
