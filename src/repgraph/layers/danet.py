"""The head of DANet (Fu et al., CVPR 2019): position and channel attention in two branches."""

from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from repgraph.layers import options
from repgraph.layers.dual_attention import ChannelAttention, PositionAttention
from repgraph.layers.options import Activation, Norm
from repgraph.layers.pointwise import Pointwise


class DANetHead(nn.Module):
    """The whole published head, from a backbone's features to classes at each position.

    ``conv5a`` (3 x 3, normalisation, activation), the ``position`` attention, ``conv51`` (3 x 3, the same) and
    ``conv5c``, the ``channel`` attention, ``conv52`` are the branches. ``conv6`` and ``conv7`` classify each of the
    two and ``conv8`` their sum (dropout and 1 x 1 with bias). The names of the convolutions are the published ones.

    Args:
        in_channels: of the features; 2048 from a ResNet-50 or -101.
        mid_channels: of the branches; published is a quarter of ``in_channels``.
        num_classes: of the predictions.
        attention: over positions: "sdpa" or "plain", as in :class:`~repgraph.layers.NonLocal`.
        norm_layer: normalisation after the 3 x 3 convolutions; None for none.
        act_layer: activation after that.
        dropout: probability with which a channel is left out before a classifier.

    Example:
        >>> head = DANetHead(64, 16, num_classes=19).eval()
        >>> head(torch.randn(1, 64, 17, 23)).shape
        torch.Size([1, 19, 17, 23])
        >>> fused, position, channel = head(torch.randn(1, 64, 17, 23), all_outputs=True)
    """

    def __init__(
        self,
        in_channels: int,
        mid_channels: int = 512,
        *,
        num_classes: int,
        attention: str = "sdpa",
        norm_layer: Norm | None = nn.BatchNorm2d,
        act_layer: Activation = nn.ReLU,
        dropout: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = options.whole("in_channels", in_channels)
        self.mid_channels = options.whole("mid_channels", mid_channels)
        self.num_classes = options.whole("num_classes", num_classes)
        placed: dict[str, Any] = dict(device=device, dtype=dtype)

        def block(channels: int) -> nn.Module:
            convolution = nn.Conv2d(channels, mid_channels, 3, padding=1, bias=False, **placed)
            return nn.Sequential(
                convolution, options.norm(norm_layer, mid_channels, **placed), options.activation(act_layer, **placed)
            )

        def classifier() -> nn.Module:
            return nn.Sequential(nn.Dropout2d(dropout), Pointwise(mid_channels, num_classes, **placed))

        self.conv5a, self.conv5c = block(in_channels), block(in_channels)
        self.position = PositionAttention(mid_channels, attention=attention, **placed)
        self.channel = ChannelAttention(**placed)
        self.conv51, self.conv52 = block(mid_channels), block(mid_channels)
        self.conv6, self.conv7, self.conv8 = classifier(), classifier(), classifier()

    @property
    def out_channels(self) -> int:
        return self.num_classes

    @overload
    def forward(self, x: Tensor, all_outputs: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, all_outputs: Literal[True]) -> tuple[Tensor, Tensor, Tensor]: ...

    def forward(self, x: Tensor, all_outputs: bool = False) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Logits (B, classes, H, W) from features (B, C, H, W).

        With ``all_outputs`` those of the sum, of the position branch and of the channel branch: DANet's loss is the
        sum of the three. Without, the classifiers of the single branches do not run.
        """
        options.check(x, self.in_channels)
        position, channel = self.conv5a(x), self.conv5c(x)
        position = self.conv51(position + self.position(position))
        channel = self.conv52(channel + self.channel(channel))
        fused = self.conv8(position + channel)
        return (fused, self.conv6(position), self.conv7(channel)) if all_outputs else fused

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.mid_channels}, {options.given(num_classes=self.num_classes)}"
