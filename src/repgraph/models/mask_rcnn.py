"""Mask R-CNN of torchvision, with RepGraph layers or their peers in its backbone."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import detection, resnet
from torchvision.ops import FrozenBatchNorm2d

from repgraph.errors import UsageError
from repgraph.layers import options
from repgraph.models import context as contexts
from repgraph.models import detector_weights, settings
from repgraph.models import weights as stored
from repgraph.models.coordinates import keep_coordinates
from repgraph.models.hub import NETWORK, Hub, card
from repgraph.models.settings import MEAN, STD

BACKBONES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
CONTEXTS = (*contexts.INSERTABLE, "none")
NORMS = {"frozen": FrozenBatchNorm2d, "batch": nn.BatchNorm2d}
_ABOUT = """\
A Mask R-CNN for objects and their masks, of the library repgraph: torchvision's network, with layers in its backbone in
which every position attends to a few representative nodes (Yu et al., Representative Graph Neural Network, ECCV
2020), if its config says so."""


class MaskRCNN(
    Hub,
    pipeline_tag="object-detection",
    tags=["instance-segmentation", "object-detection"],
    model_card_template=card(_ABOUT, "MaskRCNN"),
):
    """torchvision's Mask R-CNN with a ResNet and a feature pyramid. See :func:`mask_rcnn`, which also loads weights.

    All arguments can be written to a config file, and are: ``config`` has them.

    Args:
        classes: of objects, without the background: labels are 1 to ``classes``.
        backbone: "resnet50" or "resnet101"; also "resnet18", "resnet34" and "resnet152".
        context: the layers in the backbone: "repgraph", "paper" (the same, in the paper's plain form), "simple",
            "non_local", "dual"; None or "none" for nothing.
        where: their number for each stage, as for :func:`repgraph.insert`; by default, as in the paper, one in res4,
            ``{"layer3": 1}``, which stands before the last block. They start as the identity.
        context_options: of the layers, such as ``{"nodes": 27, "radius": 8}``.
        norm: of the backbone: "frozen" batch norm, whose numbers stay as they are loaded, or "batch". Inserted layers
            have batch norm of their own.
        norm_eps: its epsilon; some of torchvision's detectors were trained with 0.
        trainable_stages: how many stages of the backbone learn, from the last one back; 5 is all. Inserted layers
            always learn.
        caffe_style: the stride of a stage is on its first 1 x 1 convolution, as in Caffe's ResNets.
        min_size, max_size: to which images are resized, in pixels: the shorter side, unless the longer one would exceed
            ``max_size``. Of several ``min_size`` one is drawn for each image in training, and the last is taken else.
        score_threshold, nms_threshold, detections: of the results: the least score, the overlap above which the
            weaker of two boxes of a class goes, and the most for an image.
        labels: what the classes are, as :class:`repgraph.data.labels.Labels` gives it; it goes with the network.
        mean, std: of the colours from 0 to 1, with which the network normalises images.

    Attributes:
        detector: torchvision's network, with the names of its parameters.

    Example:
        >>> import repgraph
        >>> model = MaskRCNN(3, "resnet18", context="repgraph", min_size=64).eval()
        >>> found = model([torch.rand(3, 48, 64)])[0]
        >>> sorted(found), found["masks"].shape[1:]
        (['boxes', 'labels', 'masks', 'scores'], torch.Size([1, 48, 64]))
        >>> list(repgraph.inserted(model))
        ['detector.backbone.body.layer3.1.repgraph']
    """

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
        given = {name: value for name, value in locals().items() if name in _ARGUMENTS}
        super().__init__()
        self.config: dict[str, Any] = {name: contexts.plain(name, given[name]) for name in _ARGUMENTS}
        self.config[NETWORK] = "MaskRCNN"
        self.classes = options.whole("classes", classes)
        settings.check_labels(self.config["labels"], self.classes)
        self.mean, self.std = settings.colour("mean", mean), settings.colour("std", std)
        self.caffe_style = settings.flag("caffe_style", caffe_style)
        contexts.choice("backbone", backbone, BACKBONES)
        body = _backbone(backbone, norm, norm_eps, trainable_stages)
        if self.caffe_style:
            _to_caffe_style(body.body, backbone)
        self._insert(body.body, context, where, context_options)
        sizes = [min_size] if isinstance(min_size, int) else min_size
        self.detector = detection.MaskRCNN(
            body,
            classes + 1,
            min_size=tuple(options.whole("min_size", size) for size in sizes),
            max_size=options.whole("max_size", max_size),
            image_mean=list(self.mean),
            image_std=list(self.std),
            box_score_thresh=settings.number("score_threshold", score_threshold, 0, 1),
            box_nms_thresh=settings.number("nms_threshold", nms_threshold, 0, 1),
            box_detections_per_img=options.whole("detections", detections),
        )
        keep_coordinates(self.detector)
        self.built = frozenset(self.state_dict())

    def _insert(
        self, body: nn.Module, context: str | None, where: dict[str, int] | None, given: dict[str, Any] | None
    ) -> None:
        name = contexts.choice("context", "none" if context is None else context, CONTEXTS)
        if name != "none":
            settings.insert_layers(
                body, {"layer3": 1} if where is None else where, name, given or {}, "context_options"
            )
            self.config["context_options"] = contexts.explicit(name, self.config["context_options"])
        elif where or given:
            raise UsageError("where or context_options are given, but context does not say which layer it is")

    def forward(
        self, images: Sequence[Tensor], targets: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Tensor] | list[dict[str, Tensor]]:
        """Losses in training, else what was found.

        Args:
            images: each (3, H, W) in RGB, of any size; uint8, or floating point from 0 to 1. The network normalises and
                resizes them itself.
            targets: needed in training; for each image "boxes" (N, 4), "labels" (N,) from 1 to ``classes`` and "masks"
                (N, H, W), on the images' device, as :class:`~repgraph.data.coco.InstanceData` has them.

        Returns:
            In training the losses by name. Else, for each image, "boxes" (N, 4), "labels" (N,), "scores" (N,) and
            "masks" (N, 1, H, W), of probabilities from 0 to 1, all in pixels of the image.
        """
        prepared = [_prepared(image) for image in images]
        plain = None if targets is None else [{key: _plain(value) for key, value in t.items()} for t in targets]
        return self.detector(prepared, plain)

    @property
    def pretrained(self) -> nn.Module:
        return self.detector.backbone.body


_ARGUMENTS = tuple(name for name in inspect.signature(MaskRCNN.__init__).parameters if name != "self")


def mask_rcnn(
    classes: int,
    backbone: str = "resnet50",
    *,
    weights: str | os.PathLike[str] | None = None,
    new_predictors: bool = False,
    caffe_style: bool | None = None,
    norm_eps: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **more: Any,
) -> MaskRCNN:
    """Mask R-CNN, with pre-trained weights in its backbone or in all of it.

    With whole-detector weights and layers inserted, it finds bit for bit what it finds without them, before training.

    Args:
        classes: of objects, without the background.
        backbone: "resnet50" or "resnet101".
        weights: None for random ones; the path of a file with a ResNet's weights, or with a whole detector's, by
            torchvision's names (or of a network of ours); "torchvision:NAME" for torchvision's, such as
            "torchvision:ResNet50_Weights.IMAGENET1K_V1" or "torchvision:MaskRCNN_ResNet50_FPN_Weights.COCO_V1";
            "timm:NAME" for timm's. Only the last two may download something.
        new_predictors: whether the last layers, one output for each class, stay random where whole-detector weights are
            loaded: for other classes than theirs.
        caffe_style: where a ResNet's strides are; None for the style that the file says, and torchvision's if it says
            nothing.
        norm_eps: of the backbone's batch norm; None for what the weights were trained with, if that is known, or 1e-5.
        mean, std: with which images are normalised; None for what the weights were trained with, or ImageNet's.
        more: arguments of :class:`MaskRCNN`.

    Example:
        >>> import repgraph
        >>> model = mask_rcnn(20, "resnet18", context="non_local", where={"layer3": 1, "layer4": 1}, min_size=320)
        >>> [type(layer).__name__ for layer in repgraph.inserted(model).values()]
        ['NonLocal', 'NonLocal']
    """
    contexts.choice("backbone", backbone, BACKBONES)
    found = None if weights is None else detector_weights.get(weights, backbone)
    known: dict[str, Any] = {} if found is None else dict(mean=found.mean, std=found.std, norm_eps=found.norm_eps)
    asked = dict(mean=mean, std=std, norm_eps=norm_eps)
    chosen = {name: known.get(name) if value is None else value for name, value in asked.items()}
    if caffe_style is None:
        caffe_style = bool(found is not None and found.caffe_style)
    filled: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    model = MaskRCNN(classes, backbone, caffe_style=caffe_style, **filled, **more)
    if found is not None:
        stored.check_style(found, model.caffe_style)
        detector_weights.load(model.detector, found, settings.flag("new_predictors", new_predictors))
    elif new_predictors:
        raise UsageError("new_predictors is for weights of a whole detector, and no weights are given")
    return model


def _backbone(name: str, norm: str, norm_eps: float, trainable_stages: int) -> Any:
    layer = NORMS[contexts.choice("norm", norm, NORMS)]
    eps = settings.number("norm_eps", norm_eps, 0, 1)
    if options.whole("trainable_stages", trainable_stages, 0) > 5:
        raise UsageError(f"trainable_stages is {trainable_stages}; a ResNet has 5")
    return detection.backbone_utils.resnet_fpn_backbone(
        backbone_name=name,
        weights=None,
        norm_layer=lambda channels: layer(channels, eps=eps),
        trainable_layers=trainable_stages,
    )


def _to_caffe_style(body: nn.Module, name: str) -> None:
    """Move the strides of a ResNet's stages to their first 1 x 1 convolutions, in place."""
    for stage in ("layer2", "layer3", "layer4"):
        first = body.get_submodule(stage)[0]  # type: ignore[index]
        if not isinstance(first, resnet.Bottleneck):
            raise UsageError(f"caffe_style is for ResNets of bottlenecks, such as 'resnet50'; not for {name!r}")
        first.conv1.stride, first.conv2.stride = first.conv2.stride, (1, 1)


def _prepared(image: Tensor) -> Tensor:
    """An image as torchvision's network takes it."""
    if not isinstance(image, Tensor) or image.dim() != 3 or image.shape[0] != 3:
        what = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise TypeError(f"an image is {what}; a list of tensors (3, H, W) is needed")
    image = _plain(image)
    if image.dtype == torch.uint8:
        return image.float() / 255
    if not image.is_floating_point():
        raise TypeError(f"an image is {image.dtype}; uint8, or floating point from 0 to 1, is needed")
    return image


def _plain(value: Any) -> Any:
    """A tensor without torchvision's kinds, which cost time in every operation."""
    return value.as_subclass(Tensor) if isinstance(value, Tensor) else value
