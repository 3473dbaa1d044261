"""RGNet: a dilated backbone, the segmentation head with a RepGraph layer, and an auxiliary head for training."""

import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import options
from repgraph.models import context as contexts
from repgraph.models import settings
from repgraph.models import weights as stored
from repgraph.models.backbone import Backbone
from repgraph.models.bilinear import upsample
from repgraph.models.head import AuxiliaryHead, SegmentationHead
from repgraph.models.hub import Hub, card
from repgraph.models.settings import MEAN, STD

_ABOUT = """\
An RGNet for semantic segmentation, of the library repgraph: a backbone, and a layer in which every position attends to
a few representative nodes (Yu et al., Representative Graph Neural Network, ECCV 2020)."""


class RGNet(
    Hub,
    pipeline_tag="image-segmentation",
    tags=["semantic-segmentation"],
    model_card_template=card(_ABOUT, "RGNet"),
):
    """The paper's network for semantic segmentation. See :func:`rgnet`, which also loads weights.

    All arguments can be written to a config file, and are: ``config`` has them.

    Args:
        classes: of the predictions.
        backbone: the name of a model of timm; see :class:`~repgraph.models.Backbone`.
        output_stride: of the backbone: 8, 16 or 32.
        context: the layer in the head: "repgraph", "paper" (the same, in the paper's plain form), "simple",
            "non_local", "dual", "control" or "none" (the paper's backbone baseline).
        context_options: of that layer, such as ``{"nodes": 27, "radius": 8}``.
        channels: after the 3 x 3 convolution of either head.
        fusion: of the context layer, "concat" or "sum"; None for "concat", and "sum" for dual attention.
        inserted: layers in the backbone: the number for each stage, as for :func:`repgraph.insert`, such as
            ``{"layer3": 1}``. Sum fusion, and the identity at the start.
        inserted_options: of those layers; "layer" in it is which one ("repgraph", "paper", "simple", "non_local",
            "dual").
        auxiliary: whether there is an auxiliary head.
        dropout: before the classifiers.
        caffe_style: of the backbone.
        labels: what the classes are, as :class:`repgraph.data.labels.Labels` gives it; it goes with the network.
        mean, std: of the colours from 0 to 1, with which images are normalised.

    Attributes:
        backbone: with all that was pre-trained (and the inserted layers, which :func:`repgraph.inserted` finds).
        head, auxiliary: the heads; the latter may be None.

    Example:
        >>> model = RGNet(21, "resnet18", channels=64)
        >>> logits, auxiliary = model(torch.randn(2, 3, 33, 47))
        >>> logits.shape, auxiliary.shape
        (torch.Size([2, 21, 33, 47]), torch.Size([2, 21, 33, 47]))
        >>> model.eval()(torch.randn(1, 3, 7, 13)).shape
        torch.Size([1, 21, 7, 13])
    """

    def __init__(
        self,
        classes: int,
        backbone: str = "resnet50",
        *,
        output_stride: int = 8,
        context: str = "repgraph",
        context_options: dict[str, Any] | None = None,
        channels: int = 512,
        fusion: str | None = None,
        inserted: dict[str, int] | None = None,
        inserted_options: dict[str, Any] | None = None,
        auxiliary: bool = True,
        dropout: float = 0.1,
        caffe_style: bool = False,
        labels: dict[str, Any] | None = None,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _ARGUMENTS}
        super().__init__()
        self.config: dict[str, Any] = {name: contexts.plain(name, given[name]) for name in _ARGUMENTS}
        self.classes = options.whole("classes", classes)
        settings.check_labels(self.config["labels"], self.classes)
        self.mean, self.std = settings.colour("mean", mean), settings.colour("std", std)
        style = settings.flag("caffe_style", caffe_style)
        self.backbone = Backbone(backbone, output_stride=output_stride, caffe_style=style)
        if inserted:
            layer, given_options = _chosen(self.config["inserted_options"])
            settings.insert_layers(self.backbone.body, inserted, layer, given_options, "inserted_options")
            self.config["inserted_options"] = {"layer": layer, **contexts.explicit(layer, given_options)}
        elif inserted_options:
            raise UsageError("inserted_options are given, but inserted does not say where the layers go")
        stage4, stage5 = self.backbone.channels
        self.head = SegmentationHead(
            stage5,
            classes,
            channels=channels,
            context=context,
            context_options=context_options,
            fusion=fusion,
            dropout=dropout,
        )
        own = contexts.in_a_head(context, self.config["context_options"])
        self.config["context_options"] = contexts.explicit(context, own, self.head.context)
        self.auxiliary = (
            AuxiliaryHead(stage4, classes, channels=channels, dropout=dropout)
            if settings.flag("auxiliary", auxiliary)
            else None
        )
        self.built = frozenset(self.state_dict())  # what a config file makes; what was fused since is more or less

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (B, classes, H, W) of normalised images (B, 3, H, W), at least float32.

        In training, with an auxiliary head: those of the head and those of the auxiliary head.
        """
        size = self.check(x).shape[2:]
        stage4, stage5 = self.backbone(x)
        logits = upsample(self.head(stage5), size)
        if self.auxiliary is None or not self.training:
            return logits
        return logits, upsample(self.auxiliary(stage4), size)

    def nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where the RepGraph layer in the head looks, and how much it takes from there.

        Args:
            x: normalised images (B, 3, H, W). Call it in evaluation mode.

        Returns:
            nodes (B, S, 2, h, w): x and y in pixels of the image, for each position of the h x w map, which may lie
            outside; and weights (B, groups, S, h', w') of its positions, which sum to 1 over S. (With a grid, h and w
            are those of the cells.) Position (i, j) of the map itself is pixel ((j + 0.5) W / w - 0.5, (i + 0.5) H / h
            - 0.5).

        Example:
            >>> model = RGNet(21, "resnet18", channels=64).eval()
            >>> nodes, weights = model.nodes(torch.randn(1, 3, 64, 96))
            >>> nodes.shape, weights.shape
            (torch.Size([1, 9, 2, 8, 12]), torch.Size([1, 1, 9, 8, 12]))
        """
        stage5 = self.backbone(self.check(x))[1]
        _, nodes, weights = self.head(stage5, return_nodes=True)
        scale = torch.tensor([x.shape[3] / stage5.shape[3], x.shape[2] / stage5.shape[2]], device=nodes.device)
        scale = scale.to(nodes.dtype).view(1, 1, 2, 1, 1)
        return (nodes + 0.5) * scale - 0.5, weights

    @property
    def pretrained(self) -> nn.Module:
        return self.backbone

    def check(self, x: Tensor) -> Tensor:
        if not options.check(x, 3).is_floating_point():
            raise TypeError(f"the images are {x.dtype}; normalised ones are needed, as floating point numbers")
        return x


