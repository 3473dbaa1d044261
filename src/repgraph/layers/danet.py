"""DANet (Fu et al., CVPR 2019): position and channel attention, a layer with both, and the published head."""

from typing import Any

import torch
from torch import Tensor, nn

from repgraph.errors import UsageError
from repgraph.layers import checks
from repgraph.layers.non_local import ATTENTIONS, attend
from repgraph.layers.pointwise import Pointwise
from repgraph.ops.formats import is_channels_last
from repgraph.ops.library import without_autocast
from repgraph.ops.product import check_dtypes


class PositionAttention(nn.Module):
    """Attention from every position to all, with unscaled logits, times ``gamma``, which starts at zero."""

    def __init__(
        self, channels: int, mid_channels: int | None = None, *, attention: str = "sdpa", **factory: Any
    ) -> None:
        super().__init__()
        checks.check_int("channels", channels)
        width = max(1, channels // 8) if mid_channels is None else checks.check_int("mid_channels", mid_channels)
        self.attention = checks.check_choice("attention", attention, ATTENTIONS)
        self.gamma = nn.Parameter(torch.zeros(1, **factory))
        self.query = Pointwise(channels, width, **factory)
        self.key = Pointwise(channels, width, **factory)
        self.value = Pointwise(channels, channels, **factory)

    def forward(self, x: Tensor) -> Tensor:
        response = attend(self.query(x), self.key(x), self.value(x), attention=self.attention)
        # A factor without dimensions keeps the dtype of the response: under autocast, half precision.
        return self.gamma[0] * response


class ChannelAttention(nn.Module):
    """Attention from every channel to all, times ``gamma``, which starts at zero.

    The energies are computed in float32 or more: as sums over H W positions they overflow float16, and their
    differences are far below the resolution of bfloat16.
    """

    def __init__(self, **factory: Any) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, **factory))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)  # [B, C, N]
        with without_autocast(x.device.type):
            wide = flat.to(torch.promote_types(x.dtype, torch.float32))
            # DANet writes softmax(max - energy); the maximum is constant in a row and cancels.
            weights = torch.softmax(-(wide @ wide.mT), -1).to(x.dtype)  # [B, C, C]
        # In the memory format of the input.
        response = (flat.mT @ weights.mT).mT if is_channels_last(x) else weights @ flat
        return self.gamma[0] * response.view(x.shape)


class DualAttention(nn.Module):
    """DANet's two attentions side by side: ``x + position(x) + channel(x)``, initially the identity.

    The input and the output are (B, channels, H, W).

    Args:
        mid_channels: channels of ``position.query`` and ``position.key``. Default: C / 8.
        attention: over positions: "sdpa" or "plain", see :class:`~repgraph.layers.NonLocal`.
        fusion: "sum", the only choice.
    """

    def __init__(
        self,
        channels: int,
        mid_channels: int | None = None,
        *,
        attention: str = "sdpa",
        fusion: str = "sum",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if fusion != "sum":
            raise UsageError(f"fusion is {fusion!r}; dual attention supports 'sum' only")
        self.out_channels = self.channels = checks.check_int("channels", channels)
        factory: dict[str, Any] = dict(device=device, dtype=dtype)
        self.position = PositionAttention(channels, mid_channels, attention=attention, **factory)
        self.channel = ChannelAttention(**factory)

    def forward(self, x: Tensor) -> Tensor:
        checks.check_map(x, self.channels)
        return x + self.position(x) + self.channel(x)


class DANetHead(nn.Module):
    """The published head of DANet, from features (B, in_channels, H, W) to class logits (B, num_classes, H, W).

    One branch is ``conv5a`` (3 x 3, normalization, ReLU), ``position`` attention and ``conv51``, the other ``conv5c``,
    ``channel`` attention and ``conv52``. ``conv6`` and ``conv7`` classify the branches and ``conv8`` their sum (dropout
    and 1 x 1 with bias). The convolutions have their published names.

    Args:
        in_channels: channels of the features; 2048 from a ResNet-50 or -101.
        mid_channels: channels of the branches; a quarter of ``in_channels`` in the paper.
        attention: over positions: "sdpa" or "plain", see :class:`~repgraph.layers.NonLocal`.
        dropout: probability of dropping a channel before a classifier.
    """

    def __init__(
        self,
        in_channels: int,
        mid_channels: int = 512,
        *,
        num_classes: int,
        attention: str = "sdpa",
        dropout: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = checks.check_int("in_channels", in_channels), num_classes
        factory: dict[str, Any] = dict(device=device, dtype=dtype)

        def block(channels: int) -> nn.Module:
            convolution = nn.Conv2d(channels, mid_channels, 3, padding=1, bias=False, **factory)
            return nn.Sequential(convolution, nn.BatchNorm2d(mid_channels, **factory), nn.ReLU())

        def classifier() -> nn.Module:
            return nn.Sequential(nn.Dropout2d(dropout), Pointwise(mid_channels, num_classes, **factory))

        self.conv5a, self.conv5c = block(in_channels), block(in_channels)
        self.position = PositionAttention(mid_channels, attention=attention, **factory)
        self.channel = ChannelAttention(**factory)
        self.conv51, self.conv52 = block(mid_channels), block(mid_channels)
        self.conv6, self.conv7, self.conv8 = classifier(), classifier(), classifier()

    def forward(self, x: Tensor, all_outputs: bool = False) -> Any:
        """Return the logits; with ``all_outputs`` those of the sum and of both branches, whose losses DANet adds."""
        check_dtypes(checks.check_map(x, self.in_channels), next(self.parameters()))
        position, channel = self.conv5a(x), self.conv5c(x)
        position = self.conv51(position + self.position(position))
        channel = self.conv52(channel + self.channel(channel))
        fused = self.conv8(position + channel)
        return (fused, self.conv6(position), self.conv7(channel)) if all_outputs else fused
