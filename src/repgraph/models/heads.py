"""Segmentation heads, and upsampling of their logits to the size of the image."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, PyramidRepGraph
from repgraph.layers.checks import check_int, check_map, check_maps
from repgraph.layers.pointwise import Fusible, Pointwise, add_conv_norm, norm_act
from repgraph.layers.repgraph import RepGraph
from repgraph.models.context import Control, make_context
from repgraph.ops.resize import resize

MAPS = 4  # of a backbone, for PyramidHead: strides 4, 8, 16 and 32


class SegmentationHead(Fusible):
    """The head of RGNet, from the features of any encoder to class logits.

    ``project`` (3 x 3), ``norm`` and ReLU; ``context``; dropout and ``classifier`` (1 x 1).

    Args:
        in_channels: channels of the features; 2048 from a ResNet-50 or -101.
        channels: channels after ``project``.
        context, context_options, fusion: the context layer, as in :class:`~repgraph.models.RGNet`.
        dropout: probability of dropping a channel before the classifier.

    Shape:
        - Input: (B, in_channels, H, W)
        - Output: (B, classes, H, W); with ``return_nodes=True`` also nodes and weights of the RepGraph layer.
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
        self.classifier = initialize(Pointwise(self.context.out_channels, check_int("classes", classes)))

    def normalized(self) -> Iterator[tuple[nn.Module, str, nn.Module, str]]:
        yield self, "project", self, "norm"

    def forward(self, x: Tensor, return_nodes: bool = False) -> Any:
        x = norm_act(self.project(check_map(x, self.project.in_channels)), self.norm, self.act)
        if return_nodes and not isinstance(self.context, RepGraph):
            raise UsageError(f"the context layer is a {type(self.context).__name__}, which has no representative nodes")
        x, *nodes = self.context(x, True) if return_nodes else (self.context(x),)
        x = self.classifier(self.dropout(x))
        return (x, *nodes) if return_nodes else x


class AuxiliaryHead(SegmentationHead):
    """Class logits from an earlier stage, for an additional loss in training: a head without a context layer."""

    def __init__(self, in_channels: int, classes: int, *, channels: int = 512, dropout: float = 0.1) -> None:
        super().__init__(in_channels, classes, channels=channels, context="none", dropout=dropout)


class PyramidHead(Fusible):
    """From the maps of a backbone's four stages to class logits at the stride of the first.

    The maps of strides 8, 16 and 32 are projected to equal widths (``laterals``), and each is added to the next finer
    one. Before that, "pyramid" updates the coarse ones by attention to nodes on them; any other context layer runs
    on the merged map of stride 8. The result is upsampled to stride 4 and added to the first map (``fine``); a 3 x 3
    convolution (``smooth``), dropout and ``classifier`` (1 x 1) follow.

    Args:
        in_channels: channels of the four maps.
        channels: channels of the projected maps; half of them at stride 4.
        context: "pyramid" is :class:`~repgraph.layers.PyramidRepGraph`, "none" a plain feature pyramid (FPN).
        context_options, fusion, dropout: as in :class:`SegmentationHead`.

    Shape:
        - Input: four maps (B, C_l, H_l, W_l), the finest first
        - Output: (B, classes, H_0, W_0); with ``return_nodes=True`` also nodes and weights of each round.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        classes: int,
        *,
        context: str = "pyramid",
        context_options: Mapping[str, Any] | None = None,
        fusion: str | None = None,
        channels: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        first, *coarser = (check_int("in_channels", number) for number in in_channels)
        width = max(1, check_int("channels", channels) // 2)
        self.laterals = nn.ModuleList(initialize(Pointwise(number, channels, bias=False)) for number in coarser)
        self.lateral_norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in coarser)
        self.context = make_context(context, channels, fusion=fusion, options=context_options, decoder="pyramid")
        self.attends = isinstance(self.context, PyramidRepGraph)
        if self.attends and self.context.maps > len(coarser):
            raise UsageError(f"maps is {self.context.maps}; the head has {len(coarser)} maps for its context layer")
        self.reduce = initialize(Pointwise(self.context.out_channels, width, bias=False))
        self.fine = initialize(Pointwise(first, width, bias=False))
        self.fine_norm = nn.BatchNorm2d(width)
        self.smooth = initialize(nn.Conv2d(width, width, 3, padding=1, bias=False))
        self.smooth_norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = initialize(Pointwise(width, check_int("classes", classes)))

    def normalized(self) -> Iterator[tuple[nn.Module, str, nn.Module, str]]:
        yield from super().normalized()
        yield from ((self.laterals, str(level), self.lateral_norms, str(level)) for level in range(len(self.laterals)))

    def forward(self, maps: Sequence[Tensor], return_nodes: bool = False) -> Any:
        first, *coarser = check_maps(maps, [each.in_channels for each in (self.fine, *self.laterals)])
        if return_nodes and not self.attends:
            raise UsageError(f"the context layer {type(self.context).__name__} has no nodes on the pyramid's maps")
        x, nodes, finer = None, [], len(coarser)
        if self.attends:
            finer -= self.context.maps
            projected = [self.merge(level, coarser[level]) for level in range(finer, len(coarser))]
            x, *nodes = self.context(projected, True) if return_nodes else (self.context(projected),)
        for level in reversed(range(finer)):
            x = self.merge(level, coarser[level], x)
        x = resize(self.reduce(x if self.attends else self.context(x)), first.shape[2:])
        x = add_conv_norm(x, first, self.fine, self.fine_norm, relu=True)
        x = self.classifier(self.dropout(norm_act(self.smooth(x), self.smooth_norm, self.act)))
        return (x, *nodes) if return_nodes else x

    def merge(self, level: int, x: Tensor, above: Tensor | None = None) -> Any:
        """Project a map of the backbone and add the next coarser map of the pyramid."""
        lateral, norm = self.laterals[level], self.lateral_norms[level]
        return norm(lateral(x)) if above is None else add_conv_norm(resize(above, x.shape[2:]), x, lateral, norm)


def initialize(convolution: nn.Conv2d) -> nn.Conv2d:
    nn.init.kaiming_normal_(convolution.weight, mode="fan_in", nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution


def upsample(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Resize logits (B, K, h, w) to ``size`` (H, W), bilinearly with ``align_corners=False``.

    The result is in float32 at least: a softmax uses float32 anyway, and rounded logits would tie.
    """
    return resize(logits, size, torch.promote_types(logits.dtype, torch.float32), contiguous=True)