_ARGUMENTS = tuple(name for name in inspect.signature(RGNet.__init__).parameters if name != "self")


def rgnet(
    classes: int,
    backbone: str = "resnet50",
    *,
    weights: str | os.PathLike[str] | None = None,
    caffe_style: bool | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **more: Any,
) -> RGNet:
    """RGNet, with pre-trained weights in its backbone.

    Args:
        classes: of the predictions.
        backbone: the name of a model of timm, such as "resnet50" or "resnet101".
        weights: of the backbone: None for random ones; the path of a file (``.safetensors``, or ``.pth`` and the like
            with nothing but tensors) with timm's or torchvision's names, or of a trained RGNet; "pretrained" for
            timm's own, or "timm:NAME" for those of that name, such as "timm:resnet50.tv_in1k". Only the last two may
            download something.
        caffe_style: where a ResNet's strides are, see :class:`~repgraph.models.Backbone`; None for the style that the
            file says, and timm's if it says nothing.
        mean, std: with which images are normalised; None for what the weights were trained with, if timm knows it, and
            else ImageNet's.
        more: arguments of :class:`RGNet`.

    Example:
        >>> rgnet(19, "resnet18", context="none", channels=64).head.context
        NoContext()
    """
    found = None if weights is None else stored.get(weights, backbone)
    if caffe_style is None:
        caffe_style = bool(found is not None and found.caffe_style)
    if mean is None:
        mean = (found and found.mean) or MEAN
    if std is None:
        std = (found and found.std) or STD
    model = RGNet(classes, backbone, caffe_style=caffe_style, mean=mean, std=std, **more)
    if found is not None:
        stored.load(model.backbone, found)
    return model


def _chosen(given: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]]:
    """The name of the layer to insert, and its options."""
    given = {} if given is None else dict(given)
    return contexts.choice("layer in inserted_options", given.pop("layer", "repgraph"), contexts.INSERTABLE), given
