"""The two attentions of DANet (Fu et al., CVPR 2019), over positions and over channels, and the layer of both."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from repgraph.layers import options, positions
from repgraph.layers.pointwise import Pointwise
from repgraph.ops.formats import is_channels_last
from repgraph.ops.library import unrounded


class Gated(nn.Module):
    """A response times ``gamma``, learned from zero: what one attention adds to its input."""

    def __init__(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        # Without a dimension the factor leaves the response its dtype: under autocast a half-precision map stays one.
        return self.gamma[0] * self.respond(x)

    def respond(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class PositionAttention(Gated):
    """DANet's position attention times ``gamma``: every position attends to all, as in a non-local layer.

    ``query`` and ``key`` (1 x 1, C -> C') give the weights, ``value`` (1 x 1, C -> C) what they weigh; there is no
    scale. See :func:`repgraph.layers.positions.attend` for what "sdpa" does with values wider than queries: on the CPU
    it is no better than "plain".

    >>> PositionAttention(64)(torch.randn(2, 64, 17, 23)).shape
    torch.Size([2, 64, 17, 23])
    """

    def __init__(
        self,
        channels: int,
        mid_channels: int | None = None,
        *,
        attention: str = "sdpa",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        placed: dict[str, Any] = dict(device=device, dtype=dtype)
        super().__init__(**placed)
        self.channels = options.whole("channels", channels)
        self.mid_channels = max(1, channels // 8) if mid_channels is None else options.mid(channels, mid_channels)
        self.attention = positions.chosen(attention)
        self.query = Pointwise(channels, self.mid_channels, **placed)
        self.key = Pointwise(channels, self.mid_channels, **placed)
        self.value = Pointwise(channels, channels, **placed)

    def respond(self, x: Tensor) -> Tensor:
        options.check(x, self.channels)
        return positions.attend(self.query(x), self.key(x), self.value(x), attention=self.attention)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.mid_channels}, {options.given(attention=self.attention)}"


class ChannelAttention(Gated):
    """DANet's channel attention times ``gamma``: every channel attends to all, most to those least like it.

    The energies, products of channels over all positions, are computed in float32 for half precision and under
    autocast: as sums over H W positions they overflow float16, and their differences, which are all that counts, are
    far below the steps of bfloat16. That takes one copy of the input in float32.

    >>> ChannelAttention()(torch.randn(2, 64, 17, 23)).shape
    torch.Size([2, 64, 17, 23])
    """

    def respond(self, x: Tensor) -> Tensor:
        flat = x.flatten(2)  # [B, C, N]
        with unrounded(x.device.type):
            wide = flat.to(torch.promote_types(x.dtype, torch.float32))
            # DANet writes softmax(max - energy); the maximum is one number in a row and drops out.
            weights = torch.softmax(-(wide @ wide.mT), -1).to(x.dtype)  # [B, C, C]
        # The product is laid out as the input is.
        response = (flat.mT @ weights.mT).mT if is_channels_last(x) else weights @ flat
        return response.view(x.shape)


class DualAttention(nn.Module):
    """DANet's two attentions side by side: ``x + gamma_p * P(x) + gamma_c * A(x)``, an identity at the start.

    ``position`` attends over positions and ``channel`` over channels; both gammas are learned from zero.

    Args:
        channels: C, of the input and the result.
        mid_channels: of ``position.query`` and ``position.key``; C / 8 by default.
        attention: over positions: "sdpa" or "plain", as in :class:`~repgraph.layers.NonLocal`.
        fusion: "sum"; there is no other.

    Example:
        >>> layer = DualAttention(64)
        >>> x = torch.randn(2, 64, 17, 23)
        >>> torch.equal(layer(x), x)
        True
    """

    INSERTED: ClassVar[dict[str, Any]] = {}  # for a place in a trained network: it is the identity as it is

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
            raise ValueError(f"fusion is {fusion!r}; dual attention has no other than 'sum'")
        self.channels = options.whole("channels", channels)
        placed: dict[str, Any] = dict(device=device, dtype=dtype)
        self.position = PositionAttention(channels, mid_channels, attention=attention, **placed)
        self.channel = ChannelAttention(**placed)

    @property
    def out_channels(self) -> int:
        return self.channels

    @property
    def gamma_p(self) -> nn.Parameter:
        return self.position.gamma

    @property
    def gamma_c(self) -> nn.Parameter:
        return self.channel.gamma

    def forward(self, x: Tensor) -> Tensor:
        options.check(x, self.channels)
        return x + self.position(x) + self.channel(x)

    def zero_(self) -> "DualAttention":
        """Make what is added to the input zero."""
        nn.init.zeros_(self.gamma_p)
        nn.init.zeros_(self.gamma_c)
        return self

    def extra_repr(self) -> str:
        return str(self.channels)
