"""Segmentation heads, and upsampling of their logits to the size of the image."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph
from repgraph.layers.checks import check_int, check_map
from repgraph.layers.pointwise import Pointwise
from repgraph.layers.repgraph import RepGraph
from repgraph.models.context import Control, make_context
from repgraph.ops.separable import separable


class SegmentationHead(nn.Module):
    """The head of RGNet, from the features of any encoder to class logits.

    ``project`` (3 x 3), ``norm`` and ReLU; ``context``; dropout and ``classifier`` (1 x 1).

    Args:
        in_channels: channels of the features; 2048 from a ResNet-50 or -101.
        classes: number of classes.
        channels: channels after ``project``.
        context, context_options, fusion: the context layer, as in :class:`~repgraph.models.RGNet`.
        dropout: probability of dropping a channel before the classifier.

    Shape:
        - Input: (B, in_channels, H, W)
        - Output: (B, classes, H, W); with ``return_nodes=True`` also nodes and weights of the RepGraph layer.

    Example:
        >>> head = SegmentationHead(64, 19, channels=32).eval()
        >>> head(torch.randn(1, 64, 17, 23)).shape
        torch.Size([1, 19, 17, 23])
    """

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        channels: int = 512,
        context: str = "repgraph",
        context_options: Mapping[str, Any] | None = None,
        fusion: str | None = None,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        sizes = check_int("in_channels", in_channels), check_int("channels", channels)
        self.project = initialize(nn.Conv2d(*sizes, 3, padding=1, bias=False))
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)
        self.context = make_context(context, channels, fusion=fusion, options=context_options)
        if isinstance(self.context, (BottleneckRepGraph, Control)):
            # Layers with separate query and key keep PyTorch's initialization, which determines the size of the logits.
            initialize(self.context.reduce)
            initialize(self.context.expand)
        self.dropout = nn.Dropout2d(dropout)
        out_channels: Any = self.context.out_channels
        self.classifier = initialize(Pointwise(out_channels, check_int("classes", classes)))

    def forward(self, x: Tensor, return_nodes: bool = False) -> Any:
        x = self.act(self.norm(self.project(check_map(x, self.project.in_channels))))
        if not return_nodes:
            return self.classifier(self.dropout(self.context(x)))
        if not isinstance(self.context, RepGraph):
            raise UsageError(f"the context layer is a {type(self.context).__name__}, which has no representative nodes")
        x, nodes, weights = self.context(x, return_nodes=True)
        return self.classifier(self.dropout(x)), nodes, weights


class AuxiliaryHead(SegmentationHead):
    """Class logits from an earlier stage, for an additional loss in training: a head without a context layer."""

    def __init__(self, in_channels: int, classes: int, *, channels: int = 512, dropout: float = 0.1) -> None:
        super().__init__(in_channels, classes, channels=channels, context="none", dropout=dropout)


def initialize(convolution: nn.Conv2d) -> nn.Conv2d:
    """Initialize a new convolution of a head, in place."""
    nn.init.kaiming_normal_(convolution.weight, mode="fan_in", nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution


def upsample(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Resize logits (B, K, h, w) to ``size`` (H, W), bilinearly with ``align_corners=False``.

    Half precision is converted to float32 first: a softmax uses float32 anyway, and rounded logits would tie.
    """
    return resize(logits.to(torch.promote_types(logits.dtype, torch.float32)), size)


def resize(x: Tensor, size: Sequence[int]) -> Tensor:
    """Resize a map (B, C, h, w) to ``size`` (H, W), bilinearly with ``align_corners=False``."""
    height, width = size
    if x.is_cuda and x.requires_grad and not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
        return Upsample.apply(x, height, width)  # type: ignore[no-any-return, no-untyped-call]
    return F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)


class Upsample(torch.autograd.Function):
    """Bilinear upsampling whose gradient is two matrix products, and deterministic.

    PyTorch accumulates the gradient with atomic additions, four per pixel, which are not deterministic and take a tenth
    of RGNet's training step on an H200. Bilinear weights are products of linear weights along rows and columns.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, height: int, width: int) -> Tensor:
        ctx.small, ctx.large = logits.shape[2:], (height, width)
        return F.interpolate(logits, size=(height, width), mode="bilinear", align_corners=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        rows, columns = (_linear_weights(*sides, grad) for sides in zip(ctx.small, ctx.large, strict=True))
        return separable(grad, rows, columns), None, None


def _linear_weights(small: int, large: int, like: Tensor) -> Tensor:
    """Return [small, large]: the weight of each position in each pixel."""
    identity = torch.eye(small, dtype=like.dtype, device=like.device)
    return F.interpolate(identity[None], size=large, mode="linear", align_corners=False)[0]
