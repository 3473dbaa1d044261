"""Heads that make classes of a backbone's features, and the way from their maps to the image's size."""

from collections.abc import Mapping
from typing import Any

import torch  # noqa: F401 - of the examples
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import BottleneckRepGraph, options
from repgraph.layers.pointwise import Pointwise
from repgraph.layers.repgraph import RepGraph
from repgraph.models import context as contexts


class SegmentationHead(nn.Module):
    """From a backbone's features to classes at each position: 3 x 3, context layer, classifier. It fits any encoder.

    ``project`` (3 x 3, ``norm``, ReLU), ``context``, dropout, ``classifier`` (1 x 1).

    Args:
        in_channels: of the features; 2048 from a ResNet-50 or -101.
        classes: of the predictions.
        channels: between ``project`` and the context layer.
        context: "repgraph" (:class:`~repgraph.layers.BottleneckRepGraph`), "paper" (the same, in the paper's plain
            form), "simple", "non_local", "dual", "control" (the bottleneck's convolutions without the sampling) or
            "none".
        context_options: of the context layer, such as ``{"nodes": 27}``.
        fusion: of the context layer, "concat" or "sum"; None for "concat", and "sum" for dual attention.
        dropout: probability with which a channel is left out before the classifier.

    Example:
        >>> head = SegmentationHead(64, 19, channels=32).eval()
        >>> head(torch.randn(1, 64, 17, 23)).shape
        torch.Size([1, 19, 17, 23])
        >>> logits, nodes, weights = head(torch.randn(1, 64, 17, 23), return_nodes=True)
        >>> nodes.shape
        torch.Size([1, 9, 2, 17, 23])
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
        self.project, self.norm, self.act = _project(in_channels, channels)
        self.context = contexts.make(context, channels, fusion=fusion, layer_options=context_options)
        if isinstance(self.context, (BottleneckRepGraph, contexts.Control)):
            # The layers that attend by products of projections keep the initialisation that sets their logits' size.
            _initialise(self.context.reduce)
            _initialise(self.context.expand)
        self.dropout = nn.Dropout2d(_probability(dropout))
        self.classifier = _classifier(int(self.context.out_channels), classes)  # type: ignore[arg-type]

    def forward(self, x: Tensor, return_nodes: bool = False) -> Any:
        """Logits (B, classes, H, W) from features (B, C, H, W).

        With ``return_nodes`` they come with the nodes and weights of a RepGraph layer.
        """
        x = self.act(self.norm(self.project(options.check(x, self.project.in_channels))))
        if not return_nodes:
            return self.classifier(self.dropout(self.context(x)))
        if not isinstance(self.context, RepGraph):
            raise UsageError(f"a head whose context is a {type(self.context).__name__} has no representative nodes")
        x, nodes, weights = self.context(x, return_nodes=True)
        return self.classifier(self.dropout(x)), nodes, weights


class AuxiliaryHead(nn.Module):
    """Classes from the features of an earlier stage, for a second loss in training: 3 x 3, dropout, classifier.

    Args:
        in_channels: of the features; 1024 from the fourth stage of a ResNet-50 or -101.
        classes: of the predictions.
        channels: after ``project``, the 3 x 3 convolution.
        dropout: probability with which a channel is left out before the classifier.

    Example:
        >>> AuxiliaryHead(64, 19, channels=32)(torch.randn(2, 64, 17, 23)).shape
        torch.Size([2, 19, 17, 23])
    """

    def __init__(self, in_channels: int, classes: int, *, channels: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        self.project, self.norm, self.act = _project(in_channels, channels)
        self.dropout = nn.Dropout2d(_probability(dropout))
        self.classifier = _classifier(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes, H, W) from features (B, C, H, W)."""
        x = self.act(self.norm(self.project(options.check(x, self.project.in_channels))))
        return self.classifier(self.dropout(x))


def _project(in_channels: int, channels: int) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
    whole = options.whole("in_channels", in_channels), options.whole("channels", channels)
    convolution = nn.Conv2d(*whole, 3, padding=1, bias=False)
    return _initialise(convolution), nn.BatchNorm2d(channels), nn.ReLU(inplace=True)


def _classifier(channels: int, classes: int) -> nn.Conv2d:
    return _initialise(Pointwise(channels, options.whole("classes", classes)))


def _initialise(convolution: nn.Conv2d) -> nn.Conv2d:
    """Kaiming's initialisation: the size of what goes through stays what it is."""
    nn.init.kaiming_normal_(convolution.weight, mode="fan_in", nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution


def _probability(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise UsageError(f"dropout is {value!r}; a number from 0 to below 1 is needed")
    return float(value)
