"""torchvision's Mask R-CNN with RepGraph or other context layers in its backbone."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torchvision.models import detection
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.poolers import LevelMapper

from repgraph.constants import MEAN, STD
from repgraph.errors import UsageError
from repgraph.layers.checks import check_choice, check_int, check_number
from repgraph.models import weights as weight_files
from repgraph.models.backbone import to_caffe_style
from repgraph.models.context import INSERTABLE, insert_context
from repgraph.models.hub import NETWORK, Hub

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
NORMS = {"frozen": FrozenBatchNorm2d, "batch": nn.BatchNorm2d}


class MaskRCNN(Hub, pipeline_tag="object-detection", tags=["instance-segmentation", "object-detection"]):
    """torchvision's Mask R-CNN with a ResNet and a feature pyramid. :func:`mask_rcnn` builds it with weights.

    All arguments are stored in ``config``; ``detector`` is torchvision's network, whose parameters keep their names.

    Args:
        classes: number of classes, not counting the background; labels are 1 to ``classes``.
        backbone: "resnet50" or "resnet101"; also "resnet18", "resnet34" and "resnet152".
        context: layers in the backbone: "repgraph", "paper" (its plain form), "simple", "non_local", "dual" or "none".
        where: number of layers for each stage; see :func:`repgraph.insert`. Default: ``{"layer3": 1}``, before the last
            block of res4, as in the paper. They start as the identity.
        context_options: options of the layers, such as ``{"nodes": 27, "radius": 8}``.
        norm: normalization of the backbone: "frozen" batch norm or "batch". Inserted layers have batch norm.
        norm_eps: its epsilon; some of torchvision's detectors were trained with 0.
        trainable_stages: number of trainable stages, from the last; 5 is all. Inserted layers are always trainable.
        caffe_style: put the stride of a stage on its first 1 x 1 convolution, as Caffe's ResNets do.
        min_size, max_size: images are resized such that the shorter side is ``min_size`` pixels, unless the longer one
            would exceed ``max_size``. Of several ``min_size``, training draws one per image; evaluation uses the last.
        score_threshold, nms_threshold, detections: minimum score of a result, overlap above which the lower-scoring of
            two boxes of a class is removed, and maximum number of results per image.
        labels: description of the classes by :meth:`repgraph.data.labels.Labels.to_dict`; saved with the network.
        mean, std: normalization of the images, RGB from 0 to 1; the network applies it.
    """

    PRETRAINED = "detector.backbone.body"

    def __init__(
        self,
        classes: int,
        backbone: str = "resnet50",
        *,
        context: str | None = None,
        where: dict[str, int] | None = None,
        context_options: dict[str, Any] | None = None,
        norm: str = "frozen",
        norm_eps: float = 1e-5,
        trainable_stages: int = 3,
        caffe_style: bool = False,
        min_size: int | Sequence[int] = 800,
        max_size: int = 1333,
        score_threshold: float = 0.05,
        nms_threshold: float = 0.5,
        detections: int = 100,
        labels: dict[str, Any] | None = None,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        super().__init__({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        self.config[NETWORK] = "MaskRCNN"
        norm_layer = NORMS[check_choice("norm", norm, NORMS)]
        body: Any = detection.backbone_utils.resnet_fpn_backbone(
            backbone_name=check_choice("backbone", backbone, BACKBONES),
            weights=None,
            norm_layer=partial(norm_layer, eps=check_number("norm_eps", norm_eps, 0, 1)),
            trainable_layers=check_int("trainable_stages", trainable_stages, 0, 5),
        )
        self.caffe_style = caffe_style
        if caffe_style:
            to_caffe_style(body.body, backbone)
        name = check_choice("context", "none" if context is None else context, (*INSERTABLE, "none"))
        if name != "none":
            where = {"layer3": 1} if where is None else where
            options = self.config["context_options"] or {}
            self.config["context_options"] = insert_context(body.body, where, name, options, "context_options")
        elif where or context_options:
            raise UsageError("where and context_options need context, the name of the layer")
        sizes = [min_size] if isinstance(min_size, int) else min_size
        self.detector = detection.MaskRCNN(
            body,
            classes + 1,
            min_size=tuple(check_int("min_size", size) for size in sizes),
            max_size=check_int("max_size", max_size),
            image_mean=list(self.mean),
            image_std=list(self.std),
            box_score_thresh=check_number("score_threshold", score_threshold, 0, 1),
            box_nms_thresh=check_number("nms_threshold", nms_threshold, 0, 1),
            box_detections_per_img=check_int("detections", detections),
        )
        keep_coordinates_in_float32(self.detector)
        for pooler in (self.detector.roi_heads.box_roi_pool, self.detector.roi_heads.mask_roi_pool):
            # torchvision would infer these from its first batch, which is wrong for small images.
            pooler.scales = [1 / 4, 1 / 8, 1 / 16, 1 / 32]
            pooler.map_levels = LevelMapper(2, 5, pooler.canonical_scale, pooler.canonical_level)
        self.built = frozenset(self.state_dict())

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Return the losses by name in training, and in evaluation the objects of each image, in its pixels.

        Objects are "boxes" (N, 4), "labels" (N,), "scores" (N,) and "masks" (N, 1, H, W), probabilities from 0 to 1.

        Args:
            images: (3, H, W) each, RGB, of any size; uint8, or floating point from 0 to 1. The network normalizes and
                resizes them.
            targets: required in training; for each image "boxes" (N, 4), "labels" (N,) from 1 to ``classes`` and
                "masks" (N, H, W), on the device of the images, as from :class:`~repgraph.data.coco.InstanceData`.
        """
        plain = None if targets is None else [tree_map_only(Tensor, _as_plain, dict(target)) for target in targets]
        return self.detector([_prepare_image(image) for image in images], plain)


def mask_rcnn(
    classes: int,
    backbone: str = "resnet50",
    *,
    weights: str | os.PathLike[str] | None = None,
    new_predictors: bool = False,
    **options: Any,
) -> MaskRCNN:
    """Build a Mask R-CNN with pretrained weights in its backbone or in the whole network.

    With weights of a whole detector, inserted layers leave its detections bit-identical until they are trained.

    Args:
        classes, backbone, options: as in :class:`MaskRCNN`; caffe_style, norm_eps, mean, std default to the weights'.
        weights: None for random weights; a file with the weights of a ResNet or of a whole detector, under
            torchvision's names or from a trained network; "torchvision:NAME", such as
            "torchvision:ResNet50_Weights.IMAGENET1K_V1" or "torchvision:MaskRCNN_ResNet50_FPN_Weights.COCO_V1"; or
            "timm:NAME". Only the last two may download.
        new_predictors: with weights of a whole detector, keep its last layers random, for other classes.
    """
    found = None if weights is None else weight_files.find_weights(weights, backbone, detector=True)
    settings = weight_files.complete(options, found, "caffe_style", "norm_eps", "mean", "std")
    model = MaskRCNN(classes, backbone, **settings)
    if found is not None:
        weight_files.load_detector(model.detector, found, new_predictors)
    return model


def keep_coordinates_in_float32(detector: Any) -> None:
    """Convert feature maps and outputs of the heads to float32 under autocast.

    torchvision's anchors and boxes have their dtype; in bfloat16 they would be rounded to 8 pixels at 1333.
    """
    heads = detector.roi_heads
    for part in (detector.backbone, detector.rpn.head, heads.box_predictor, heads.mask_predictor):
        part.register_forward_hook(_output_to_float32)


def _output_to_float32(module: nn.Module, inputs: Any, output: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.float() if t.dtype in (torch.bfloat16, torch.float16) else t, output)


def _prepare_image(image: Tensor) -> Tensor:
    """Convert an image to the floating-point input of torchvision's network."""
    image = _as_plain(image)
    return image.float() / 255 if image.dtype == torch.uint8 else image


def _as_plain(value: Tensor) -> Tensor:
    """Strip torchvision's subclasses, which slow down every operation."""
    return value.as_subclass(Tensor)
